"""``kbroker top``: what the broker on this machine does, live."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kbroker.cli.arguments import FORMATS, Action, printed_document, seconds_from

_EPILOG = """\
It looks into the memory that the broker's processes share, and asks them nothing, so it works while
the broker is stuck. Only groups are asked of the exporter. Another user needs the group of
shared.memory.group, another container the broker's /dev/shm. What a killed broker has left there is
named.

In a terminal, p, t, g, c and r show one list alone (processes, topics, groups, clients, requests),
and a all of them; < and > choose the column to sort by, i inverts the order, / filters by names; b
goes to the next broker where several run here; q ends it.

A process is "stuck" if it says that it serves, but has not shown a sign of life for five seconds.
In other output than a terminal, each round is printed below the last one."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# The first rates are those of so long.
FIRST_S = 0.5


def _describe(parser: argparse.ArgumentParser) -> None:
    add_choice(parser)
    parser.add_argument(
        "-d", "--delay", type=seconds_from(0.1, 3600), default=2.0, metavar="SECONDS",
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


def one_board(options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Look twice. Raises Usage, Failed."""
    from kbroker.cli.local.board import look, look_again
    from kbroker.cli.local.choice import chosen_broker

    broker = chosen_broker(options)
    return look_again(broker, look(broker), seconds)[1]


def _top(options: argparse.Namespace) -> None:
    from kbroker.cli.local.runs import left_behind

    if options.output == "table" and sys.stdout.isatty() and sys.stdin.isatty():
        _top_live(options)
        return
    from kbroker.cli.local.board import look, look_again
    from kbroker.cli.local.choice import chosen_broker
    from kbroker.cli.local.tables import board_text

    broker = chosen_broker(options)
    for line in left_behind():
        print(line, file=sys.stderr)
    rounds, before = 0, look(broker)
    time.sleep(min(options.delay, FIRST_S))
    while broker.is_running:
        now, document = look_again(broker, before)
        if options.output == "yaml":
            print("---")
        if options.output != "table":
            printed_document(options.output, document)
        else:
            print(board_text(document))
        sys.stdout.flush()
        before, rounds = now, rounds + 1
        if rounds == options.rounds:
            return
        time.sleep(options.delay)
    print("the broker has ended", file=sys.stderr)


def _top_live(options: argparse.Namespace) -> None:
    """In a terminal, with keys."""
    from kbroker.cli.local.choice import chosen_run
    from kbroker.cli.local.live import Live
    from kbroker.cli.local.runs import running

    runs = running()
    if options.pid is not None or options.address is not None or len(runs) < 2:
        runs = [chosen_run(options)]
    with _terminal() as keys:
        has_ended = Live(runs, keys, sys.stdout.fileno(), options.delay, options.rounds).run()
    if has_ended:
        print("the broker has ended", file=sys.stderr)


@contextmanager
def _terminal() -> Iterator[int]:
    """The terminal in the mode for it; yields the descriptor of its keys."""
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        yield keys
    except KeyboardInterrupt:
        pass  # how people end it
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


ACTION = Action("watch the processes, topics, clients and groups of a broker", _describe, _top,
                _EPILOG)  # fmt: skip
