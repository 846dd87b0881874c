"""What an operation is: its path and its verb, what it takes, what it answers, and the function
that serves it.

Routes, checks and the OpenAPI document follow from these rows (``application``, ``openapi``), and
so do verbs of ``kbroker`` with options, documents and completion (``cli.operation_verbs``).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from kbroker.client.connections.cluster import Cluster
from kbroker.console.problems import BadRequest

if TYPE_CHECKING:
    from kbroker.console.decoding import Decoding
    from kbroker.console.local_broker import LocalBroker
    from kbroker.console.topic_figures import TopicRates
    from kbroker.diagnosis.group_progress import GroupWatch

Row = TypeVar("Row")

INTEGER, TEXT, FLAG, INTEGERS, SETTINGS = "integer", "string", "boolean", "integers", "settings"
TEXTS, BYTES, TIME = "strings", "bytes", "time"
_INTEGERS = (INTEGER, BYTES, TIME)
LONG_MAX = (1 << 63) - 1
# BOUND: characters of a text in a query, and items of a list.
TEXT_CHARS_MAX = 4096
ITEMS_MAX = 10_000
CURSOR_CHARS_MAX = 100
_WHOLE = re.compile("-?[0-9]{1,19}")


_IN_PATH = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that an operation takes. kind: of the above; BYTES and TIME (milliseconds since 1970)
    are integers that a command also takes with a unit, and as ISO time. default: None leaves it
    out. names: what brokers know the values of, for completion: topic, group, broker,
    transactional-id. letter: of the option of a verb.
    """

    name: str
    kind: str
    text: str
    default: Any = None
    required: bool = False
    low: int = 0
    high: int = LONG_MAX
    one_of: tuple[str, ...] = ()
    length_min: int = 0
    length_max: int = TEXT_CHARS_MAX
    names: str = ""
    letter: str = ""

    def read(self, given: str) -> Any:
        """The value in a query. Raises BadRequest."""
        if self.kind == FLAG:
            if given not in ("true", "false"):
                raise self._refused(given)
            return given == "true"
        if self.kind in _INTEGERS:
            return self._whole(given)
        if self.kind == INTEGERS:
            return self._all([self._whole(each) for each in given.split(",")])
        if self.kind == TEXTS:
            return self.check(given.split(","))
        return self.check(given)

    def check(self, given: Any) -> Any:
        """A value of JSON, as it must be. Raises BadRequest."""
        kind = self.kind
        if kind == FLAG and isinstance(given, bool):
            return given
        if kind in _INTEGERS and isinstance(given, int) and not isinstance(given, bool):
            return self._whole(str(given))
        if kind == TEXT and (not self.one_of or given in self.one_of):
            return self._short(given)
        if kind == INTEGERS and isinstance(given, list):
            return self._all([self._whole(str(each)) for each in given])
        if kind == TEXTS and isinstance(given, list):
            for each in given:
                if self.one_of and each not in self.one_of:
                    raise self._refused(each)
            return self._all([self._short(each) for each in given])
        if kind == SETTINGS and isinstance(given, dict):
            self._all([self._short(name) for name in given])
            return {
                name: None if each is None else self._short(each) for name, each in given.items()
            }
        raise self._refused(given)

    def _whole(self, given: str) -> int:
        if not _WHOLE.fullmatch(given) or not self.low <= int(given) <= self.high:
            raise self._refused(given)
        return int(given)

    def _short(self, given: Any) -> str:
        if not isinstance(given, str) or not self.length_min <= len(given) <= self.length_max:
            raise self._refused(given)
        try:
            given.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"{self.name}: half of a surrogate pair is no character") from None
        return given

    def _all(self, items: list[Any]) -> list[Any]:
        if len(items) > ITEMS_MAX:
            raise BadRequest(f"{self.name}: {len(items)} items, at most {ITEMS_MAX}")
        return items

    def _refused(self, given: Any) -> BadRequest:
        shown = str(given)[:80]
        return BadRequest(f"{self.name}: {shown!r} is not allowed: {self.allowed}")

    @property
    def allowed(self) -> str:
        """In words."""
        if self.one_of:
            return ", ".join(self.one_of)
        if self.kind in (INTEGERS, *_INTEGERS):
            bounds = (
                f"{self.low} or more" if self.high == LONG_MAX else f"{self.low} to {self.high}"
            )
            whole = "whole numbers" if self.kind == INTEGERS else "a whole number"
            return f"{whole}, {bounds}"
        shortest = f"{self.length_min} to" if self.length_min else "at most"
        return {
            FLAG: "true or false",
            TEXT: f"text of {shortest} {self.length_max} characters",
            TEXTS: f"a list of texts of at most {self.length_max} characters",
            SETTINGS: "an object of names and texts; null unsets",
        }[self.kind]


class CheckedRequest(NamedTuple):
    """A request that was checked. values: of path, query and body, with defaults. decoding: None
    without a schema registry. user: None of who has not logged in. groups, rates: of a console,
    which may be asked again.
    """

    cluster: Cluster
    broker: LocalBroker
    values: Mapping[str, Any]
    decoding: Decoding | None = None
    user: str | None = None
    groups: GroupWatch | None = None
    rates: TopicRates | None = None


