"""Requests of a follower and its truncations: a test for each row of its state table."""

from __future__ import annotations

import logging

import pytest

from kbroker.errors import ErrorCode
from kbroker.replication.fetched_run import Fault
from kbroker.replication.following import (
    EARLIEST,
    FAILED_RETRY_MS,
    LATEST,
    SOON_MS,
    EpochQuestion,
    FollowedPartition,
    FollowingState,
    OffsetQuestion,
)
from kbroker.replication.truncation import UNDEFINED, EpochEnd

pytestmark = pytest.mark.unit

LEADER, LEADER_EPOCH = 2, 9
BACKOFF_MS = 1000
NO_ANSWER = EpochEnd(UNDEFINED, UNDEFINED)


class Log:
    """A log that consists only of its ends and epochs: (epoch, start offset)."""

    def __init__(self, entries: list[tuple[int, int]], end: int, start: int = 0) -> None:
        self.entries = entries
        self.log_start_offset = start
        self.log_end_offset = end
        self.high_watermark = end
        self.cuts: list[int] = []
        self.restarts: list[int] = []

    @property
    def epochs(self) -> Log:
        return self

    @property
    def latest(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        if not self.entries or epoch > self.entries[-1][0]:
            return None
        known = [i for i, entry in enumerate(self.entries) if entry[0] <= epoch]
        if not known:
            return epoch, self.entries[0][1]
        after = self.entries[known[-1] + 1 :]
        return self.entries[known[-1]][0], after[0][1] if after else log_end_offset

    def truncate_to(self, offset: int) -> int:
        self.cuts.append(offset)
        self.log_end_offset = min(offset, self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self.entries = [entry for entry in self.entries if entry[1] < self.log_end_offset]
        return self.log_end_offset

    def restart_at(self, offset: int) -> None:
        self.restarts.append(offset)
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.entries = []


def following(log: Log) -> FollowedPartition:
    partition = FollowedPartition("t-0", log, BACKOFF_MS)
    partition.follow(LEADER, LEADER_EPOCH)
    return partition


def fetching(log: Log) -> FollowedPartition:
    partition = following(log)
    latest = log.latest
    if latest is not None:
        partition.on_epoch_end(0, EpochEnd(latest, log.log_end_offset), 0)
    assert partition.state is FollowingState.FETCHING
    log.cuts.clear()
    return partition


# ---- TRUNCATING ----


def test_log_with_epochs_is_asked_about_by_its_latest() -> None:
    partition = following(Log([(3, 0), (5, 40)], 100))
    assert partition.state is FollowingState.TRUNCATING
    assert partition.question == EpochQuestion(5)


def test_epoch_that_both_have_cuts_to_where_it_ended_first() -> None:
    log = Log([(3, 0), (5, 40)], 100)
    partition = following(log)
    partition.on_epoch_end(0, EpochEnd(5, 70), 0)
    assert (partition.state, log.log_end_offset) == (FollowingState.FETCHING, 70)


def test_epoch_that_only_the_leader_has_is_asked_about_once_more() -> None:
    log = Log([(3, 0), (5, 40)], 100)
    partition = following(log)
    partition.on_epoch_end(0, EpochEnd(4, 60), 0)
    assert (partition.state, partition.question) == (FollowingState.TRUNCATING, EpochQuestion(3))
    assert log.log_end_offset == 40
    partition.on_epoch_end(0, EpochEnd(3, 25), 0)
    assert (partition.state, log.log_end_offset) == (FollowingState.FETCHING, 25)


def test_without_epochs_of_the_leader_what_is_committed_stays() -> None:
    log = Log([(5, 0)], 100)
    log.high_watermark = 80
    partition = following(log)
    partition.on_epoch_end(0, NO_ANSWER, 0)
    assert (partition.state, log.log_end_offset) == (FollowingState.FETCHING, 80)


def test_log_without_epochs_is_not_cut_before_its_leader_responds() -> None:
    """The leader that it knows of may be gone, and this broker be elected next, with everything."""
    log = Log([], 100)
    log.high_watermark = 80
    partition = following(log)
    assert (partition.state, partition.question) == (
        FollowingState.TRUNCATING,
        OffsetQuestion(LATEST),
    )

    partition.on_offset(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0)
    assert partition.retry_at_ms is not None
    partition.resume(partition.retry_at_ms)
    assert (partition.question, log.cuts) == (OffsetQuestion(LATEST), [])

    partition.on_offset(0, 300, 0)
    assert (partition.state, log.log_end_offset) == (FollowingState.FETCHING, 80)


def test_log_without_epochs_that_is_committed_is_fetched_at_once() -> None:
    log = Log([], 100)
    assert following(log).state is FollowingState.FETCHING
    assert log.cuts == []


def test_cut_below_the_high_watermark_is_carried_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log([(5, 0)], 100)
    partition = following(log)
    partition.on_epoch_end(0, EpochEnd(5, 70), 0)
    assert partition.committed_cuts == 1
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    text = "t-0: truncated from offset 100 to 70, below the high watermark 100: broker 2, which "
    assert text in record.getMessage() and "epoch 5 ended at offset 70" in record.getMessage()


def test_cut_below_the_log_start_drops_everything() -> None:
    log = Log([(5, 50)], 100, start=50)
    following(log).on_epoch_end(0, EpochEnd(4, 30), 0)
    assert log.restarts == [30]


def test_response_for_a_later_epoch_than_asked_cuts_nothing() -> None:
    log = Log([(5, 0)], 100)
    partition = following(log)
    partition.on_epoch_end(0, EpochEnd(6, 10), 50)
    assert (partition.state, log.cuts) == (FollowingState.BACKOFF, [])
    partition.resume(50 + BACKOFF_MS)
    assert (partition.state, partition.question) == (FollowingState.TRUNCATING, EpochQuestion(5))


def test_same_leader_in_a_later_epoch_is_asked_again() -> None:
    partition = fetching(Log([(5, 0)], 100))
    partition.follow(LEADER, LEADER_EPOCH + 1)
    assert (partition.state, partition.question) == (FollowingState.TRUNCATING, EpochQuestion(5))


# ---- errors ----


@pytest.mark.parametrize("state", ["truncating", "fetching", "locating"])
def test_fenced_partition_waits_for_the_controller(state: str) -> None:
    partition = in_state(state)
    told(partition, ErrorCode.FENCED_LEADER_EPOCH)
    assert (partition.state, partition.retry_at_ms) == (FollowingState.WAITING, None)
    partition.follow(3, LEADER_EPOCH + 1)
    assert partition.state is FollowingState.TRUNCATING


@pytest.mark.parametrize("state", ["truncating", "fetching", "locating"])
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        12345,
    ],
)
def test_other_errors_pause_the_partition_where_it_is(state: str, error: int) -> None:
    partition = in_state(state)
    before = partition.state, partition.question
    told(partition, error, now_ms=500)
    assert (partition.state, partition.retry_at_ms) == (FollowingState.BACKOFF, 500 + BACKOFF_MS)
    partition.resume(499 + BACKOFF_MS)
    assert partition.state is FollowingState.BACKOFF
    partition.resume(500 + BACKOFF_MS)
    # Asked again: it may have been truncated manually, or have more epochs.
    if state == "truncating":
        assert partition.state is FollowingState.TRUNCATING
    else:
        assert (partition.state, partition.question) == before


