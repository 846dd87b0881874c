"""What the verbs of ``kbroker`` share: arguments, errors in one line, and how output looks."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from kbroker.wording import shown

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
_COLUMNS = 80  # where there is no terminal
FORMATS = ("table", "json", "yaml")
T = TypeVar("T")
# YAML reads some words as something other than text.
_PLAIN_YAML = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_NOT_ASCII = re.compile("[^ -~]")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


class Usage(Exception):
    """The command was called wrongly; exit code 2."""


class CommandFailed(Exception):
    """It could not do what it was told; exit code 1."""


class Exit(Exception):
    """It has said everything, and ends with this exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


class Action(NamedTuple):
    """One thing that a verb does. describe: adds its arguments."""

    title: str
    describe: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    epilog: str = ""

    def run_with(self, said: str, given: Sequence[str]) -> None:
        """Parse the arguments and run it. said: the words up to here.

        Raises Usage, CommandFailed, Exit.
        """
        self.run(self.parser(said).parse_all(given))

    def parser(self, said: str) -> CommandParser:
        """What parses its arguments."""
        parser = CommandParser(
            prog=said,
            description=self.title[:1].upper() + self.title[1:] + ".",
            epilog=self.epilog or None,
            formatter_class=Help,
            allow_abbrev=False,
        )
        self.describe(parser)
        return parser


def deferred(title: str, make: Callable[[], Action], epilog: str = "") -> Action:
    """An action whose modules are imported when it is called: other actions of its verb are as fast
    as without it.
    """
    return Action(
        title,
        lambda parser: make().describe(parser),
        lambda given: make().run(given),
        epilog,
    )


class Help(argparse.RawDescriptionHelpFormatter):
    """Without a width, argparse imports shutil with all compressions, for every parser."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size().columns
        except (OSError, ValueError):
            columns = 0
        super().__init__(prog, width=(columns or _COLUMNS) - 2)


class CommandParser(argparse.ArgumentParser):
    """Its errors are one line, and name the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise Usage(message)

    def parse_all(self, given: Sequence[str]) -> argparse.Namespace:
        """Raises Usage; an unknown option comes before what is missing."""
        options = {text for action in self._actions for text in action.option_strings}
        for text in given:
            if text == "--":
                break
            name = text.partition("=")[0]
            if name.startswith("--") and name not in options:
                raise Usage(self._unknown(name, options))
        parsed, extra = self.parse_known_args(given)
        if extra and not extra[0].startswith("-"):
            # Of positional arguments that may be none, it takes none if an option is in between.
            parsed, extra = self.parse_known_intermixed_args(given)
        if extra:
            raise Usage(self._unknown(extra[0], options))
        return parsed

    @staticmethod
    def _unknown(given: str, options: Iterable[str]) -> str:
        if not given.startswith("-"):
            return f"argument {given!r} is too much"
        # One letter is near to any other one.
        meant = nearest(given, options) if given.startswith("--") else None
        return f"unknown option {given}" + (f"; did you mean {meant}?" if meant else "")


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known word that is most like the given one."""
    import difflib  # only errors need it

    matches = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def agreed(what: Iterable[str], question: str) -> bool:
    """Ask on the terminal, after naming what is meant; anything but y or yes is a no."""
    for line in what:
        print(shown(line), file=sys.stderr)
    print(f"{question} (y/n) ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def from_environment(option: str, parse: Callable[[str], T], default: T) -> T:
    """The default of an option: the variable ``KBROKER_<OPTION>``, if it is set and not empty.

    parse: raises ArgumentTypeError for a wrong value. Raises Usage.
    """
    name = "KBROKER_" + option.strip("-").replace("-", "_").upper()
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        raise Usage(f"environment variable {name}: {error}") from None


def seconds_from(least: float, most: float) -> Callable[[str], float]:
    """For ``type=`` of an option that is a number of seconds."""

    def seconds(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:  # not a number is in no range
            allowed = f"a number of seconds from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return number

    return seconds


def add_format(parser: argparse.ArgumentParser) -> None:
    """``-o``."""
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        default=from_environment("--output", _format, "table"),
        help="how to print it: table, json or yaml (KBROKER_OUTPUT, or table)",
    )


def _format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(FORMATS)}")
    return text


# -- output


def printed(
    kind: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], empty: str = ""
) -> None:
    """Print rows in one of ``FORMATS``.

    columns: key in a row -> heading of the table. empty: the line for people if there are no rows.
    """
    if kind != "table":
        printed_document(kind, list(rows))
    elif not rows:
        print(empty)
    else:
        print(table_text(columns, rows))


def table_text(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns as wide as their content; names from elsewhere cannot move the cursor."""
    lines = [list(columns.values())]
    lines += [[shown(_cell(row[key])) for key in columns] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printed_document(kind: str, document: object) -> None:
    """Print nested lists and mappings as JSON or YAML."""
    import json

    print(
        json.dumps(document, indent=2, ensure_ascii=False)
        if kind == "json"
        else yaml_text(document)
    )


def yaml_text(document: object) -> str:
    """Nested lists and mappings of scalars."""
    return "\n".join(_yaml_lines(document))


def _yaml_lines(document: object) -> list[str]:
    """Lists of scalars are in one line, everything else has a line for each item."""
    if isinstance(document, Mapping) and document:
        lines = []
        for key, value in document.items():
            name = _yaml_value(key)
            if _is_nested(value):
                lines.append(f"{name}:")
                lines += [f"  {line}" for line in _yaml_lines(value)]
            else:
                lines.append(f"{name}: {_yaml_value(value)}")
        return lines
    if isinstance(document, list | tuple) and _is_nested(document):
        lines = []
        for item in document:
            first, *others = _yaml_lines(item)
            lines += [f"- {first}", *(f"  {line}" for line in others)]
        return lines
    return [_yaml_value(document)]


def _is_nested(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list | tuple) and any(
        isinstance(item, Mapping | list | tuple) for item in value
    )


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return "-" if value is None else str(value)


def _yaml_value(value: object) -> str:
    if isinstance(value, str) and _PLAIN_YAML.fullmatch(value):
        if value.lower() not in _YAML_WORDS:
            return value
    elif isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml_value, value)) + "]"
    elif isinstance(value, Mapping):
        return "{}"
    import json

    # Which is YAML, too, but for its pairs of escapes for one character.
    return _NOT_ASCII.sub(_yaml_escape, json.dumps(value, ensure_ascii=False))


def _yaml_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
