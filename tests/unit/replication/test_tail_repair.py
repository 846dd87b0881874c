"""What a leader takes from other replicas after a power failure; a batch has one record."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.replication.scripted_leader import at
from support.storage.log_store import batch

from kbroker.errors import ErrorCode
from kbroker.record.batch import iterate_batches
from kbroker.replication.fetched_run import Appended, Fault
from kbroker.replication.tail_repair import RETRY_MS, Answer, TailQuestion, TailRepair
from kbroker.replication.truncation import EpochEnd

pytestmark = pytest.mark.unit

LEADER_EPOCH = 9
ANSWERED_MAX = 3
DATA = batch()


class Log:
    """A replica: the leader epoch of each record. No epoch has two records at one offset."""

    def __init__(self, epochs: list[int]) -> None:
        self.records = list(epochs)
        self.fault = Fault.NONE

    # -- as the log that is repaired --

    @property
    def epochs(self) -> Log:
        return self

    @property
    def latest(self) -> int | None:
        return self.records[-1] if self.records else None

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def epoch_for(self, offset: int) -> int | None:
        return self.records[offset] if 0 <= offset < len(self.records) else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        if not self.records or epoch > self.records[-1]:
            return None
        end = sum(one <= epoch for one in self.records)
        return (self.records[end - 1] if end else epoch), end

    def truncate_to(self, offset: int) -> int:
        del self.records[offset:]
        return offset

    def append(self, records: bytes | memoryview, epoch_max: int) -> Appended:
        if self.fault is not Fault.NONE:
            return Appended(self.fault, 0, 0, self.log_end_offset, 0, 0, 0)
        for found in iterate_batches(records):
            epoch = found.header.partition_leader_epoch
            assert found.base_offset == len(self.records), "a gap, or a record twice"
            assert (self.latest or 0) <= epoch <= epoch_max
            self.records.append(epoch)
        return Appended(Fault.NONE, len(records), 0, -1, 0, 0, 0)

    def last_batch(self) -> tuple[int, bytes]:
        end = len(self.records)
        return (end - 1, self.data(end - 1, 1)) if end else (0, b"")

    # -- as another replica --

    def data(self, offset: int, count: int = ANSWERED_MAX) -> bytes:
        some = enumerate(self.records[offset : offset + count], offset)
        return b"".join(at(number, DATA, epoch) for number, epoch in some)

    def answer(self, question: TailQuestion) -> Answer:
        """As a replica of Kafka 2.7 does."""
        offset, asked = question.offset, question.last_epoch
        if asked >= 0:
            end = self.end_offset_for(asked, self.log_end_offset)
            if end is None:
                return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
            if end[0] < asked or end[1] < offset:
                return Answer(0, EpochEnd(*end))
        if offset > len(self.records):
            return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        return Answer(0, records=memoryview(self.data(offset)))


def repaired(ours: Log, *others: Log, by_epoch: bool = True) -> TailRepair:
    """The repair after every question has been answered."""
    machine = TailRepair(ours, LEADER_EPOCH, range(len(others)), by_epoch=by_epoch)
    for _ in range(1000):
        asked = machine.next_question(0)
        if asked is None:
            break
        broker, question = asked
        machine.on_answer(broker, question, others[broker].answer(question), 0)
    assert machine.is_done, machine.outcome
    return machine


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("ours", "other", "after"),
    [
        ([1, 1], [1, 1, 1, 2, 2, 2, 2, 3], [1, 1, 1, 2, 2, 2, 2, 3]),
        ([], [1, 2], [1, 2]),
        ([1, 1], [1, 1], [1, 1]),
        ([1, 1], [1], [1, 1]),
        ([1, 1], [], [1, 1]),
        ([1, 2], [1, 1, 1], [1, 2]),  # it has not truncated what the leader of epoch 2 did not have
        ([1, 1], [1, 2, 2], [1, 1]),  # the log that was elected is not changed
    ],
)
def test_tail_is_taken_from_a_log_that_continues_this_one(
    ours: list[int], other: list[int], after: list[int], by_epoch: bool
) -> None:
    log = Log(ours)

    repaired(log, Log(other), by_epoch=by_epoch)

    assert log.records == after


@pytest.mark.parametrize(
    "others",
    [
        [[1, 1, 1], [1, 2, 2]],
        [[1, 2, 2], [1, 1, 1]],
        [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 2], [1, 2]],
        [[1, 1], [1, 1, 1, 2, 2], [1, 1, 1, 2]],
    ],
)
def test_later_last_epoch_counts_then_the_longer_log(others: list[list[int]]) -> None:
    """As the broker that may lead is chosen where logs vote: no other one can hold what was
    acknowledged.
    """
    log = Log([1])

    repaired(log, *map(Log, others))

    assert log.records == max(others, key=lambda one: (one[-1], len(one)))


def history(seed: int) -> tuple[list[int], list[list[int]]]:
    """A log and others, with what leaders of some epochs have appended after logs they had."""
    chance = random.Random(seed)
    led: list[list[int]] = [[]]
    for epoch in range(1, chance.randint(2, LEADER_EPOCH)):
        before = chance.choice(led)
        led.append(before[: chance.randint(0, len(before))] + [epoch] * chance.randint(1, 5))

    def some() -> list[int]:
        one = chance.choice(led)
        return one[: chance.randint(0, len(one))]

    return some(), [some() for _ in range(chance.randint(1, 4))]


def test_result_is_the_best_log_that_has_all_of_this_one() -> None:
    for seed in range(1500):
        ours, others = history(seed)
        log = Log(ours)

        repaired(log, *map(Log, others))

        extending = [one for one in others if one[: len(ours)] == ours]
        best = max([ours, *extending], key=lambda one: (one[-1:], len(one)))
        assert log.records == best, f"seed {seed}: {ours} {others}"
        assert all(a <= b for a, b in pairwise(log.records))


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_replica_that_does_not_know_the_epoch_yet_is_asked_again_after_the_others(
    error: ErrorCode,
) -> None:
    """Until then it may still append what an older leader sends."""
    log, other = Log([1]), Log([1, 1])
    machine = TailRepair(log, LEADER_EPOCH, [2, 3], by_epoch=True)
    broker, question = machine.next_question(0) or (-1, TailQuestion(0))
    machine.on_answer(broker, question, Answer(error), 0)

    second, question = machine.next_question(0) or (-1, TailQuestion(0))
    machine.on_failure(second, "cannot be reached", 0)

    assert (broker, second) == (2, 3)
    assert machine.next_question(0) is None
    assert machine.next_ms() == RETRY_MS
    assert machine.unknown == [2, 3]
    again, question = machine.next_question(RETRY_MS) or (-1, TailQuestion(0))
    machine.on_answer(again, question, other.answer(question), RETRY_MS)
    assert (again, log.records) == (2, [1, 1])
    assert error.name in machine.outcome or "cannot be reached" in machine.outcome


def test_what_an_unfinished_repair_took_gives_way_in_the_next_leader_epoch() -> None:
    """The other replica, which has the record of epoch 2, answers only in that epoch."""
    log, outlived, newer = Log([1]), Log([1, 1, 1]), Log([1, 2])
    first = TailRepair(log, LEADER_EPOCH - 1, [2, 3], by_epoch=True)
    broker, question = first.next_question(0) or (-1, TailQuestion(0))
    first.on_answer(broker, question, outlived.answer(question), 0)
    assert log.records == [1, 1, 1]

    machine = TailRepair(log, LEADER_EPOCH, [3], by_epoch=True, continues=first)
    while asked := machine.next_question(0):
        machine.on_answer(asked[0], asked[1], newer.answer(asked[1]), 0)

    assert log.records == [1, 2]


def test_own_records_of_the_leader_epoch_are_taken_but_none_of_a_later_one() -> None:
    """A broker that the next controller has not missed still leads in the epoch before the cut."""
    log, other = Log([1]), Log([1])

    repaired(log, Log([1, LEADER_EPOCH, LEADER_EPOCH]))
    repaired(other, Log([1, 1]), Log([1, LEADER_EPOCH + 1]))

    assert log.records == [1, LEADER_EPOCH, LEADER_EPOCH]
    assert other.records == [1, 1]


def test_without_room_the_replica_is_asked_again() -> None:
    log, other = Log([1]), Log([1, 1])
    machine = TailRepair(log, LEADER_EPOCH, [2], by_epoch=True)
    log.fault = Fault.NO_ROOM
    broker, question = machine.next_question(0) or (-1, TailQuestion(0))
    machine.on_answer(broker, question, other.answer(question), 0)

    assert machine.unknown == [2]
    assert machine.next_question(0) is None


def test_batch_that_does_not_fit_ends_what_is_taken_from_that_replica() -> None:
    log, other = Log([1]), Log([1, 1])
    machine = TailRepair(log, LEADER_EPOCH, [2], by_epoch=True)
    log.fault = Fault.BAD_CRC
    broker, question = machine.next_question(0) or (-1, TailQuestion(0))
    machine.on_answer(broker, question, other.answer(question), 0)

    assert machine.is_done
    assert "BAD_CRC" in machine.outcome


@pytest.mark.parametrize(
    "answer",
    [
        Answer(0, EpochEnd(1, -1)),
        Answer(0, EpochEnd(5, 3)),
        Answer(0, EpochEnd(-1, 4)),
        Answer(0, records=b"\0" * 100),
        Answer(0, records=b"x"),
    ],
)
def test_answers_that_cannot_be_change_nothing_and_end(answer: Answer) -> None:
    log = Log([1, 1, 2, 2])
    machine = TailRepair(log, LEADER_EPOCH, [2], by_epoch=True)
    log.append(Log([1, 1, 2, 2, 2, 3, 3]).data(4), LEADER_EPOCH)
    log.fault = Fault.BAD_LENGTH
    for _ in range(100):
        asked = machine.next_question(0)
        if asked is None:
            break
        machine.on_answer(*asked, answer, 0)

    assert machine.is_done, machine.outcome
    assert log.records == [1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("others", "copies", "may_end"),
    [([2], 1, True), ([2], 2, False), ([2], 3, False), ([2, 3], 2, False), ([2, 3], 3, False)],
)
def test_min_isr_above_the_number_of_replicas_counts_as_that_number(
    others: list[int], copies: int, may_end: bool
) -> None:
    """With min.insync.replicas=3 and two replicas, both have what was acknowledged."""
    machine = TailRepair(Log([1]), LEADER_EPOCH, others, by_epoch=True)
    assert machine.may_end(copies) is may_end