@pytest.mark.parametrize("state", ["truncating", "fetching", "locating"])
@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
def test_leader_that_was_not_told_yet_is_soon_asked_again(state: str, error: int) -> None:
    """Producers with acks=all wait for this follower."""
    partition, waits, now_ms = in_state(state), list[int](), 500
    troubles: list[str] = []
    for _ in range(12):
        told(partition, error, now_ms)
        assert partition.state is FollowingState.BACKOFF and partition.retry_at_ms is not None
        waits.append(partition.retry_at_ms - now_ms)
        now_ms = partition.retry_at_ms
        partition.resume(now_ms)
        assert partition.state is FollowingState[state.upper()]
        if trouble := partition.take_trouble():
            troubles.append(trouble)
    assert waits == [20, 40, 80, 160, 320, 640, *[BACKOFF_MS] * 6]
    assert troubles == [f"broker {LEADER} responded with {ErrorCode(error).name}"] * 6, (
        "once it is no matter of moments"
    )

    partition.follow(LEADER, LEADER_EPOCH + 1)
    told(partition, error, now_ms)
    assert partition.retry_at_ms == now_ms + SOON_MS


@pytest.mark.parametrize("backoff_ms", [5, SOON_MS])
def test_backoff_may_be_shorter_than_that(backoff_ms: int) -> None:
    partition = in_state("fetching")
    partition.backoff_ms = backoff_ms
    told(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, 500)
    assert partition.retry_at_ms == 500 + backoff_ms


def in_state(name: str) -> FollowedPartition:
    log = Log([(5, 0)], 100)
    if name == "truncating":
        return following(log)
    partition = fetching(log)
    if name == "locating":
        partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        assert partition.state is FollowingState.LOCATING
    return partition


def told(partition: FollowedPartition, error: int, now_ms: int = 0) -> None:
    if partition.state is FollowingState.TRUNCATING:
        partition.on_epoch_end(error, NO_ANSWER, now_ms)
    elif partition.state is FollowingState.LOCATING:
        partition.on_offset(error, -1, now_ms)
    else:
        partition.on_fetch_error(error, now_ms)


