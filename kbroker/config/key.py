"""The definition of a config: name, type, default, range, importance, documentation.

A ``Key`` is data. Everything that depends on a setting follows from it: parsing and validation,
the responses to DescribeConfigs, what may be changed at run time, and ``docs/configuration.md``.

Text is parsed as Apache Kafka does (surrounding white space is dropped, booleans in any case) but
in ASCII only: ``int()`` alone would take other scripts' digits and underscores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.errors import ConfigError

# Types, numbered as in DescribeConfigs.
UNKNOWN = 0  # of a config that does not exist
BOOLEAN = 1
STRING = 2
INT = 3
SHORT = 4
LONG = 5
DOUBLE = 6
LIST = 7
CLASS = 8
PASSWORD = 9

TYPE_NAMES = {
    BOOLEAN: "BOOLEAN",
    STRING: "STRING",
    INT: "INT",
    SHORT: "SHORT",
    LONG: "LONG",
    DOUBLE: "DOUBLE",
    LIST: "LIST",
    CLASS: "CLASS",
    PASSWORD: "PASSWORD",
}

HIGH = "HIGH"
MEDIUM = "MEDIUM"
LOW = "LOW"

# When a config may change while the broker is running.
READ_ONLY = "read-only"
PER_BROKER = "per-broker"  # for one broker
CLUSTER_WIDE = "cluster-wide"  # for one broker or for all

# What setting it does today.
BUILT = "built"
LATER = "later"  # its feature is not supported yet
UNUSED = "unused"  # accepted because Kafka has it; there is nothing here that it could change

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
TIMESTAMP_AFTER_MAX_MS = 3_600_000  # the default of Kafka from 4.0 on
DOUBLE_MAX = 1.7976931348623157e308  # in a default these three mean "no bound" or "never"

_INTEGER_BITS = {SHORT: 16, INT: 32, LONG: 64}
# BOUND: more digits than any 64-bit number has; int() takes quadratic time in them.
_INTEGER_DIGITS_MAX = 20
_DOUBLE_CHARS_MAX = 64
_SHOWN_CHARS_MAX = 200
_DOUBLE_CHARS = frozenset("0123456789+-.eE")
_WHITE_SPACE = "".join(map(chr, range(33)))  # what Java's trim() drops
_CONTROL = frozenset(map(chr, range(32)))


class Computed:
    """A default that depends on the machine: text for the manual, and how to find it."""

    __slots__ = ("find", "text")

    def __init__(self, text: str, find: Callable[[], Any]) -> None:
        self.text = text
        self.find = find


class ValueRule:
    """A rule for a parsed value beyond range and list, with its text."""

    __slots__ = ("allowed", "test")

    def __init__(self, allowed: str, test: Callable[[Any], bool]) -> None:
        self.allowed = allowed
        self.test = test


class Key:
    """The definition of a config. Immutable by convention; created at import, shared by all.

    low, high: inclusive bounds of a number.
    one_of: the only words allowed (for a LIST: of each item).
    synonyms: settings that mean the same in other units, the strongest first, this one included.
    aliases: other names that are accepted in files and stand for this one.
    base: of a listener's own config: the broker's config that it replaces.
    server_keys: topic settings only. The broker settings that give the default, the strongest
        first, each with the factor that turns its unit into this one's.
    deviation: how this setting differs from Kafka 2.7's, empty if it does not.
    """

    __slots__ = (
        "aliases",
        "base",
        "check",
        "default",
        "deviation",
        "doc",
        "dynamic",
        "high",
        "importance",
        "low",
        "name",
        "one_of",
        "server_keys",
        "status",
        "synonyms",
        "type",
    )

    def __init__(
        self,
        name: str,
        type: int,
        default: Any,
        importance: str,
        doc: str,
        *,
        low: float | None = None,
        high: float | None = None,
        one_of: tuple[str, ...] | None = None,
        check: ValueRule | None = None,
        dynamic: str = READ_ONLY,
        status: str = BUILT,
        synonyms: tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        server_keys: tuple[tuple[str, int], ...] = (),
        deviation: str = "",
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.importance = importance
        self.doc = doc
        self.low = low
        self.high = high
        self.one_of = one_of
        self.check = check
        self.dynamic = dynamic
        self.status = status
        self.synonyms = synonyms or (name,)
        self.aliases = aliases
        self.base = name
        self.server_keys = server_keys
        self.deviation = deviation

    def __repr__(self) -> str:
        return f"Key({self.name!r}, {TYPE_NAMES[self.type]})"

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type == PASSWORD

    def default_value(self) -> Any:
        """The typed default on this machine."""
        default = self.default
        return default.find() if type(default) is Computed else default

    def allowed(self) -> str:
        """The allowed values, in words."""
        parts = [_TYPE_WORDS[self.type]]
        if self.one_of is not None:
            words = ", ".join(self.one_of)
            parts = [f"any of {words}" if self.type == LIST else f"one of {words}"]
        if self.low is not None and self.high is not None:
            parts.append(f"from {self.low} to {self.high}")
        elif self.low is not None:
            parts.append(f"at least {self.low}")
        elif self.high is not None:
            parts.append(f"at most {self.high}")
        if self.check is not None:
            parts.append(self.check.allowed)
        return ", ".join(parts)

    def error(self, text: str, allowed: str = "") -> ConfigError:
        """The error for a rejected value. It hides secrets and is always one short line."""
        shown = "(hidden)" if self.sensitive else text[:_SHOWN_CHARS_MAX]
        if not shown.isprintable():
            shown = ascii(shown)
        return ConfigError(self.name, shown, allowed or self.allowed())

    def parse(self, text: str) -> Any:
        """Turn text into a value of this key's type and validate it. A LIST becomes a tuple.

        Raises ConfigError naming the key, the text and what is allowed.
        """
        kind = self.type
        trimmed = text.strip(_WHITE_SPACE)
        if not _CONTROL.isdisjoint(trimmed) and kind != PASSWORD:
            raise self.error(text, "text without control characters")
        value: Any
        if kind in _INTEGER_BITS:
            value = _parse_integer(trimmed, _INTEGER_BITS[kind])
        elif kind == BOOLEAN:
            value = {"true": True, "false": False}.get(trimmed.lower())
        elif kind == DOUBLE:
            value = _parse_double(trimmed)
        elif kind == LIST:
            value = split_list(trimmed)
        else:
            value = trimmed
        if value is None:
            raise self.error(text)
        self.validate(value, text)
        return value

    def validate(self, value: Any, text: str) -> None:
        """Raise ConfigError unless a typed value is in range, in the list and passes the check."""
        if self.one_of is not None:
            items = value if self.type == LIST else (value,)
            for item in items:
                if item not in self.one_of:
                    raise self.error(text)
        if self.low is not None and value < self.low:
            raise self.error(text)
        if self.high is not None and value > self.high:
            raise self.error(text)
        if self.check is not None and not self.check.test(value):
            raise self.error(text)

    def format(self, value: Any) -> str | None:
        """Write a typed value as Kafka prints it; None stays None. The caller withholds secrets."""
        if value is None:
            return None
        if self.type == BOOLEAN:
            return "true" if value else "false"
        if self.type == LIST:
            return ",".join(value)
        if self.type == DOUBLE:
            return format_double(value)
        return str(value)


_TYPE_WORDS = {
    BOOLEAN: "true or false",
    STRING: "text",
    INT: "a whole number of 32 bits",
    SHORT: "a whole number of 16 bits",
    LONG: "a whole number of 64 bits",
    DOUBLE: "a number",
    LIST: "a list separated by commas",
    CLASS: "the name of a class",
    PASSWORD: "text",
}


def _parse_integer(text: str, bits: int) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _INTEGER_DIGITS_MAX:
        return None
    value = int(text)
    limit = 1 << (bits - 1)
    return value if -limit <= value < limit else None


def _parse_double(text: str) -> float | None:
    # Java allows a type letter at the end ("0.9d").
    if text[-1:] in ("d", "D", "f", "F"):
        text = text[:-1]
    if not text or len(text) > _DOUBLE_CHARS_MAX or not _DOUBLE_CHARS.issuperset(text):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0 else None  # neither infinite nor not-a-number


def split_list(text: str) -> tuple[str, ...]:
    """Split a LIST at its commas, dropping white space around items. No text is an empty list."""
    if not text:
        return ()
    return tuple(item.strip(_WHITE_SPACE) for item in text.split(","))


def format_double(value: float) -> str:
    """Write a double as Java does: plain from 0.001 to below ten million, else with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or 0) + len(whole) - 1
    digits = whole + fraction
    leading_zeros = len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power - leading_zeros}"
