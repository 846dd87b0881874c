"""The effect of compaction on batches: headers, timestamps, horizons, producers, markers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.storage.compaction import DAY_MS, compact, stored_batches
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.storage.cleaning.cleaner import CleaningStopped, UncleanableError
from kbroker.storage.cleaning.segment_swap import SegmentSwap, SwapRejected
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.unit

CONFIG = {"cleanup.policy": ("compact",), "index.interval.bytes": 150}


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path)


@pytest.fixture
def log(store: LogStore) -> PartitionLog:
    return store.open(**CONFIG)


def records(*pairs: tuple[bytes, bytes | None], step_ms: int = 7, **header: object) -> bytes:
    builder = BatchBuilder(**header)
    for number, (key, value) in enumerate(pairs):
        builder.append(value, key, NOW_MS + number * step_ms, [("h", b"%d" % number)])
    return builder.build()


def seal(log: PartitionLog) -> None:
    assert log.roll(NOW_MS) is None
    log.publish()


def left(log: PartitionLog) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (record.offset, record.key, record.value)
        for found in stored_batches(log)
        if not found.is_control
        for record in found.records()
    ]


def test_map_is_made_for_the_section_and_its_use_is_told_of_what_is_allowed(log):
    append(log, records(*((b"k%d" % number, b"v") for number in range(30))))
    append(log, records((b"k0", b"again")))
    seal(log)

    # 24 bytes per entry: room for 100, 30 of them used.
    assert compact(log, now_ms=NOW_MS, map_bytes=2400).stats.map_utilization == 0.3
    assert compact(log, first_dirty=30, now_ms=NOW_MS, map_bytes=2400).stats.map_utilization == 0.01


@pytest.mark.parametrize("codec", range(5))
def test_batch_that_loses_records_keeps_all_else(log, codec):
    append(log, records((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec))
    append(log, records((b"b", b"4"), codec=codec))
    seal(log)
    before = stored_batches(log)[0]
    kept = [record for record in before.records() if record.key != b"b"]
    compact(log, now_ms=NOW_MS)

    after = stored_batches(log)[0]
    assert list(after.records()) == kept
    assert after.header.last_offset_delta == 2 and after.base_offset == 0
    assert after.header.first_timestamp == before.header.first_timestamp
    assert after.codec == codec
    assert left(log) == [(0, b"a", b"1"), (2, b"c", b"3"), (3, b"b", b"4")]


def test_batch_with_nothing_to_drop_is_copied_byte_for_byte(log):
    append(log, records((b"x", b"1")))
    data = records((b"a", b"1"), (b"b", b"2"))
    append(log, data)
    append(log, records((b"x", b"2")))
    seal(log)
    stored = bytes(stored_batches(log)[1]._data)
    compact(log, now_ms=NOW_MS)

    assert bytes(stored_batches(log)[0]._data) == stored


def test_segment_without_a_change_is_left_alone(log):
    append(log, records((b"a", b"1"), (b"b", b"2")))
    seal(log)
    inode = os.stat(log.segments[0].path(".log")).st_ino

    assert compact(log, now_ms=NOW_MS).unchanged == 1
    assert os.stat(log.segments[0].path(".log")).st_ino == inode
    assert not [name for name in os.listdir(log.path) if name.endswith(".cleaned")]


def test_tombstone_goes_when_its_horizon_has_passed(log):
    append(log, records((b"a", b"1"), (b"b", b"2")))
    append(log, records((b"a", None), (b"c", b"3")))
    seal(log)
    end = compact(log, now_ms=NOW_MS).end
    (_, second) = stored_batches(log)
    assert second.delete_horizon_ms == NOW_MS + DAY_MS
    assert [record.timestamp for record in second.records()] == [NOW_MS, NOW_MS + 7]
    assert [r.headers for r in second.records()] == [((b"h", b"0"),), ((b"h", b"1"),)]

    for number, now_ms in enumerate((NOW_MS + DAY_MS - 1, NOW_MS + DAY_MS)):
        append(log, records((b"d", b"%d" % number)))
        seal(log)
        end = compact(log, first_dirty=end, now_ms=now_ms).end
        assert ((2, b"a", None) in left(log)) == (number == 0)
    assert stored_batches(log)[1].delete_horizon_ms == NOW_MS + DAY_MS
    assert [r.timestamp for r in stored_batches(log)[1].records()] == [NOW_MS + 7]


def test_append_time_batch_keeps_its_time(log):
    data = records((b"a", b"1"), (b"b", None), append_time_ms=None)
    log.appender.configure(**{**log.settings.append_limits(), "log_append_time": True})
    append(log, data, NOW_MS + 99)
    append(log, records((b"a", b"2")), NOW_MS + 100)
    seal(log)
    compact(log, now_ms=NOW_MS)

    first = stored_batches(log)[0]
    assert first.is_append_time and first.max_timestamp == NOW_MS + 99
    assert [record.timestamp for record in first.records()] == [NOW_MS + 99]


def test_last_batch_of_a_producer_stays_as_an_empty_one(store, log):
    sequenced = {"producer_id": 5, "producer_epoch": 0}
    append(log, records((b"a", b"1"), **sequenced, base_sequence=0))
    append(log, records((b"a", b"2"), (b"a", b"3"), **sequenced, base_sequence=1))
    append(log, records((b"a", b"4")))
    seal(log)
    compact(log, now_ms=NOW_MS)

    empty, last = stored_batches(log)
    assert (empty.base_offset, empty.last_offset, empty.record_count) == (1, 2, 0)
    assert empty.size == 61 and empty.header.base_sequence == 1
    assert left(log) == [(3, b"a", b"4")] and last.base_offset == 3
    log = store.restart(clean=False, **CONFIG)
    append(log, records((b"a", b"5"), **sequenced, base_sequence=3))


def test_abort_marker_goes_after_its_records_and_its_time(log):
    append(log, sent(1, 0, 2, key=b"a"))
    end_transaction(log, 1, commit=False)
    append(log, sent(1, 2, 1, key=b"b"))
    end_transaction(log, 1, commit=True)
    seal(log)
    assert len(log.appender.producers.entries) == 1
    end = compact(log, now_ms=NOW_MS).end
    assert [b.base_offset for b in stored_batches(log)] == [2, 3, 4]
    for number, now_ms in enumerate((NOW_MS + 1, NOW_MS + 1 + DAY_MS)):
        append(log, batch(1, key=b"n%d" % number))
        seal(log)
        end = compact(log, first_dirty=end, now_ms=now_ms).end
        markers = [b.base_offset for b in stored_batches(log) if b.is_control]
        assert markers == ([2, 4] if number == 0 else [4])
    assert not [name for name in os.listdir(log.path) if name.endswith(".txnindex")]


def test_keyless_records_are_dropped_and_counted(store):
    log = store.open()
    append(log, batch(2, key=None))
    append(log, batch(1, key=b"a"))
    seal(log)

    assert compact(log, now_ms=NOW_MS).stats.keyless == 2
    assert [key for _, key, _ in left(log)] == [b"a"]


def test_map_that_is_too_small_is_filled_in_several_passes(log):
    for number in range(40):
        append(log, records((b"k%d" % (number % 20), b"%d" % number)))
    seal(log)
    ends = [0]
    while ends[-1] < 40:
        ends.append(compact(log, first_dirty=ends[-1], now_ms=NOW_MS, map_bytes=24 * 9).end)

    assert ends == [0, 8, 16, 24, 32, 40]
    assert [offset for offset, _, _ in left(log)] == list(range(20, 40))


def test_batch_with_more_keys_than_the_map_holds_is_named(log):
    append(log, records(*[(b"k%d" % number, b"v") for number in range(20)]))
    seal(log)

    with pytest.raises(UncleanableError, match=r"offset 0 do not fit.*dedupe\.buffer\.size"):
        compact(log, now_ms=NOW_MS, map_bytes=24 * 9)


@pytest.mark.parametrize("at", [70, 20])
def test_damaged_batch_is_named_and_nothing_is_changed(log, at):
    append(log, records((b"a", b"1")))
    append(log, records((b"a", b"2")))
    seal(log)
    path = Path(log.segments[0].path(".log"))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)

    with pytest.raises(UncleanableError, match=r"\.log: the checksum"):
        compact(log, now_ms=NOW_MS)
    assert path.read_bytes() == data
    assert not [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]


def test_compressed_batch_above_the_byte_budget_is_named(log):
    append(log, records((b"a", b"1" * 5000), codec=1))
    seal(log)

    with pytest.raises(UncleanableError, match="more than 1000 bytes"):
        compact(log, now_ms=NOW_MS, decompressed_bytes_max=1000)


def test_batch_larger_than_the_read_buffer_is_read(log):
    append(log, records((b"a", b"1"), (b"b", b"v" * 50_000)))
    append(log, records((b"a", b"2")))
    seal(log)
    compact(log, now_ms=NOW_MS, read_bytes=10)

    assert left(log) == [(1, b"b", b"v" * 50_000), (2, b"a", b"2")]


def test_stopped_compaction_leaves_no_file(log, monkeypatch):
    append(log, records((b"a", b"1")))
    seal(log)

    def stop(_self: object, _fd: int, _base: int, _size: int) -> int:
        raise CleaningStopped

    monkeypatch.setattr("kbroker.storage.cleaning.cleaner.LogCleaning._make_indexes", stop)
    with pytest.raises(CleaningStopped):
        compact(log, now_ms=NOW_MS)
    assert not [name for name in os.listdir(log.path) if name.endswith(".cleaned")]


def test_group_that_loses_everything_leaves_an_empty_segment(store, log):
    append(log, records((b"a", b"1")))
    seal(log)
    append(log, records((b"a", b"2")))
    seal(log)
    compact(log, now_ms=NOW_MS, segment_bytes=1)

    assert [(s.base_offset, s.size > 0) for s in log.segments] == [
        (0, False),
        (1, True),
        (2, False),
    ]
    assert list_offsets(log, -2)["offset"] == 0
    log = store.restart(clean=False, **CONFIG)
    assert left(log) == [(1, b"a", b"2")]


def swap_of(log: PartitionLog, **changes: object) -> SegmentSwap:
    first = log.segments[0]
    asked = {
        "base_offset": 0,
        "size": first.size,
        "largest_timestamp": NOW_MS,
        "replaced": [(0, first.size)],
        "cuts": log.cuts,
    }
    return SegmentSwap(log, **{**asked, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cuts": 7}, "truncated"),
        ({"replaced": [(0, 1)]}, "gone"),
        ({"replaced": [(5, 1)]}, "first segment"),
        ({"replaced": []}, "first segment"),
    ],
)
def test_swap_of_something_else_is_rejected(log, changes, reason):
    append(log, records((b"a", b"1")))
    seal(log)
    swap_of(log).check()

    with pytest.raises(SwapRejected, match=reason):
        swap_of(log, **changes).check()


def test_swap_above_the_last_stable_offset_is_rejected(log):
    append(log, sent(1, 0, 1, key=b"a"))
    seal(log)

    with pytest.raises(SwapRejected, match="stable"):
        swap_of(log).check()


def test_swap_without_its_files_is_rejected(log):
    append(log, records((b"a", b"1")))
    seal(log)

    with pytest.raises(SwapRejected, match="-1 bytes"):
        swap_of(log).prepare()


def test_retention_between_the_steps_has_the_swap_rejected(log):
    append(log, records((b"a", b"1")))
    seal(log)
    append(log, records((b"a", b"2")))
    log.delete_records(1)

    assert log.segments[0].base_offset == 1
    with pytest.raises(SwapRejected, match="gone"):
        swap_of(log, replaced=[(0, 80)]).check()


def test_empty_batch_can_be_read_back(log):
    append(log, records((b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=0, codec=3))
    append(log, records((b"a", b"2")))
    seal(log)
    compact(log, now_ms=NOW_MS)
    empty: RecordBatch = stored_batches(log)[0]

    assert list(empty.records()) == [] and empty.codec == 0
    assert empty.max_timestamp == NOW_MS