def test_tiered_partition_fails_and_is_tried_again_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition = fetching(Log([(5, 0)], 100))
    partition.on_fetch_error(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, 7)
    assert (partition.state, partition.retry_at_ms) == (FollowingState.FAILED, 7 + FAILED_RETRY_MS)
    assert "tiered storage, which this version cannot read" in caplog.text
    partition.resume(7 + FAILED_RETRY_MS)
    assert (partition.state, partition.question) == (FollowingState.TRUNCATING, EpochQuestion(5))


# ---- OFFSET_OUT_OF_RANGE ----


def test_log_that_is_longer_than_the_leaders_is_cut_to_it() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    assert partition.question == OffsetQuestion(LATEST)
    partition.on_offset(0, 90, 0)
    assert (partition.state, log.log_end_offset) == (FollowingState.FETCHING, 90)


def test_log_that_ends_below_the_leaders_start_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    partition.on_offset(0, 900, 0)
    assert partition.question == OffsetQuestion(EARLIEST)
    partition.on_offset(0, 300, 0)
    assert (partition.state, log.restarts) == (FollowingState.FETCHING, [300])
    assert "begins at offset 300; every record here, up to offset 100, is dropped" in caplog.text


def test_leader_that_contradicts_itself_is_not_asked_at_once_again() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    partition.on_offset(0, 100, 0)
    partition.on_offset(0, 0, 10)
    assert (partition.state, partition.retry_at_ms) == (FollowingState.BACKOFF, 10 + BACKOFF_MS)
    partition.resume(10 + BACKOFF_MS)
    assert partition.state is FollowingState.FETCHING
    assert (log.cuts, log.restarts) == ([], [])


def test_offset_that_cannot_be_changes_nothing() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    partition.on_offset(0, -1, 0)
    assert (partition.state, log.cuts, log.restarts) == (FollowingState.BACKOFF, [], [])


# ---- batches that are not appended ----


def test_corrupt_batch_is_fetched_three_times_and_named(caplog: pytest.LogCaptureFixture) -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    for now_ms in (0, BACKOFF_MS):
        partition.on_fault(Fault.BAD_CRC, "the batch at offset 100 is bad", now_ms)
        assert partition.state is FollowingState.BACKOFF
        partition.resume(now_ms + BACKOFF_MS)
        assert partition.state is FollowingState.FETCHING
    partition.on_fault(Fault.BAD_CRC, "the batch at offset 100 is bad", 0)
    assert partition.state is FollowingState.FAILED
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "t-0: the batch at offset 100 is bad; nothing more is copied" in record.getMessage()


def test_progress_in_between_takes_faults_back() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    for _ in range(9):
        partition.on_fault(Fault.BAD_CRC, "bad", 0)
        assert partition.state is FollowingState.BACKOFF
        partition.resume(BACKOFF_MS)
        log.log_end_offset += 1


def test_batch_that_begins_below_the_log_end_fails() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_fault(Fault.OFFSET_BACK, "begins earlier", 0)
    assert (partition.state, log.cuts, log.restarts) == (FollowingState.FAILED, [], [])


def test_batch_of_an_earlier_epoch_has_the_logs_compared_again() -> None:
    partition = fetching(Log([(5, 0)], 100))
    partition.on_fault(Fault.EPOCH_BACK, "earlier", 0)
    partition.resume(BACKOFF_MS)
    assert partition.state is FollowingState.TRUNCATING


def test_batch_of_a_later_epoch_waits_for_the_controller() -> None:
    partition = fetching(Log([(5, 0)], 100))
    for _ in range(5):
        partition.on_fault(Fault.EPOCH_AHEAD, "later", 0)
        assert partition.state is FollowingState.BACKOFF
        partition.resume(BACKOFF_MS)
        partition.on_epoch_end(0, EpochEnd(5, 100), 0)
        assert partition.state is FollowingState.FETCHING


def test_full_disk_pauses_and_a_failed_one_ends_it() -> None:
    partition = fetching(Log([(5, 0)], 100))
    for _ in range(5):
        partition.on_fault(Fault.NO_ROOM, "the disk is full", 0)
        assert partition.state is FollowingState.BACKOFF
        partition.resume(BACKOFF_MS)
        assert partition.state is FollowingState.FETCHING
    partition.on_fault(Fault.CLOSED, "", 0)
    assert partition.state is FollowingState.WAITING


def test_what_comes_too_late_changes_nothing() -> None:
    log = Log([(5, 0)], 100)
    partition = fetching(log)
    partition.on_epoch_end(0, EpochEnd(5, 10), 0)
    partition.on_offset(0, 10, 0)
    assert (partition.state, log.cuts) == (FollowingState.FETCHING, [])
    partition.follow(LEADER, LEADER_EPOCH + 1)
    partition.on_fetch_error(ErrorCode.OFFSET_OUT_OF_RANGE, 0)
    partition.on_fault(Fault.BAD_CRC, "bad", 0)
    assert partition.state is FollowingState.TRUNCATING