def asked_by_command(cluster: Cluster, values: Mapping[str, Any]) -> CheckedRequest:
    """Of an operation that has a verb, and so needs no broker of its own."""
    return CheckedRequest(cluster, cast("LocalBroker", None), values)


def paging(rows: int = 100, most: int = 500) -> tuple[Parameter, Parameter, Parameter]:
    """Parameters for which rows a response has; see ``page_of``. rows: if it is not said.

    BOUND: most, of rows.
    """
    return (
        Parameter("limit", INTEGER, "Rows of the page.", rows, low=1, high=most),
        Parameter("skip", INTEGER, "Rows before the page.", 0),
        Parameter(
            "cursor", TEXT, "The next_cursor of the page before; then without skip.", "",
            length_max=CURSOR_CHARS_MAX,
        ),
    )  # fmt: skip


def page_of(
    rows: Sequence[Row], values: Mapping[str, Any], name: Callable[[Row], str] = str
) -> tuple[Sequence[Row], str | None]:
    """The rows that the parameters of ``paging`` ask for, and the cursor of the next page: None
    after the last one. name: of a row; a page begins behind the last row of the one before, also if
    others have come or gone. Raises BadRequest.
    """
    first = values["skip"]
    if values["cursor"]:
        if first:
            raise BadRequest("either skip or cursor")
        first = _place_of(values["cursor"], rows, name)
    page = rows[first : first + values["limit"]]
    end = first + len(page)
    return page, _cursor(end, name(page[-1])) if page and end < len(rows) else None


def _cursor(end: int, name: str) -> str:
    """Behind the row of this name, which is the last one of so many."""
    document = json.dumps([end, zlib.crc32(name.encode("utf-8", "replace"))]).encode()
    return base64.urlsafe_b64encode(document).decode().rstrip("=")


def _place_of(cursor: str, rows: Sequence[Row], name: Callable[[Row], str]) -> int:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        end, wanted = json.loads(base64.urlsafe_b64decode(padded))
        if not (isinstance(end, int) and isinstance(wanted, int) and 0 < end <= LONG_MAX):
            raise ValueError(cursor)
    except (ValueError, TypeError, RecursionError):
        raise BadRequest("cursor: this is none that a page of this list has told") from None

    def is_it(at: int) -> bool:
        return zlib.crc32(name(rows[at]).encode("utf-8", "replace")) == wanted

    if end <= len(rows) and is_it(end - 1):
        return end
    # Rows before it have come or gone; or it has, and then nobody knows better.
    return next((at + 1 for at in range(len(rows)) if is_it(at)), min(end, len(rows)))


@dataclass(frozen=True, slots=True)
class Operation:
    """path: below ``/api/v1``, with the names of its parameters in braces. serve: returns what
    becomes JSON; raises Problem, ClientError. answer: the typed dictionary that it is. needs: the
    right that a user must have, in words.

    verb: of the command, such as "quota list", empty if it has none. positional: the parameters
    that it takes without an option, in order. asks: what is said before it is done, with values in
    braces; then the command asks, unless it has ``--force``.
    """

    method: str
    path: str
    summary: str
    serve: Callable[[CheckedRequest], Mapping[str, Any]]
    answer: type[Any]
    query: Sequence[Parameter] = ()
    body: Sequence[Parameter] = ()
    needs: str = ""
    verb: str = ""
    positional: Sequence[str] = ()
    asks: str = ""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Of the path, which are texts, of the query and of the body."""
        of_path = [
            Parameter(name, TEXT, f"The {name}.", required=True, names=name)
            for name in _IN_PATH.findall(self.path)
        ]
        return (*of_path, *self.query, *self.body)

    def values(self, path: Mapping[str, str], query: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """What path and query give. Raises BadRequest for what the operation does not take."""
        values: dict[str, Any] = dict(path)
        by_name = {each.name: each for each in self.query}
        for name, value in query:
            if name not in by_name:
                takes = ", ".join(by_name) or "no parameters"
                raise BadRequest(f"unknown parameter {name[:80]!r}; this path takes {takes}")
            if name in values:
                raise BadRequest(f"{name} is given twice")
            values[name] = by_name[name].read(value)
        return self._complete(values, self.query)

    def body_values(self, document: Any) -> dict[str, Any]:
        """What a JSON document gives. Raises BadRequest."""
        if not isinstance(document, dict):
            raise BadRequest("the body must be a JSON object")
        by_name = {each.name: each for each in self.body}
        values = {}
        for name, value in document.items():
            if name not in by_name:
                raise BadRequest(
                    f"unknown member {name[:80]!r} in the body; allowed: {', '.join(by_name)}"
                )
            if value is not None:
                values[name] = by_name[name].check(value)
        return self._complete(values, self.body)

    @staticmethod
    def _complete(values: dict[str, Any], rows: Sequence[Parameter]) -> dict[str, Any]:
        for each in rows:
            if each.name not in values:
                if each.required:
                    raise BadRequest(f"{each.name} is missing: {each.allowed}")
                values[each.name] = each.default
        return values
