"""Options as Apache Kafka's tools read them (the rules of Java's joptsimple), and their usage text.

``--name value``, ``--name=value`` and ``-name value`` are the same; a required value is the next
word whatever it looks like; words without an option are left alone; names are never abbreviated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

_WIDTH, _GAP, _INDENT = 80, 2, 2
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_CLASSES = {str: "String", int: "Integer", float: "Double"}


class WrongUse(Exception):
    """Print this and the usage text on stderr; exit code 1."""


class ToolOptionError(Exception):
    """What is given cannot be read as options; in the words of joptsimple."""


class Option(NamedTuple):
    """argument: what the value is, empty for a flag. kind: of the value. optional: the value may be
    left out. default: in words of the command line. needs: it is only available beside one of
    these. long: an int of 64 bits. separator: between several values in one word.
    """

    name: str
    text: str
    argument: str | None = None
    kind: type = str
    optional: bool = False
    default: str | None = None
    needs: tuple[str, ...] = ()
    required: bool = False
    long: bool = False
    separator: str = ""


def flag(name: str, text: str, needs: tuple[str, ...] = ()) -> Option:
    """An option without a value."""
    return Option(name, text, needs=needs)


def valued(name: str, argument: str, text: str, **more: Any) -> Option:
    """An option with a value. argument: what it is, in the usage text; may be empty."""
    return Option(name, text, argument, **more)


HELP = flag("help", "Print this text.")
VERSION = flag("version", "Print the version.")


class Given:
    """What was given for some options.

    words: of the command line. Raises ToolOptionError.
    """

    def __init__(self, options: Sequence[Option], words: Sequence[str]) -> None:
        self.known = {option.name: option for option in options}
        self.words = list(words)
        self.rest: list[str] = []
        # The names of what is given, in its order.
        self.order: list[str] = []
        self._values: dict[str, list[str]] = {}
        self._read()
        self._check()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def all(self, name: str) -> list[Any]:
        """All its values, in order; the default if there are none. Raises ToolOptionError for what
        is not of its kind: joptsimple does not notice before.
        """
        option = self.known[name]
        texts = self._values.get(name) or ([] if option.default is None else [option.default])
        return [self._typed(option, text) for text in texts]

    def one(self, name: str) -> Any:
        """Its value, its default or None. Raises ToolOptionError if there are several."""
        values = self.all(name)
        if len(values) > 1:
            raise ToolOptionError(
                f"Found multiple arguments for option {name}, but you asked for only one"
            )
        return values[0] if values else None

    def require(self, *names: str) -> None:
        """Raises WrongUse."""
        for name in names:
            if name not in self:
                raise WrongUse(f'Missing required argument "[{name}]"')

    def exclude(self, name: str, others: Iterable[str]) -> None:
        """These others cannot be beside it. Raises WrongUse."""
        for other in others if name in self else ():
            if other in self:
                raise WrongUse(f'Option "[{name}]" can\'t be used with option "[{other}]"')

    def count(self, names: Collection[str]) -> int:
        """How many of these are given."""
        return sum(name in self for name in names)

    # -- reading

    def _meant(self, name: str) -> str:
        from kbroker.cli.arguments import nearest  # only errors need it

        meant = nearest(name, self.known)
        return f"; did you mean --{meant}?" if meant else ""

    def _read(self) -> None:
        words = iter(range(len(self.words)))
        for at in words:
            word = self.words[at]
            if word == "--":
                self.rest += self.words[at + 1 :]
                return
            if not word.startswith("-") or word == "-":
                self.rest.append(word)
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("---") or name not in self.known:
                raise ToolOptionError(f"{name} is not a recognized option{self._meant(name)}")
            option = self.known[name]
            values = self._values.setdefault(name, [])
            self.order.append(name)
            if option.argument is None:
                if equals:
                    raise ToolOptionError(f"{name} is not a recognized option")
                continue
            if not equals:
                following = self.words[at + 1] if at + 1 < len(self.words) else None
                if following is None or (option.optional and self._is_option(option, following)):
                    if option.optional:
                        continue
                    raise ToolOptionError(f"Option {name} requires an argument")
                value = following
                next(words)
            parts = value.split(option.separator) if option.separator else [value]
            values += parts

    @staticmethod
    def _is_option(option: Option, word: str) -> bool:
        """Whether it is no value of the option before it: a negative number may be one."""
        is_number = option.kind is not str and word[1:].isdecimal()
        return word.startswith("-") and word != "-" and not is_number

    def _check(self) -> None:
        if "help" in self or "version" in self:
            return
        for option in self.known.values():
            if option.required and option.name not in self:
                raise ToolOptionError(f"Missing required option(s) [{option.name}]")
        lost = [
            name
            for name in self._values
            if self.known[name].needs and not self.count(self.known[name].needs)
        ]
        if lost:
            raise ToolOptionError(
                f"Option(s) [{lost[0]}] are unavailable given other options on the command line"
            )

    @staticmethod
    def _typed(option: Option, text: str) -> Any:
        if option.kind is str:
            return text
        most = _LONG_MAX if option.long else _INT_MAX
        try:
            if option.kind is float:
                return float(text)
            if not text.lstrip("+-").isdecimal() or not -most - 1 <= int(text) <= most:
                raise ValueError(text)
            return int(text)
        except ValueError:
            raise ToolOptionError(
                f"Cannot parse argument '{text}' of option {option.name}"
            ) from None


# -- usage


def usage(options: Iterable[Option]) -> str:
    """All options in two columns, as joptsimple lays them out in 80."""
    known = sorted(options, key=lambda option: option.name)
    title = "Option (* = required)" if any(option.required for option in known) else "Option"
    rows = [(title, "Description"), ("-" * len(title), "-----------")]
    rows += [(_heading(option), _description(option)) for option in known]
    left = min((_WIDTH - _GAP) // 2, max(len(row[0]) for row in rows))
    right = min(_WIDTH - left - _GAP, max(len(row[1]) for row in rows))
    fitted = []
    for heading, text in rows:
        pieces = _pieces(heading, left), _pieces(text, right)
        for at in range(max(map(len, pieces))):
            fitted.append([column[at] if at < len(column) else "" for column in pieces])
    left, right = (max(len(row[at]) for row in fitted) for at in (0, 1))
    lines = [f"{first:<{left}}{' ' * _GAP}{second:<{right}}" for first, second in fitted]
    return "\n".join(lines)


def _heading(option: Option) -> str:
    text = ("* " if option.required else "") + f"--{option.name}"
    if option.argument is None:
        return text
    kind = "Long" if option.long else _CLASSES[option.kind]
    inside = f"{kind}: {option.argument}" if option.argument else kind
    return text + (f" [{inside}]" if option.optional else f" <{inside}>")


def _description(option: Option) -> str:
    return option.text + (f" (default: {option.default})" if option.default is not None else "")


def _pieces(text: str, width: int) -> list[str]:
    lines = []
    for given in text.split("\n"):
        line = ""
        for word in _words(given):
            if len(line) + len(word) > width and line:
                lines.append(line.rstrip())
                line = " " * _INDENT
            line += word
        lines.append(line.rstrip())
    return lines


def _words(text: str) -> list[str]:
    """The text in parts after which a line may break: spaces, and dashes, commas, colons and dots
    inside words.
    """
    words, start = [], 0
    for at in range(1, len(text)):
        before, here = text[at - 1], text[at]
        dashed = before in "-,:." and here.isalpha() and at - start > 1 and text[at - 2].isalnum()
        if here != " " and (before == " " or dashed):
            words.append(text[start:at])
            start = at
    return [*words, text[start:]]


Check = Callable[[Given], None]
