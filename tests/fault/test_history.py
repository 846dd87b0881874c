"""The checker finds each anomaly: a test that never fails proves nothing."""

from __future__ import annotations

import pytest
from fault.history import History, parse_value, value_of

from kbroker.record.batch import Record

pytestmark = pytest.mark.fault

TOPIC = "t"


def record(offset: int, number: int, writer: str = "w", partition: int = 0) -> Record:
    return Record(offset, 0, None, value_of(writer, partition, number))


def history_of(*numbers: int, acked: dict[int, int], exact: bool = True) -> History:
    history = History()
    log = history.writer("w", TOPIC, exact=exact)
    for number in numbers:
        log.sent.append((0, number))
    for number, offset in acked.items():
        log.ack(0, number, offset)
    return history


def kinds(problems: list[str]) -> set[str]:
    return {problem.split(":")[0] for problem in problems}


def test_value_names_its_writer_and_detects_damage() -> None:
    value = value_of("writer", 3, 41, size=100)

    assert parse_value(value) == ("writer", 3, 41)
    assert parse_value(value[:-10] + b"x" + value[-9:]) is None
    assert parse_value(None) is None


def test_log_that_agrees_has_no_problems() -> None:
    history = history_of(0, 1, 2, acked={0: 0, 2: 1})
    reader = history.reader("r", TOPIC)
    reader.poll(0, 0, value_of("w", 0, 0))
    reader.poll(0, 1, value_of("w", 0, 2))

    assert history.check({(TOPIC, 0): [record(0, 0), record(1, 2)]}) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([record(0, 0)], {"lost-write"}),
        ([record(0, 1), record(1, 0)], {"inconsistent-offsets", "nonmonotonic-send"}),
        ([record(0, 0), record(1, 1), record(2, 1)], {"duplicate"}),
        ([record(0, 0), record(1, 1), record(3, 2)], {"gap"}),
        ([record(0, 0), record(1, 1), record(2, 9)], {"forged"}),
        ([record(0, 0), record(1, 1), record(2, 0, "stranger")], {"forged"}),
        ([record(0, 0), record(1, 1), Record(2, 0, None, b"junk")], {"forged"}),
        ([record(0, 0), record(1, 1), record(2, 2, partition=1)], {"forged"}),
    ],
)
def test_each_contradiction_of_the_log_is_found(log: list[Record], expected: set[str]) -> None:
    history = history_of(0, 1, 2, acked={0: 0, 1: 1})

    assert kinds(history.check({(TOPIC, 0): log})) == expected


def test_offset_promised_twice_is_found() -> None:
    history = history_of(0, 1, acked={0: 0, 1: 0}, exact=False)

    problems = history.check({(TOPIC, 0): [record(0, 0), record(1, 1)]})

    assert any("was promised to" in problem for problem in problems)


@pytest.mark.parametrize(
    ("polled", "expected"),
    [
        ([(0, 0), (0, 0)], {"nonmonotonic-poll"}),
        ([(0, 0), (2, 2)], {"poll-skip"}),
        ([(0, 1)], {"inconsistent-offsets"}),
        ([(3, 3)], {"phantom"}),
    ],
)
def test_each_contradiction_of_a_reader_is_found(
    polled: list[tuple[int, int]], expected: set[str]
) -> None:
    history = history_of(0, 1, 2, acked={})
    reader = history.reader("r", TOPIC)
    for offset, number in polled:
        reader.poll(0, offset, value_of("w", 0, number))

    found = history.check({(TOPIC, 0): [record(0, 0), record(1, 1), record(2, 2)]})

    assert kinds(found) == expected
