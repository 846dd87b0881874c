"""Appending to a log, rolling it, and opening it again."""

import struct

import pytest
from support.storage.log_store import (
    NOW_MS,
    append,
    append_error,
    batch,
    produce,
    stored_values,
    topic_config,
)

from kbroker._ext.shared.partition_table import ONLINE
from kbroker.storage.topic_settings import LogConfig

pytestmark = pytest.mark.unit

MESSAGE_TOO_LARGE = 10
CORRUPT_MESSAGE = 2
RECORD_LIST_TOO_LARGE = 18
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_RECORD = 87


def test_log_new_publishes_an_online_slot_at_offset_0(store):
    store.open()

    slot = store.slot()
    assert slot["state"] == ONLINE
    assert slot["log_end"] == slot["high_watermark"] == slot["last_stable"] == (0, 0, 0)


def test_append_assigns_offsets_and_publishes_the_end(store):
    log = store.open()
    first = batch([b"a", b"b"])

    assert append(log, first) == 0
    assert append(log, batch([b"c"])) == 2

    assert stored_values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    size = store.path("0" * 20 + ".log").stat().st_size
    assert store.slot()["log_end"] == (3, 0, size)


def test_append_stamps_leader_epoch_outside_the_checksum(store):
    log = store.open(leader_epoch=7)
    data = batch()

    append(log, data)

    stored = store.path("0" * 20 + ".log").read_bytes()
    assert struct.unpack_from(">i", stored, 12) == (7,)
    assert stored[16:] == data[16:]


def test_append_log_append_time_stamps_and_reports_the_time(store):
    log = store.open(**{"message.timestamp.type": "LogAppendTime"})

    code, base, append_time, *_ = log.appender.append_batch(batch(timestamp=5), NOW_MS)

    assert (code, base, append_time) == (0, 0, NOW_MS)
    stored = store.path("0" * 20 + ".log").read_bytes()
    assert struct.unpack_from(">h", stored, 21)[0] & 8
    assert struct.unpack_from(">q", stored, 35) == (NOW_MS,)
    store.stop(clean=False)
    store.start()
    assert store.open().log_end_offset == 1  # the new checksum is right


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-1], CORRUPT_MESSAGE),
        (lambda data: data[:30], CORRUPT_MESSAGE),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), CORRUPT_MESSAGE),
        (lambda data: data + b"x", INVALID_RECORD),
        (lambda data: b"", INVALID_RECORD),
        (lambda data: data[:16] + b"\x01" + data[17:], INVALID_RECORD),
        (lambda data: data[:16] + b"\x07" + data[17:], CORRUPT_MESSAGE),
    ],
)
def test_append_damaged_batch_is_rejected_and_leaves_nothing(store, change, expected):
    log = store.open()
    append(log, batch())

    assert append_error(log, change(batch()))[0] == expected

    assert append(log, batch()) == 1


def test_append_larger_than_max_message_bytes_is_rejected(store):
    data = batch(3)
    log = store.open(**{"max.message.bytes": len(data) - 1})

    assert append_error(log, data)[0] == MESSAGE_TOO_LARGE
    log.configure(store.manager._settings(_config(**{"max.message.bytes": len(data)})))
    assert append(log, data) == 0


def _config(**changes):
    from support.storage.log_store import topic_config

    return topic_config(**changes)


def test_append_larger_than_a_segment_is_rejected(store):
    data = batch(3)
    log = store.open(**{"segment.bytes": len(data) - 1})

    assert append_error(log, data)[0] == RECORD_LIST_TOO_LARGE


