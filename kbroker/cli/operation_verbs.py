"""The verbs of operations: arguments, documents and completion follow from their rows.

``-o json`` prints what the API answers. What people see is a table of the rows in it, or what the
module of the verb makes of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

from kbroker.cli.arguments import (
    Action,
    CommandFailed,
    Usage,
    add_format,
    agreed,
    printed_document,
    table_text,
)
from kbroker.cli.connecting import add_connection, connected
from kbroker.cli.times import time_ms
from kbroker.console.operation import (
    BYTES,
    FLAG,
    INTEGER,
    INTEGERS,
    LONG_MAX,
    SETTINGS,
    TEXTS,
    TIME,
    Operation,
    Parameter,
    asked_by_command,
)
from kbroker.console.problems import BadRequest, Problem
from kbroker.quantities import size_bytes

# A command shows all rows.
_PAGING: Mapping[str, Any] = {"limit": LONG_MAX, "skip": 0, "cursor": ""}


class VerbView(NamedTuple):
    """What a verb adds to its row. text: of a document, for people. epilog: of its help."""

    text: Callable[[Any], str] | None = None
    epilog: str = ""


def actions_of(
    rows: Iterable[Operation], views: Mapping[str, VerbView] | None = None
) -> dict[str, Action]:
    """The actions of a verb: those of its rows that have one. views: by action."""
    actions = {}
    for row in rows:
        if row.verb:
            name = row.verb.partition(" ")[2]
            actions[name] = _action(row, (views or {}).get(name, VerbView()))
    return actions


def _action(row: Operation, view: VerbView) -> Action:
    def run(given: argparse.Namespace) -> None:
        _run(row, view, given)

    def describe(parser: argparse.ArgumentParser) -> None:
        _describe(row, parser)

    return Action(row.summary[:1].lower() + row.summary[1:], describe, run, view.epilog)


# -- arguments


def _describe(row: Operation, parser: argparse.ArgumentParser) -> None:
    by_name = {each.name: each for each in row.parameters if each.name not in _PAGING}
    for name in row.positional:
        _add_positional(parser, by_name[name])
    for name, each in by_name.items():
        if name not in row.positional:
            _add_option(parser, each)
        if each.kind == SETTINGS:
            parser.add_argument(
                "--unset", action="append", default=[], metavar="NAME",
                help="what has no value of its own any more; may be repeated",
            )  # fmt: skip
    if row.asks:
        parser.add_argument("--force", action="store_true", help="do not ask")
    add_format(parser)
    add_connection(parser)


def _add_positional(parser: argparse.ArgumentParser, each: Parameter) -> None:
    count: str | None = None if each.required else "?"
    if each.kind in (INTEGERS, TEXTS, SETTINGS):
        count = "+" if each.required and each.kind != SETTINGS else "*"
    parser.add_argument(
        each.name, nargs=count, type=_type(each), metavar=_metavar(each), help=_help(each),
        default=argparse.SUPPRESS if count is None else None,
    )  # fmt: skip


def _add_option(parser: argparse.ArgumentParser, each: Parameter) -> None:
    if each.name == "dry_run":
        option = "--execute" if each.default else "--dry-run"
        text = "do it" if each.default else "only check whether it could"
        parser.add_argument(option, dest="dry_run_turned", action="store_true", help=text)
        return
    options = [f"-{each.letter}"] if each.letter else []
    options.append(f"--{_option(each)}")
    if each.kind == FLAG:
        parser.add_argument(*options, dest=each.name, action="store_true", help=_help(each))
        return
    repeated = each.kind in (INTEGERS, TEXTS)
    more = "; may be repeated" if repeated else ""
    parser.add_argument(
        *options,
        dest=each.name,
        action="append" if repeated else "store",
        type=_type(each),
        choices=each.one_of or None,
        required=each.required,
        metavar=None if each.one_of else _metavar(each),
        help=_help(each) + more,
    )


def _option(each: Parameter) -> str:
    """One of several is named by an option that may be repeated."""
    name = each.name.replace("_", "-")
    return name.removesuffix("s") if each.kind in (INTEGERS, TEXTS) else name


def _help(each: Parameter) -> str:
    text = each.text.removesuffix(".")
    return (text[:1].lower() + text[1:]).replace("%", "%%")


def _metavar(each: Parameter) -> str:
    if each.names:
        return each.names.upper()
    kinds = {INTEGER: "N", INTEGERS: "N", BYTES: "BYTES", TIME: "TIME", SETTINGS: "NAME=VALUE"}
    return kinds.get(each.kind, "TEXT")


def _type(each: Parameter) -> Callable[[str], Any]:
    """Reads one argument; a list is as many."""
    if each.kind == SETTINGS:
        return _pair
    if each.kind == BYTES:
        return _bytes
    if each.kind == TIME:
        return time_ms

    single = replace(each, kind=INTEGER) if each.kind == INTEGERS else each

    def read(text: str) -> Any:
        try:
            return single.read(text)
        except BadRequest:
            raise argparse.ArgumentTypeError(f"{text!r} is not {single.allowed}") from None

    def read_text(text: str) -> str:
        if len(text) > each.length_max:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}... is not {each.allowed}")
        return text

    return read_text if each.kind == TEXTS else read


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, value


def _bytes(text: str) -> int:
    """``50MB``, ``10MiB``, ``1000000``; also a second."""
    size = size_bytes(text.strip().removesuffix("/s"))
    if size is None or size > LONG_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 50MB, or 50MiB")
    return size


# -- what is done


def _run(row: Operation, view: VerbView, given: argparse.Namespace) -> None:
    values = _values(row, given)
    # Wrong values are said before anything is asked or reached.
    if row.asks and not values.get("dry_run") and not given.force:
        _ask(row, values)
    with connected(given) as cluster:
        try:
            document = row.serve(asked_by_command(cluster, values))
        except BadRequest as error:
            raise Usage(_in_options(row, str(error))) from error
        except Problem as error:
            raise CommandFailed(str(error)) from error
    if given.output != "table":
        printed_document(given.output, document)
    else:
        print(view.text(document) if view.text is not None else _table(row, document))
    if any(each.name == "dry_run" and each.default for each in row.body) and values["dry_run"]:
        print("nothing was changed; add --execute to do it", file=sys.stderr)


def _in_options(row: Operation, text: str) -> str:
    """A message about parameters, which are options here."""
    for each in row.parameters:
        if "_" in each.name and each.name not in row.positional:
            text = text.replace(each.name, f"--{_option(each)}")
    return text


def _values(row: Operation, given: argparse.Namespace) -> dict[str, Any]:
    """The values of the row. Raises Usage."""
    values: dict[str, Any] = {}
    for each in row.parameters:
        value = _PAGING.get(each.name, getattr(given, each.name, None))
        if each.name == "dry_run":
            value = each.default != given.dry_run_turned
        elif each.kind == SETTINGS:
            value = {**dict(value or ()), **dict.fromkeys(given.unset)}
            if not value and each.required:
                raise Usage("nothing to set: write NAME=VALUE, or --unset NAME")
        if value is None or value == []:
            value = each.default
        values[each.name] = value
    return values


def _ask(row: Operation, values: Mapping[str, Any]) -> None:
    """Raises Usage without a terminal, CommandFailed for a no."""
    if not sys.stdin.isatty():
        raise Usage("add --force to do it without being asked")
    if not agreed([row.asks.format(**values)], "Do it?"):
        raise CommandFailed("nothing was changed")


# -- what is shown


def _table(row: Operation, document: Mapping[str, Any]) -> str:
    """The rows of the first list in a document; one that has none, as names and values."""
    for name, kind in get_type_hints(row.answer).items():
        of = get_args(kind)[:1]
        if get_origin(kind) is list and is_typeddict(of[0]):
            rows = document[name]
            columns = {key: _heading(key) for key in get_type_hints(of[0])}
            return (
                table_text(columns, list(map(_flat, rows)))
                if rows
                else f"no {_heading(name).lower()}"
            )
    return "\n".join(
        f"{_heading(name).lower()}: {_flat_value(value)}" for name, value in document.items()
    )


def _heading(name: str) -> str:
    return name.replace("_", " ").upper()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _flat_value(value) for name, value in row.items()}


def _flat_value(value: Any) -> Any:
    """Members of a mapping as NAME=VALUE."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return value
