"""Offsets by timestamp, by leader epoch, and segment boundaries."""

import os

import pytest
from support.storage.log_store import NOW_MS, append, batch, small

from kbroker._ext.shared.partition_table import LEADER
from kbroker.storage.log.log_lookup import end_offset_for_epoch, list_offsets, offsets_before

pytestmark = pytest.mark.unit


def test_end_offset_for_epoch_uses_the_epochs(store):
    log = store.open(leader_epoch=2)
    append(log, batch(3))
    log.take_role(LEADER, 5, 0)
    append(log, batch(2))

    assert end_offset_for_epoch(log, 2) == (2, 3)
    assert end_offset_for_epoch(log, 3) == (2, 3)
    assert end_offset_for_epoch(log, 5) == (5, 5)
    assert end_offset_for_epoch(log, 6) == (-1, -1)
    assert end_offset_for_epoch(log, 1) == (1, 0)


def test_list_offsets_finds_the_first_record_in_time(store):
    log = store.open(**small())
    for timestamp in (100, 300, 200, 300):
        append(log, batch(timestamp=timestamp))

    def find(timestamp):
        found = list_offsets(log, timestamp)
        return found["offset"], found["timestamp"]

    assert find(50) == (0, 100)
    assert find(101) == (1, 300)
    assert find(300) == (1, 300)
    assert find(301) == (-1, -1)
    assert find(-1) == (4, -1)
    assert find(-2) == (0, -1)
    assert find(-3) == (1, 300)
    log.delete_records(2)
    assert find(-2) == (2, -1)
    assert find(101) == (2, 200)


def test_list_offsets_looks_into_a_compressed_batch(store):
    from kbroker.record.builder import BatchBuilder

    log = store.open()
    builder = BatchBuilder(1)
    for timestamp in (10, 30, 20):
        builder.append(b"v", b"k", timestamp)
    append(log, builder.build())

    assert list_offsets(log, 15) == {"offset": 1, "timestamp": 30, "leader_epoch": 0}


def test_offsets_before_are_where_segments_begin(store):
    """ListOffsets 0 uses the times of files: here 1, 2, 3 s; the active one 9 s."""
    log = store.open(**{"segment.bytes": 100})
    for _ in range(4):
        append(log, batch())
    for at, second in enumerate((1, 2, 3, 9)):
        os.utime(store.path(f"{at:020}.log"), (second, second))

    def before(timestamp, bound=4):
        return offsets_before(log, timestamp, bound, now_ms=10_000)

    assert before(-1) == before(10_000) == [4, 3, 2, 1, 0]
    assert before(9_999) == before(9_000) == [3, 2, 1, 0]
    assert before(8_999) == before(3_000) == [2, 1, 0]
    assert before(2_999) == [1, 0]
    assert before(999) == []
    # An older segment was modified later: the segments after it decide.
    os.utime(store.path(f"{0:020}.log"), (8, 8))
    assert before(3_000) == [2, 1, 0]
    assert before(-1, bound=2) == [2, 1, 0]

    log.roll(NOW_MS)
    assert before(-1) == [4, 3, 2, 1, 0]
    log.delete_records(2)
    assert before(-1) == [4, 3, 2]
