"""The ways to leave the queue of a log, by the letters of ``committed_queue``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.running.seeds import seeded
from support.storage.io_loop_bench import Bench
from support.storage.log_store import batch, break_file

from kbroker._ext.log.committed_queue import CallSink, CommittedQueue
from kbroker._ext.shared.partition_table import FOLLOWER, OFFLINE
from kbroker.errors import ErrorCode, WireError

pytestmark = pytest.mark.unit

LIMIT_MS = 100


class Waiters:
    """A sink that records the outcome of its items."""

    def __init__(self) -> None:
        self.committed: list[Any] = []
        self.failed: list[tuple[Any, int]] = []
        self.expired: list[Any] = []
        self.sink = CallSink(
            self.committed.append,
            lambda item, error: self.failed.append((item, int(error.code))),
            self.expired.append,
            lambda: LIMIT_MS,
        )


@pytest.fixture
def queue() -> CommittedQueue:
    return CommittedQueue()


@pytest.fixture
def waiters() -> Waiters:
    return Waiters()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


def numbered(sequence: int, records: int = 1) -> bytes:
    return batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence)


# ---- B: the high watermark reaches them --------------------------------------------------------


def test_b1_high_watermark_lets_those_go_that_it_has_reached(queue, waiters):
    for end in (2, 5, 5, 9):
        queue.wait(end, waiters.sink, end)

    queue.advance(4)
    assert (waiters.committed, queue.count, queue.offset) == ([2], 3, 4)
    queue.advance(5)
    assert waiters.committed == [2, 5, 5]
    queue.advance(100)
    assert (waiters.committed, queue.count) == ([2, 5, 5, 9], 0)


def test_end_below_that_of_the_one_before_does_not_leave_first(queue, waiters):
    """A duplicate may have to wait for later batches, never the other way round."""
    queue.wait(9, waiters.sink, "later")
    queue.wait(5, waiters.sink, "repeated")
    queue.advance(8)
    assert waiters.committed == []
    queue.advance(9)
    assert waiters.committed == ["later", "repeated"]


def test_one_that_waits_again_when_it_is_let_go_is_behind_the_others(queue):
    seen: list[str] = []

    def again(item: str) -> None:
        seen.append(item)
        if item == "first":
            queue.wait(3, sink, "again")

    sink = CallSink(again, lambda item, error: None)
    queue.wait(1, sink, "first")
    queue.wait(1, sink, "second")
    queue.advance(1)
    queue.advance(3)
    assert seen == ["first", "second", "again"]


# ---- C and D: it is not to be ------------------------------------------------------------------


def test_c_all_who_wait_get_the_error(queue, waiters):
    queue.wait(5, waiters.sink, "a")
    queue.wait(6, waiters.sink, "b")

    queue.fail(WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    assert waiters.failed == [("a", 6), ("b", 6)]
    queue.advance(10)
    assert waiters.committed == []


def test_d_those_of_one_sink_get_its_error_and_the_others_wait_on(queue, waiters):
    others = Waiters()
    queue.wait(5, waiters.sink, "a")
    queue.wait(5, others.sink, "b")
    queue.wait(6, waiters.sink, "c")

    queue.fail(WireError(ErrorCode.NOT_COORDINATOR), waiters.sink)

    assert [item for item, _ in waiters.failed] == ["a", "c"]
    assert (queue.count, others.failed) == (1, [])
    queue.advance(6)
    assert (others.committed, waiters.committed) == (["b"], [])


# ---- E: it takes too long ----------------------------------------------------------------------


def test_e_each_expires_once_after_its_own_time_and_is_told_when_it_is_committed(queue, waiters):
    queue.wait(5, waiters.sink, "a", 1000)
    queue.wait(6, waiters.sink, "b", 1050)

    assert queue.expire(1000 + LIMIT_MS - 1) == 0
    assert queue.expire(1000 + LIMIT_MS) == 1
    assert queue.expire(1000 + LIMIT_MS) == 0
    assert (waiters.expired, queue.count) == (["a"], 2)
    queue.advance(6)
    assert waiters.committed == ["a", "b"]


def test_without_a_limit_nothing_expires(queue):
    queue.wait(5, CallSink(print, print), "a", 0)
    assert queue.expire(1 << 60) == 0


# ---- memory ------------------------------------------------------------------------------------


def test_items_are_let_go_with_their_wait_or_with_the_queue(waiters):
    items = [object() for _ in range(3)]
    before = [sys.getrefcount(item) for item in items]
    queue = CommittedQueue()
    for number in range(3):
        queue.wait(number + 1, waiters.sink, items[number])

    queue.advance(1)
    waiters.committed.clear()
    queue.fail(WireError(ErrorCode.NOT_COORDINATOR), CallSink(print, print))
    del queue
    gc.collect()

    assert [sys.getrefcount(item) for item in items] == before


def test_random_use_agrees_with_a_list():
    choose = seeded()
    queue, waiters, others = CommittedQueue(), Waiters(), Waiters()
    model: list[tuple[int, int, bool]] = []
    end = offset = number = 0
    done: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(2000):
        action = choose.random()
        if action < 0.6:
            end += choose.randrange(4)
            number += 1
            mine = choose.random() < 0.7
            queue.wait(end, (waiters if mine else others).sink, number)
            model.append((end, number, mine))
        elif action < 0.95:
            offset = min(end, offset + choose.randrange(8))
            queue.advance(offset)
            for _, item, mine in [entry for entry in model if entry[0] <= offset]:
                done[mine].append(item)
            model = [entry for entry in model if entry[0] > offset]
        else:
            queue.fail(WireError(ErrorCode.NOT_COORDINATOR), others.sink)
            model = [entry for entry in model if entry[2]]
        assert queue.count == len(model)
        assert waiters.committed == done[True]
        assert others.committed == done[False]


# ---- produce -----------------------------------------------------------------------------------


def test_a_repeated_batch_that_is_committed_completes_in_its_turn(bench):
    bench.produce(1, numbered(0))
    assert bench.results() == [(1, 0, 0)]
    bench.log.set_high_watermark(1)
    bench.produce(2, numbered(1))
    bench.produce(3, numbered(0))

    assert bench.results() == [(3, 0, 0)]


def test_b1_produce_with_acks_all_completes_when_its_last_record_is_committed(bench):
    bench.log.set_high_watermark(0)
    bench.produce(1, batch(3))
    bench.produce(2, batch(2))
    assert bench.results() == []
    assert bench.loop.is_waiting

    raise_to(bench, 4)
    assert bench.results() == [(1, 0, 0)]
    raise_to(bench, 5)
    assert bench.results() == [(2, 0, 3)]


@pytest.mark.parametrize("acks", [0, 1])
def test_produce_of_another_kind_waits_for_nobody(bench, acks):
    bench.log.set_high_watermark(0)
    bench.produce(1, batch(), acks=acks)
    assert bench.results() == [(1, 0, 0)]


def test_b2_produce_that_is_committed_by_too_few_replicas_is_told_so(bench):
    bench.log.set_high_watermark(0)
    bench.produce(1, batch())
    assert bench.results() == []
    bench.log.appender.committed.is_maximal_under_min_isr = True

    raise_to(bench, 1)

    assert bench.results() == [(1, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)]


def test_produce_with_acks_all_needs_enough_replicas_before_it_is_appended(bench):
    bench.log.appender.committed.is_under_min_isr = True
    bench.produce(1, batch())
    bench.produce(2, batch(), acks=1)

    assert bench.results() == [(1, ErrorCode.NOT_ENOUGH_REPLICAS, -1), (2, 0, 0)]


def test_c_produce_that_waits_when_the_lead_is_lost_looks_for_the_leader(bench):
    bench.log.set_high_watermark(0)
    bench.produce(1, batch())
    assert bench.results() == []

    bench.log.take_role(FOLLOWER, 1, 0)
    bench.loop.fail_waiting(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    assert bench.results() == [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


@pytest.mark.parametrize("acks", [-1, 1])
def test_c_produce_whose_log_cannot_be_synced_gets_a_storage_error(bench, acks):
    bench.log.appender.configure(**{**bench.log.settings.append_limits(), "flush_messages": 1})
    bench.produce(1, batch(), acks=acks)
    break_file(bench.log)

    assert bench.results() == [(1, ErrorCode.KAFKA_STORAGE_ERROR, -1)]


class SharedDisk(Bench):
    """Partition 1, in slot 1, is in the log directory of partition 0, and both fail with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.other = self.store.open(partition=1, slot=1)
        self.loop.put(self.other.appender)

    def on_failure(self, slot: int) -> None:
        self.store.manager.fail_directory_of(slot)


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("synced", [True, False])
def test_c_produce_whose_directory_fails_with_another_partition_is_not_acknowledged(
    tmp_path: Path, acks: int, synced: bool
) -> None:
    """Two partitions in one request. The sync of the first fails, and takes the log directory
    offline with the second, whose batch is written and need not wait.
    """
    bench = SharedDisk(tmp_path)
    for log in (bench.log, bench.other)[: 2 if synced else 1]:
        log.appender.configure(**{**log.settings.append_limits(), "flush_messages": 1})
    bench.produce(1, batch(), acks=acks)
    bench.produce(2, batch(), acks=acks, slot=1)
    break_file(bench.log)

    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.results() == [(1, failed, -1), (2, failed, -1)]
    published = bench.store.slot(1)
    assert (published["state"], published["high_watermark"][0]) == (OFFLINE, 0)
    bench.store.stop(clean=False)


def test_produce_of_a_network_process_that_is_gone_gets_no_response(bench):
    bench.log.set_high_watermark(0)
    bench.produce(1, batch())
    assert bench.results() == []
    bench.cells[0] = 4

    raise_to(bench, 1)

    assert bench.results() == []
    assert bench.log.appender.committed.count == 0


def raise_to(bench: Bench, offset: int) -> None:
    """Replication raises the high watermark."""
    appender = bench.log.appender
    appender.set_high_watermark(offset, 0, appender.position)
    bench.loop.touch(appender)
