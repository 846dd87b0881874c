"""Batches for logs that a restarted io worker has not opened yet."""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.io_loop_bench import Bench
from support.storage.log_store import append, batch, sent

from kbroker._ext.shared.arena import forbid_writes
from kbroker._ext.shared.partition_table import FREE

pytestmark = pytest.mark.unit

UNKNOWN_TOPIC, NOT_LEADER, TIMED_OUT = 3, 6, 7


def numbered(sequence: int, producer: int = 9) -> bytes:
    return batch(producer_id=producer, producer_epoch=0, base_sequence=sequence)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A log that is not open yet."""
    made = Bench(tmp_path)
    made.loop.remove(0)
    made.loop.set_opening(True)
    yield made
    made.store.stop(clean=False)


def test_batches_wait_for_their_log_and_keep_their_order(bench):
    for number in range(3):
        bench.produce(number, numbered(number))
    bench.produce(3, batch())
    assert (bench.results(), bench.loop.early_count) == ([], 4)

    bench.loop.put(bench.log.appender)

    assert bench.loop.has_news
    assert bench.results() == [(n, 0, n) for n in range(4)]
    assert bench.loop.early_count == 0
    bench.produce(4, numbered(3))
    assert bench.results() == [(4, 0, 4)]


def test_what_is_in_the_log_already_is_recognised_and_returned_with_its_place(bench):
    bench.loop.put(bench.log.appender)
    for number in range(5):
        bench.produce(number, numbered(number))
    bench.results()
    bench.loop.remove(0)
    for number in range(5):
        bench.produce(10 + number, numbered(number))
    bench.produce(20, numbered(5))

    bench.loop.put(bench.log.appender)

    assert bench.results() == [(10 + n, 0, n) for n in range(5)] + [(20, 0, 5)]
    assert bench.log.log_end_offset == 6


def test_log_that_is_not_opened_after_all_rejects(bench):
    bench.produce(1, numbered(0))
    bench.loop.set_opening(False)

    assert bench.results() == [(1, NOT_LEADER, -1)]
    bench.produce(2, numbered(0))
    assert bench.results() == [(2, NOT_LEADER, -1)], "nothing is opened any more"


def test_topic_that_was_deleted_meanwhile_is_unknown(bench):
    bench.produce(1, numbered(0))
    bench.store.table.reset(0, state=FREE, slot_incarnation=1)
    bench.produce(2, numbered(1))
    assert bench.results() == [(2, UNKNOWN_TOPIC, -1)]

    bench.loop.set_opening(False)

    assert bench.results() == [(1, UNKNOWN_TOPIC, -1)]


def test_topic_that_was_recreated_meanwhile_does_not_get_them(bench):
    bench.produce(1, numbered(0), incarnation=0)
    assert bench.results() == [(1, UNKNOWN_TOPIC, -1)]


def test_waiting_ends_with_the_timeout_of_the_request_for_all_of_its_producer(bench):
    """A request without a timeout of its own must not overtake earlier ones."""
    bench.produce(1, numbered(0), timeout_ms=0)
    bench.produce(2, numbered(1), timeout_ms=50_000)
    bench.produce(3, numbered(0, producer=8), timeout_ms=50_000)
    bench.produce(4, batch(), timeout_ms=50_000)

    bench.loop.expire_held(2_000)

    assert bench.results() == [(1, TIMED_OUT, -1), (2, TIMED_OUT, -1)]
    bench.loop.put(bench.log.appender)
    assert bench.results() == [(3, 0, 0), (4, 0, 1)]


def test_dead_network_process_takes_its_batches_along(bench):
    bench.produce(1, numbered(0), network=0)
    bench.produce(2, numbered(0, producer=8), network=1)
    bench.arenas[0][:] = bytes(1 << 20)
    bench.cells[0] = 4

    bench.loop.put(bench.log.appender)

    assert bench.results(0) == []
    assert bench.results(1) == [(2, 0, 0)]
    assert (bench.log.log_end_offset, bench.loop.early_count) == (1, 0)


def test_too_many_of_one_network_process_are_rejected_and_others_still_wait(bench):
    """They would keep memory from requests for logs that are open."""
    waiting = (1 << 20) // 4 // 4096
    for number in range(waiting + 1):
        bench.produce(number, numbered(number))
    bench.produce(0, numbered(0, producer=8), network=1)

    assert bench.results() == [(waiting, NOT_LEADER, -1)]
    assert bench.results(1) == []
    bench.loop.put(bench.log.appender)
    assert len(bench.results()) == waiting


def test_transaction_is_verified_when_its_log_is_open(bench):
    bench.produce(1, sent(7, 0))
    assert bench.asked == []
    bench.loop.put(bench.log.appender)
    assert len(bench.asked) == 1
    bench.answer()

    assert bench.results() == [(1, 0, 0)]


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_append_leaves_the_bytes_of_the_request_as_they_were(tmp_path, timestamp_type):
    """They are sent to the next worker if this one dies halfway."""
    bench = Bench(tmp_path, message_timestamp_type=timestamp_type)
    before = numbered(0)
    bench.produce(1, before)

    assert bench.results() == [(1, 0, 0)]
    assert before in bytes(bench.arenas[0])
    assert bench.log.log_end_offset == 1
    bench.store.stop(clean=False)


def test_region_that_is_mapped_for_reading_ends_who_writes_to_it():
    region = mmap.mmap(-1, 8192)
    region[:4] = b"data"
    child = os.fork()
    if child == 0:
        forbid_writes(region)
        if region[:4] == b"data":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.disable()
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # a sanitizer would report it
            region[:4] = b"DATA"
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    region[:4] = b"mine"


def test_what_was_appended_and_not_synced_is_synced_before_it_gets_a_response(tmp_path):
    """With flush.messages=1 a response promises durability, and the worker that appended it died
    before the sync.
    """
    bench = Bench(tmp_path)
    append(bench.log, numbered(0))
    append(bench.log, numbered(1))
    bench.log = bench.store.restart(clean=False, flush_messages=1)
    bench.loop.put(bench.log.appender)
    assert bench.log.appender.flushed_offset == 0

    bench.produce(1, numbered(0))

    assert bench.log.appender.needs_sync
    assert bench.results() == [(1, 0, 0)]
    assert bench.log.appender.flushed_offset == 2
    bench.produce(2, numbered(1))
    assert not bench.log.appender.needs_sync, "nothing is left to be synced"
    assert bench.results() == [(2, 0, 1)]
    bench.store.stop(clean=False)


def test_duplicate_in_the_page_cache_returns_what_the_topic_returns(tmp_path):
    bench = Bench(tmp_path)
    append(bench.log, numbered(0))
    bench.log = bench.store.restart(clean=False)
    bench.loop.put(bench.log.appender)

    bench.produce(1, numbered(0))

    assert not bench.log.appender.needs_sync
    assert bench.results() == [(1, 0, 0)]
    bench.store.stop(clean=False)