def test_append_create_time_out_of_range_names_the_record(store):
    log = store.open(
        **{"message.timestamp.before.max.ms": 1000, "message.timestamp.after.max.ms": 500}
    )
    from kbroker.record.builder import BatchBuilder

    late, early = BatchBuilder(), BatchBuilder(1)
    for builder, bad in ((late, NOW_MS + 501), (early, NOW_MS - 1001)):
        builder.append(b"v", b"k", NOW_MS)
        builder.append(b"v", b"k", bad)

    assert append_error(log, late.build()) == (INVALID_TIMESTAMP, 1)
    assert append_error(log, early.build()) == (INVALID_TIMESTAMP, 1)
    late.append(b"v", b"k", NOW_MS - 1001)
    late.append(b"v", b"k", -1)
    late.append(b"v", b"k", NOW_MS + 501)
    assert append_error(log, late.build()) == (INVALID_TIMESTAMP, 1)
    assert log.appender.more_bad_records == [2, 4]
    append(log, batch(timestamp=NOW_MS + 500))
    append(log, batch(timestamp=NOW_MS - 1000))
    append(log, batch(timestamp=-1))


def test_append_keyless_record_to_compacted_topic_names_the_record(store):
    from kbroker.record.builder import BatchBuilder

    log = store.open(**{"cleanup.policy": ("compact",)})
    builder = BatchBuilder()
    builder.append(b"v", b"k", NOW_MS)
    builder.append(b"v", None, NOW_MS)

    assert append_error(log, builder.build()) == (INVALID_RECORD, 1)
    assert log.appender.more_bad_records == []
    for key in (b"k", None, None):
        builder.append(b"v", key, NOW_MS)
    assert append_error(log, builder.build()) == (INVALID_RECORD, 1)
    assert log.appender.more_bad_records == [3, 4]
    assert append(log, batch()) == 0
    assert log.appender.more_bad_records is None


def test_append_control_batch_from_client_is_rejected(store):
    log = store.open()

    assert append_error(log, batch(control=True))[0] == INVALID_RECORD


# ---- idempotence ----


def test_idempotent_duplicate_gets_its_original_offset(store):
    log = store.open()
    for sequence in range(6):
        assert produce(log, sequence) == (0, sequence)

    assert produce(log, 5) == (0, 5)
    assert produce(log, 1) == (0, 1)
    assert produce(log, 0) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)  # only five batches are kept
    assert log.log_end_offset == 6


def test_idempotent_gap_is_out_of_order(store):
    log = store.open()
    assert produce(log, 0, records=3) == (0, 0)

    assert produce(log, 4)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 3) == (0, 3)


def test_idempotent_unknown_producer_may_start_anywhere(store):
    log = store.open()

    assert produce(log, 1234) == (0, 0)
    assert produce(log, 1235) == (0, 1)


def test_idempotent_new_epoch_starts_at_zero_and_fences_the_old(store):
    log = store.open()
    assert produce(log, 0) == (0, 0)

    assert produce(log, 1, epoch=1)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 0, epoch=1) == (0, 1)
    assert produce(log, 1, epoch=0)[0] == INVALID_PRODUCER_EPOCH


def test_idempotent_sequence_wraps_after_its_maximum(store):
    log = store.open()
    assert produce(log, 2**31 - 3, records=3) == (0, 0)
    assert produce(log, 0) == (0, 3)
    assert produce(log, 2**31 - 3, records=3) == (0, 0)

    other = 10
    assert produce(log, 2**31 - 2, producer=other, records=4) == (0, 4)
    assert produce(log, 2, producer=other) == (0, 8)
    assert produce(log, 2**31 - 2, producer=other, records=4) == (0, 4)


# ---- rolling ----


def bases(log):
    return [segment.base_offset for segment in log.segments]


def test_roll_by_size_starts_a_segment_named_by_its_first_offset(store):
    size = len(batch())
    log = store.open(**{"segment.bytes": 2 * size})

    for _ in range(5):
        append(log, batch())

    assert bases(log) == [0, 2, 4]
    assert store.path("00000000000000000002.log").stat().st_size == 2 * size
    assert store.slot()["log_end"] == (5, 4, size)


def test_roll_by_time_counts_record_timestamps(store):
    log = store.open(**{"segment.ms": 1000})
    append(log, batch(timestamp=NOW_MS))
    append(log, batch(timestamp=NOW_MS + 1000))
    assert bases(log) == [0]

    append(log, batch(timestamp=NOW_MS + 1001))

    assert bases(log) == [0, 2]


