"""The checker finds each anomaly: a test that never fails proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.faults.history import (
    ABORTED,
    COMMITTED,
    MARKER,
    OPEN,
    PLAIN,
    Entry,
    History,
    LoggedRecord,
    Producer,
    check_chain,
    entries_of,
    logged,
    parse_value,
    value_of,
)
from support.faults.producer_record import EpochBegin

from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.fault

TOPIC = "t"


def record(
    offset: int, number: int, writer: str = "w", partition: int = 0, by: Producer = (-1, -1)
) -> LoggedRecord:
    return LoggedRecord(offset, value_of(writer, partition, number), by)


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
        ([record(0, 0), record(1, 1), LoggedRecord(2, b"junk")], {"forged"}),
        ([record(0, 0), record(1, 1), record(2, 2, partition=1)], {"forged"}),
    ],
)
def test_each_contradiction_of_the_log_is_found(
    log: list[LoggedRecord], expected: set[str]
) -> None:
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


# -- what librdkafka repeats by itself

GAVE_UP = "1 message(s) timed out on t [0]"
TOLD = "skipped sequence numbers"


@pytest.mark.parametrize(
    ("copies", "reasons", "acked_at", "is_excused"),
    [
        pytest.param([(7, 0), (7, 1)], [(GAVE_UP,)], None, True, id="gave-up-another"),
        pytest.param([(7, 0), (7, 1)], [(GAVE_UP,)], 6.0, True, id="acknowledged-after-it"),
        pytest.param([(7, 0), (7, 2)], [(GAVE_UP,), (GAVE_UP,) * 2], None, True, id="two-epochs"),
        pytest.param([(7, 0), (7, 0)], [(GAVE_UP,)], None, False, id="same-epoch"),
        pytest.param([(7, 1), (7, 0)], [(GAVE_UP,)], None, False, id="earlier-epoch"),
        pytest.param([(7, 0), (8, 1)], [(GAVE_UP,)], None, False, id="another-producer"),
        pytest.param([(7, 0), (7, 1)], [(GAVE_UP,)], 4.0, False, id="acknowledged-before-it"),
        pytest.param([(7, 0), (7, 1)], [(TOLD,)], None, False, id="for-an-error"),
        pytest.param([(7, 0), (7, 1)], [(GAVE_UP, TOLD)], None, False, id="for-both"),
        pytest.param([(7, 0), (7, 2)], [(GAVE_UP,), (TOLD,)], None, False, id="one-for-an-error"),
        pytest.param([(7, 0), (7, 1)], [()], None, False, id="for-no-known-reason"),
        pytest.param([(7, 0), (7, 1)], [], None, False, id="unknown-epoch"),
        pytest.param([(7, 0), (7, 1), (7, 1)], [(GAVE_UP,)], None, False, id="a-third-copy"),
    ],
)
def test_only_copies_of_epochs_for_records_given_up_are_excused(
    copies: list[Producer],
    reasons: list[tuple[str, ...]],
    acked_at: float | None,
    is_excused: bool,
) -> None:
    history = history_of(0, acked={})
    writer = history.writers["w"]
    if acked_at is not None:
        writer.acked.append((acked_at, 0, 0, len(copies) - 1))
    writer.epochs += [
        EpochBegin(5.0, (copies[0][0], number), why) for number, why in enumerate(reasons, start=1)
    ]

    log = [record(offset, 0, by=producer) for offset, producer in enumerate(copies)]

    assert kinds(history.check({(TOPIC, 0): log})) == (set() if is_excused else {"duplicate"})


def test_records_are_read_with_the_producers_of_their_batches() -> None:
    builder = BatchBuilder(base_offset=4, producer_id=7, producer_epoch=3, base_sequence=0)
    builder.append(b"a")
    builder.append(b"b")

    assert logged([RecordBatch(builder.build())], 5) == [LoggedRecord(5, b"b", (7, 3))]


# -- transactions


def entry(offset: int, fate: str = COMMITTED, attempt: int = 0, number: int = -1) -> Entry:
    value = value_of("w", 0, offset if number < 0 else number)
    return Entry(offset, b"t|%d" % attempt, value, fate)


def history_of_attempt(outcome: str, **writes: int) -> History:
    history = History()
    attempt = history.transactor("t").begin()
    attempt.outcome = outcome
    for topic, count in writes.items():
        attempt.wrote(topic, 0, count)
    return history


def test_markers_decide_the_fates_of_entries() -> None:
    def batch(offset: int, producer_id: int, **options: Any) -> RecordBatch:
        builder = BatchBuilder(
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            **options,
        )
        builder.append(b"v", key=b"k")
        return RecordBatch(builder.build())

    def marker(offset: int, producer_id: int, kind: bytes) -> RecordBatch:
        builder = BatchBuilder(
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1,
            transactional=True,
            control=True,
        )
        builder.append(b"\0\0\0\0\0\0", key=kind)
        return RecordBatch(builder.build())

    batches = [
        batch(0, 7, transactional=True),
        batch(1, 8, transactional=True),
        batch(2, 9),
        marker(3, 7, b"\0\0\0\1"),
        marker(4, 8, b"\0\0\0\0"),
        batch(5, 7, transactional=True),
    ]

    fates = [found.fate for found in entries_of(batches)]

    assert fates == [COMMITTED, ABORTED, PLAIN, MARKER, MARKER, OPEN]


@pytest.mark.parametrize(
    ("outcome", "log", "expected"),
    [
        ("committed", {"a": [entry(0), entry(1)], "b": [entry(0)]}, set()),
        ("unknown", {"a": [entry(0), entry(1)], "b": [entry(0)]}, set()),
        ("unknown", {"a": [entry(0, ABORTED)]}, set()),
        ("aborted", {}, set()),
        ("committed", {"a": [entry(0)], "b": [entry(0)]}, {"torn-transaction"}),
        ("unknown", {"a": [entry(0), entry(1)]}, {"torn-transaction"}),
        ("unknown", {"a": [entry(n) for n in range(3)], "b": [entry(0)]}, {"torn-transaction"}),
        ("committed", {"a": [entry(0, ABORTED)]}, {"lost-transaction"}),
        ("aborted", {"a": [entry(0), entry(1)], "b": [entry(0)]}, {"aborted-commit"}),
        ("unknown", {"a": [entry(0, OPEN)]}, {"hanging-transaction"}),
        ("aborted", {"a": [entry(0, ABORTED, attempt=5)]}, {"forged"}),
    ],
)
def test_each_contradiction_of_a_transaction_is_found(
    outcome: str, log: dict[str, list[Entry]], expected: set[str]
) -> None:
    history = history_of_attempt(outcome, a=2, b=1)

    problems = history.check_transactions({(topic, 0): found for topic, found in log.items()})

    assert kinds(problems) == expected


@pytest.mark.parametrize(
    ("polled", "expected"),
    [
        ([0, 3, 4], set()),
        ([0, 2, 3], {"aborted-read", "poll-skip"}),
        ([0, 4], {"poll-skip"}),
        ([3, 0], {"nonmonotonic-poll"}),
        ([4, 9], {"phantom"}),
        ([4, 5], {"aborted-read"}),
    ],
)
def test_each_contradiction_of_a_committed_reader_is_found(
    polled: list[int], expected: set[str]
) -> None:
    history = History()
    reader = history.reader("r", TOPIC)
    for offset in polled:
        reader.poll(0, offset, value_of("w", 0, offset))
    log = [entry(0, PLAIN), entry(1, MARKER), entry(2, ABORTED), entry(3, PLAIN), entry(4, PLAIN)]
    log.append(entry(5, ABORTED, attempt=1))

    problems = history.check_transactions({(TOPIC, 0): log})

    assert kinds(problems) - {"forged"} == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([0, 1, 2], set()),
        ([0, 2], {"lost-hop"}),
        ([0, 1, 1, 2], {"duplicate-hop"}),
        ([0, 2, 1], {"reordered-hop"}),
        ([0, 1, 2, 9], {"forged"}),
    ],
)
def test_each_contradiction_of_a_chain_is_found(target: list[int], expected: set[str]) -> None:
    source = [entry(0), entry(1), entry(2), entry(3, ABORTED)]
    log = {("a", 0): source, ("b", 0): [entry(n, number=v) for n, v in enumerate(target)]}

    assert kinds(check_chain(log, "a", "b", 0)) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([0, 1, 2], set()),
        ([0, 2, 1, 2], {"nonmonotonic-commit"}),
        ([0, 1], {"offset-mismatch"}),
        ([0, 3], {"offset-mismatch"}),
    ],
)
def test_each_contradiction_of_offsets_is_found(seen: list[int], expected: set[str]) -> None:
    history = History()
    group = history.group("g", "a")
    for offset in seen:
        group.see(0, offset)
    log = {
        ("a", 0): [entry(0), entry(1), entry(2)],
        ("b", 0): [entry(0), entry(1), entry(2, ABORTED)],
    }

    assert kinds(history.check_offsets(log, {"g": "b"})) == expected
