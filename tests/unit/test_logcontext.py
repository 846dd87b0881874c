"""Log lines and rate limits."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import kbroker
from kbroker.logcontext import (
    LIMITER_KEYS_MAX,
    OBJECT_CHARS_MAX,
    LineFormatter,
    LineHandler,
    RateLimit,
    Whole,
    setup,
    together,
)

pytestmark = pytest.mark.unit


def record(text: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("kbroker.x", logging.WARNING, "f", 1, text, arguments, exc_info)  # type: ignore[arg-type]


def test_line_has_time_level_process_and_message() -> None:
    line = LineFormatter("io-0").format(record("%d of %s", 1, "two"))

    time, rest = line[:23], line[23:]
    assert len(time.split()) == 2
    assert rest == " WARNING [io-0] 1 of two"


def test_lines_after_the_first_are_indented() -> None:
    """A line without a timestamp belongs to the previous one, so lines cannot be forged."""
    try:
        raise ValueError("x\n2026-01-01 00:00:00.000 ERROR [io-0] forged")
    except ValueError as error:
        line = LineFormatter("io-0").format(
            record("failed", exc_info=(type(error), error, error.__traceback__))
        )

    assert all(text.startswith("    ") for text in line.split("\n")[1:])
    assert "Traceback" in line


def test_repeats_are_counted_until_the_interval_has_passed() -> None:
    now = 0.0
    limit = RateLimit(10.0, clock=lambda: now)

    counts = [limit.due("a"), limit.due("a"), limit.due("a")]
    now = 10.0
    counts.append(limit.due("a"))
    counts.append(limit.due("b"))

    assert counts == [1, 0, 0, 3, 1]


def test_keys_are_bounded() -> None:
    limit = RateLimit(10.0, clock=lambda: 0.0)

    for number in range(LIMITER_KEYS_MAX + 5):
        assert limit.due(number) == 1

    assert len(limit._seen) == LIMITER_KEYS_MAX


FORGED = "2026-01-01 00:00:00.000 ERROR [io-0] forged"
UNSAFE = [
    "\n", "\r", "\0", "\x1b[2J", "\x7f", "\x85", "\x9b", "\u061c", "\u200e", "\u200f", "\u2028",
    "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\udc80", "\ufeff",
]  # fmt: skip


class Named:
    """An object whose text comes from a client."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Named({self.name})"


@pytest.mark.parametrize("unsafe", UNSAFE, ids=ascii)
def test_no_argument_leaves_its_line_or_turns_it(unsafe: str) -> None:
    name = f"a{unsafe}{FORGED}"
    arguments = (name, name, ValueError(name), [name], Named(name), Named(name))

    line = LineFormatter("io-0").format(record("%s %r %s %s %s %r", *arguments))

    assert line.isprintable()
    assert line.encode()
    assert line.count("forged") == 6


def test_mapping_of_arguments_is_safe_too() -> None:
    line = LineFormatter("io-0").format(
        record("%(name)s has %(count)d", {"name": "\x1b", "count": 2})
    )

    assert line.endswith(r"\x1b has 2")


def test_traceback_moves_no_cursor() -> None:
    try:
        raise ValueError("\x1b[2J\r" + FORGED)
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
        line = LineFormatter("io-0").format(record("failed", exc_info=info))

    assert all(part.isprintable() for part in line.split("\n"))


@pytest.mark.parametrize("text", ["x" * 257, "\u202e" * 257], ids=["letters", "marks"])
def test_long_argument_is_cut(text: str) -> None:
    """A group id may have 32,767 bytes, a config value too, and each rebalance logs it."""
    line = LineFormatter("io-0").format(record("group %s: empty", text))

    assert line.endswith("... (257 characters): empty")
    assert len(line) < 256 * len(r"\\u202e") + 100


def test_argument_that_is_not_too_long_is_whole() -> None:
    assert LineFormatter("io-0").format(record("%s", "x" * 256)).endswith("x" * 256)


def test_long_words_of_an_exception_are_cut_later() -> None:
    line = LineFormatter("io-0").format(record("failed: %s", ValueError("x" * 100_000)))

    assert OBJECT_CHARS_MAX < len(line) < OBJECT_CHARS_MAX + 200


def test_text_of_the_brokers_own_is_whole_and_safe() -> None:
    line = LineFormatter("io-0").format(record("changed: %s", Whole("log.dirs, " * 100 + "\x1b")))

    assert line.endswith("log.dirs, " * 100 + r"\x1b")


def test_numbers_are_formatted_as_such() -> None:
    line = LineFormatter("io-0").format(record("%d %5.1f %s %s %04d", 1, 2.25, None, True, 7))

    assert line.endswith("1   2.2 None True 0007")


def test_lines_of_many_partitions_are_written_in_few_pieces_that_a_pipe_keeps_whole() -> None:
    handler, log = LineHandler(), logging.getLogger("kbroker.of_many")
    written: list[str] = []
    handler.setStream(SimpleNamespace(write=written.append, flush=lambda: None))
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers[:] = [handler]
    try:
        with pytest.raises(ValueError, match="wrong"), together():
            for number in range(200):
                log.warning("t-%d has another leader, and why is said here", number)
            assert written == []
            raise ValueError("something is wrong")
        log.warning("after it")
    finally:
        root.handlers[:] = before

    *pieces, last = written
    lines = "".join(pieces).splitlines()
    assert lines == [f"t-{n} has another leader, and why is said here" for n in range(200)]
    assert 3 <= len(pieces) < 6 and all(len(one) < 4096 for one in pieces)
    assert last == "after it\n"


def test_every_line_of_the_broker_goes_through_this_formatter() -> None:
    """Another handler would write client data to the log unchanged."""
    package = Path(kbroker.__file__).parent
    # Commands and libraries, not the broker's processes.
    others = ("cli", "spark", "client", "legacy", "logtool", "testing")
    makers = re.compile(r"(Stream|File)Handler[(\[]|addHandler|basicConfig|lastResort")

    found = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in others and makers.search(path.read_text())
    ]

    # kazoo has its own logger, whose errors are forwarded.
    assert sorted(found) == ["logcontext.py", "metastore/zookeeper_client.py"]
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        setup("io-0")
        assert [type(handler.formatter) for handler in root.handlers] == [LineFormatter]
    finally:
        root.handlers[:], root.level = before