def test_roll_by_time_without_timestamps_counts_the_clock(store):
    log = store.open(**{"segment.ms": 1000})
    append(log, batch(timestamp=-1), NOW_MS + 1000)
    append(log, batch(timestamp=-1), NOW_MS + 1000)
    assert bases(log) == [0]

    append(log, batch(timestamp=-1), NOW_MS + 1001)

    assert bases(log) == [0, 2]


def test_roll_by_time_is_drawn_earlier_by_the_jitter(store):
    settings = LogConfig(topic_config(segment_ms=1000, segment_jitter_ms=400))
    drawn = {settings.append_limits()["segment_ms"] for _ in range(100)}
    assert drawn <= set(range(601, 1001))
    assert len(drawn) > 1

    # A jitter above it is limited to all of it.
    settings = LogConfig(topic_config(segment_ms=10, segment_jitter_ms=1 << 40))
    assert {settings.append_limits()["segment_ms"] for _ in range(500)} == set(range(1, 11))


@pytest.mark.parametrize("clean", [True, False])
def test_preallocated_segment_has_its_space_until_it_is_sealed(store, clean):
    settings = {"preallocate": True, "segment.bytes": 1 << 16}
    log = store.open(**settings)
    values = [b"%d" % i for i in range(40)]
    for value in values[:20]:
        append(log, batch([value], size=1000))
    active = store.path("0" * 20 + ".log").stat()
    assert active.st_size == 1 << 16
    assert active.st_blocks * 512 >= 1 << 16

    log = store.restart(clean=clean, **settings)
    assert log.log_end_offset == 20
    log.roll(NOW_MS)
    assert store.path("0" * 20 + ".log").stat().st_size == log.segments[0].size < 1 << 16
    assert store.path(f"{20:020}.log").stat().st_size == 1 << 16
    for value in values[20:]:
        append(log, batch([value]))
    log = store.restart(clean=clean, **settings)
    store.stop(clean=True)

    assert stored_values(log) == list(enumerate(values))


def test_roll_by_full_index(store):
    log = store.open(**{"segment.index.bytes": 24, "index.interval.bytes": 0})

    for i in range(8):
        append(log, batch(timestamp=NOW_MS + i))

    # Two time index entries fit 24 bytes and one is kept free: an entry with the second batch fills
    # it.
    assert bases(log) == [0, 2, 4, 6]


def test_segment_version_rises_with_each_roll(store):
    log = store.open(**{"segment.bytes": len(batch())})
    append(log, batch())
    before = store.slot()["segment_version"]

    append(log, batch())

    assert store.slot()["segment_version"] == before + 1


# ---- reopening ----


@pytest.mark.parametrize("clean", [True, False])
def test_log_reopened_continues_where_it_ended(store, clean):
    log = store.open(**{"segment.bytes": 500, "index.interval.bytes": 100})
    for i in range(20):
        append(log, batch([b"%d" % i]))
    expected = stored_values(log)

    log = store.restart(clean=clean, **{"segment.bytes": 500, "index.interval.bytes": 100})

    assert stored_values(log) == expected
    assert log.log_end_offset == 20
    assert append(log, batch()) == 20


def test_log_reopened_without_flush_is_complete(store):
    """The bytes of a killed worker are in the page cache: nothing acknowledged is lost."""
    log = store.open()
    append(log, batch([b"a"]))

    log = store.restart(clean=False)

    assert stored_values(log) == [(0, b"a")]
    assert log.recovery_point == 0
    store.clock.advance(1000)
    store.manager.tick()
    assert log.recovery_point == 1


def test_sync_moves_the_recovery_point(store):
    log = store.open(**{"flush.messages": 2})
    log.appender.append_batch(batch(), NOW_MS)
    assert not log.appender.needs_sync

    log.appender.append_batch(batch(), NOW_MS)

    assert log.appender.needs_sync
    log.appender.sync_now()
    assert not log.appender.needs_sync
    assert log.recovery_point == 2
