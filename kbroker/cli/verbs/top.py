"""``kbroker top``: what the broker on this machine does, live."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kbroker.cli.arguments import FORMATS, Action, printed_document
from kbroker.descriptors import readable

_EPILOG = """\
It looks into the memory that the broker's processes share, and asks them nothing, so it works while
the broker is stuck. Only groups are asked of the exporter. q ends it. Another user needs the group
of shared.memory.group, another container the broker's /dev/shm. What a killed broker has left there
is named.

A process is "stuck" if it says that it serves, but has not shown a sign of life for five seconds.
In other output than a terminal, each round is printed below the last one."""
_CLEAR, _ENTER, _LEAVE = "\x1b[H\x1b[J", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def _describe(parser: argparse.ArgumentParser) -> None:
    add_choice(parser)
    parser.add_argument(
        "-d", "--delay", type=_seconds, default=2.0, metavar="SECONDS",
        help="time from one round to the next (2)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--rounds", type=_count, default=0, metavar="N",
        help="end after so many rounds (0: never)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="table",
        help="table, or a JSON or YAML document for each round",
    )  # fmt: skip


def add_choice(parser: argparse.ArgumentParser) -> None:
    """``--pid`` and ``--address``, for ``cli.local.choice``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pid", type=_count, metavar="PID",
        help="the broker's supervisor, if several brokers run on this machine",
    )  # fmt: skip
    which.add_argument(
        "--address", type=_address, metavar="HOST:PORT",
        help="an address, or just the port, on which that broker listens",
    )  # fmt: skip


def _address(text: str) -> tuple[str, int]:
    from kbroker.cli.local.choice import parsed_address

    return parsed_address(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def one_board(found: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Look twice. Raises Usage, Failed."""
    from kbroker.cli.local.board import board, look
    from kbroker.cli.local.choice import chosen_broker
    from kbroker.cli.local.groups import groups

    broker = chosen_broker(found)
    before = look(broker)
    time.sleep(seconds)
    document = board(broker, before, look(broker))
    document["groups"] = groups(broker)
    return document


def _top(found: argparse.Namespace) -> None:
    from kbroker.cli.local.board import board, look
    from kbroker.cli.local.choice import chosen_broker
    from kbroker.cli.local.groups import groups
    from kbroker.cli.local.runs import left_behind
    from kbroker.cli.local.tables import board_text

    broker = chosen_broker(found)
    for line in left_behind():
        print(line, file=sys.stderr)
    rounds, before = 0, look(broker)
    with _screen(found.output) as screen:
        screen.wait(min(found.delay, 0.5))
        while broker.is_running and not screen.is_left:
            now = look(broker)
            document = board(broker, before, now)
            document["groups"] = groups(broker)
            if found.output == "yaml":
                print("---")
            if found.output != "table":
                printed_document(found.output, document)
            else:
                screen.show(board_text(document, screen.lines()))
            sys.stdout.flush()
            before, rounds = now, rounds + 1
            if rounds == found.rounds:
                return
            screen.wait(found.delay)
    if not screen.is_left:
        print("the broker has ended", file=sys.stderr)


class _Screen:
    """keys: the terminal's descriptor, to see q; -1 if there is none."""

    def __init__(self, is_live: bool, keys: int) -> None:
        self._is_live = is_live
        self._keys = keys
        self.is_left = False

    def lines(self) -> int | None:
        return _size()[1] if self._is_live else None

    def show(self, text: str) -> None:
        if self._is_live:
            columns, lines = _size()
            rows = [line[:columns] for line in text.splitlines()[: lines - 1]]
            text = _CLEAR + "\n".join(rows)
        print(text)

    def wait(self, seconds: float) -> None:
        """Until the next round, or a key."""
        until = time.monotonic() + seconds
        while not self.is_left and (left := until - time.monotonic()) > 0:
            if self._keys < 0:
                time.sleep(left)
            elif readable([self._keys], left):
                self.is_left = os.read(self._keys, 64).lower()[:1] in (b"q", b"\x03", b"")


def _size() -> tuple[int, int]:
    """Columns and lines; a terminal may not know."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.columns or 80, size.lines or 24


@contextmanager
def _screen(output: str) -> Iterator[_Screen]:
    """The terminal in the mode for it, or any other output as it is."""
    is_live = output == "table" and sys.stdout.isatty() and sys.stdin.isatty()
    if not is_live:
        yield _Screen(False, -1)
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        sys.stdout.write(_ENTER)
        yield _Screen(True, keys)
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


ACTION = Action("watch the processes, topics, clients and groups of a broker", _describe, _top,
                _EPILOG)  # fmt: skip
