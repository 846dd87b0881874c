"""Tools whose options Kafka reads with argparse4j, the Java form of argparse: subcommands, short
names, ``error:`` lines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

WIDTH = 100


class ToolParser(argparse.ArgumentParser):
    """Exit code 1 for wrong use; names are never abbreviated."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("formatter_class", _Help)
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: error: {message}\n")


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)


class ParsedTool(NamedTuple):
    """build: makes the parser, without ``--version``. run: does the work; returns the exit code,
    None for 0. alone: the exit code without any words, when the whole help is printed. help_code:
    the exit code of ``--help``.
    """

    build: Callable[[], ToolParser]
    run: Callable[[argparse.Namespace], int | None]
    alone: int = 1
    help_code: int = 0

    def main(self, words: Sequence[str]) -> int:
        """Run it with these words of the command line; returns the exit code."""
        from kbroker.cli.kafka.running import guarded

        parsed = self._parse(words)
        return parsed if isinstance(parsed, int) else guarded(lambda: self.run(parsed))

    def _parse(self, words: Sequence[str]) -> argparse.Namespace | int:
        """What is given, or the exit code if there is nothing more to do."""
        from kbroker.cli.kafka.running import version_text

        parser = self.build()
        parser.add_argument("--version", "-v", action="store_true", help="print the version")
        if not words:
            parser.print_help(None if self.alone == 0 else sys.stderr)
            return self.alone
        if "--version" in words or "-v" in words:
            print(version_text())
            return 0
        try:
            return parser.parse_args(words)
        except SystemExit as end:
            sys.stdout.flush()
            return 1 if end.code else self.help_code


def whole(least: int, most: int) -> Callable[[str], int]:
    """A number in a range, as a type of argparse."""

    def read(text: str) -> int:
        if not text.lstrip("-").isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"could not convert '{text}' to a number")
        return int(text)

    return read


INT = whole(-(1 << 31), (1 << 31) - 1)
LONG = whole(-(1 << 63), (1 << 63) - 1)
SHORT = whole(-(1 << 15), (1 << 15) - 1)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest text, each with a tab behind."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    return "\n".join(
        "".join(f"{text:<{width}}\t" for text, width in zip(row, widths, strict=True))
        for row in (headers, *rows)
    )
