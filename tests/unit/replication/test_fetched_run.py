"""A follower's log equals the leader's, or ends before the first error."""

from __future__ import annotations

import resource
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.storage.log_store import (
    NOW_MS,
    LogStore,
    append,
    batch,
    break_file,
    end_transaction,
    sent,
    stored_values,
)
from support.storage.message_sets import CODECS, OldMessage, message_bytes

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record.record_batch import stamp_for_append
from kbroker._ext.shared.partition_table import FOLLOWER
from kbroker.errors import StorageError
from kbroker.record.builder import BatchBuilder
from kbroker.replication.fetched_run import Appended, Fault, append_fetched, fault_text
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.segments.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.unit

LEADER_EPOCH_AT, MAGIC_AT, CRC_AT, LAST_DELTA_AT, COUNT_AT = 12, 16, 17, 23, 57


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[PartitionLog]:
    yield from opened(tmp_path / "leader")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "follower")
    yield made
    made.stop(clean=False)


@pytest.fixture
def follower(store: LogStore) -> PartitionLog:
    return store.open(role=FOLLOWER)


def opened(path: Path, **config: Any) -> Iterator[PartitionLog]:
    made = LogStore(path)
    yield made.open(**config)
    made.stop(clean=False)


def at(offset: int, epoch: int = 0, values: Any = 1, **header: Any) -> bytes:
    """A batch as in a leader's log."""
    data = bytearray(batch(values, **header))
    stamp_for_append(data, offset, epoch)
    return bytes(data)


def changed(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def log_bytes(log: PartitionLog) -> dict[str, bytes]:
    """The content of its segment files, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(log.path).glob("*.log"))}


def everything(log: PartitionLog) -> bytes:
    return b"".join(log_bytes(log).values())


def take(log: PartitionLog, data: bytes, epoch: int = 0) -> Appended:
    outcome = append_fetched(log, data, epoch, NOW_MS)
    if not log.appender.closed:
        log.publish()
    return outcome


def take_all(log: PartitionLog, data: bytes, epoch: int = 0) -> None:
    outcome = take(log, data, epoch)
    assert (outcome.fault, outcome.taken) == (Fault.NONE, len(data))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)


# ---- what is taken ----


def test_batches_stay_byte_for_byte_what_the_leader_has(leader, follower, store):
    for count in (1, 3, 2):
        append(leader, batch(count))

    take_all(follower, everything(leader))

    assert log_bytes(follower) == log_bytes(leader)
    assert follower.log_end_offset == 6
    assert store.slot()["log_end"] == (6, 0, len(everything(leader)))


def test_more_batches_than_one_write_takes_are_all_appended(follower):
    data = b"".join(at(offset) for offset in range(1000))

    take_all(follower, data)

    assert [offset for offset, _ in stored_values(follower)] == list(range(1000))


def test_batch_that_is_not_there_in_full_is_left_for_the_next_time(follower):
    first, second = at(0), at(1)

    for size in range(len(second)):
        outcome = append_fetched(follower, second[:size], 0, NOW_MS)
        assert (outcome.fault, outcome.taken) == (Fault.NONE, 0)
        assert outcome.needed == (len(second) if size > MAGIC_AT else MAGIC_AT + 1)
    outcome = take(follower, first + second[:-1])

    assert (outcome.fault, outcome.taken, outcome.needed) == (Fault.NONE, len(first), len(second))
    take_all(follower, second)
    assert follower.log_end_offset == 2


def test_gaps_of_compaction_are_kept(follower):
    take_all(follower, at(5, values=2) + at(20) + at(400))

    assert [offset for offset, _ in stored_values(follower)] == [5, 6, 20, 400]
    assert follower.log_end_offset == 401


def test_gap_in_a_log_that_had_none_is_no_damage_after_a_crash(follower, store):
    """Recovery truncates a log that may not have gaps at the first one."""
    assert follower.is_gapless
    take_all(follower, at(0) + at(1) + at(5) + at(6))

    assert not follower.is_gapless
    again = store.restart(clean=False, role=FOLLOWER)
    assert [offset for offset, _ in stored_values(again)] == [0, 1, 5, 6]
    assert not again.is_gapless


def test_gap_waits_until_there_is_room_to_note_it(follower, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(LocalLogDir, "write_lines", full)

    outcome = take(follower, at(0) + at(5))

    assert (outcome.fault, outcome.taken) == (Fault.NO_ROOM, len(at(0)))
    assert follower.log_end_offset == 1
    monkeypatch.undo()
    take_all(follower, at(5))


def test_batch_whose_records_compaction_removed_moves_the_end(follower):
    data = bytearray(at(0, values=3))
    body = struct.pack(">i", 49)
    emptied = bytes(data[:8]) + body + bytes(data[12:COUNT_AT]) + struct.pack(">i", 0)
    take_all(follower, with_crc(emptied))

    assert follower.log_end_offset == 3


def with_crc(data: bytes) -> bytes:
    return changed(data, CRC_AT, struct.pack(">I", crc32c(data[21:])))


def test_gap_that_no_segment_can_span_begins_a_segment(follower, store):
    far = (1 << 31) + 7

    take_all(follower, at(0) + at(far) + at(far + 1))

    assert list(log_bytes(follower)) == [f"{0:020d}.log", f"{far:020d}.log"]
    assert follower.log_end_offset == far + 2
    again = store.restart(clean=False, role=FOLLOWER)
    assert again.log_end_offset == far + 2
    assert [offset for offset, _ in stored_values(again)] == [0, far, far + 1]


def test_first_batch_far_from_the_start_is_taken(follower, store):
    far = (1 << 31) + 7

    take_all(follower, at(far))

    assert follower.log_end_offset == far + 1
    assert store.restart(clean=False, role=FOLLOWER).log_end_offset == far + 1


def test_segments_are_rolled_where_the_followers_settings_say(leader, store):
    for _ in range(20):
        append(leader, batch(2))
    one = len(everything(leader)) // 20
    follower = store.open(role=FOLLOWER, segment_bytes=3 * one)

    take_all(follower, everything(leader))

    assert everything(follower) == everything(leader)
    assert [len(data) for data in log_bytes(follower).values()] == [3 * one] * 6 + [2 * one]


def test_batch_larger_than_a_segment_is_taken(store):
    follower = store.open(role=FOLLOWER, segment_bytes=100)

    take_all(follower, at(0, values=50) + at(50, values=50))

    assert follower.log_end_offset == 100


def test_indexes_find_what_was_appended(store):
    follower = store.open(role=FOLLOWER, index_interval_bytes=200)
    data = b"".join(at(offset, timestamp=NOW_MS + offset) for offset in range(300))

    take_all(follower, data)

    assert follower.segments.files.offsets.entry_count > 50
    for offset in (0, 1, 150, 299):
        segment, position = follower.segments.locate(offset)
        found = log_bytes(follower)[f"{segment.base_offset:020d}.log"][position:]
        assert struct.unpack_from(">q", found)[0] == offset
    assert list_offsets(follower, NOW_MS + 150)["offset"] == 150


def test_unflushed_run_is_announced_and_synced_as_flush_messages_says(store):
    follower = store.open(role=FOLLOWER, flush_messages=2)

    take(follower, at(0))
    assert not follower.appender.needs_sync
    take(follower, at(1))

    assert follower.appender.needs_sync
    assert follower.appender.unflushed_messages == 2


# ---- leader epochs ----


def test_epochs_of_the_batches_become_those_of_the_log(follower, store):
    take_all(follower, at(0, 2) + at(1, 2) + at(2, 5) + at(3, 5), 7)
    take_all(follower, at(4, 5) + at(5, 7), 7)

    assert follower.epochs.entries == [(2, 0), (5, 2), (7, 5)]
    store.manager.checkpoint()
    assert "\n5 2\n" in store.path("leader-epoch-checkpoint").read_text()


def test_epoch_below_the_last_one_is_divergent(follower):
    take_all(follower, at(0, 4), 4)

    outcome = take(follower, at(1, 4) + at(2, 3) + at(3, 4), 4)

    assert outcome.fault is Fault.EPOCH_BACK and outcome.fault.is_divergent
    assert (outcome.taken, outcome.base_offset, outcome.leader_epoch) == (len(at(1)), 2, 3)
    assert follower.log_end_offset == 2
    assert "leader epoch 3, this log is at 4" in fault_text(follower, outcome, 2, 4)


def test_epoch_above_the_one_that_is_followed_is_not_taken(follower):
    outcome = take(follower, at(0, 1) + at(1, 2), 1)

    assert outcome.fault is Fault.EPOCH_AHEAD and outcome.fault.is_divergent
    assert (outcome.base_offset, outcome.leader_epoch) == (1, 2)
    assert follower.epochs.entries == [(1, 0)]


def test_batches_without_an_epoch_come_before_all_that_have_one(follower):
    take_all(follower, at(0, -1) + at(1, 0))

    assert follower.epochs.entries == [(0, 1)]
    assert take(follower, at(2, -1)).fault is Fault.EPOCH_BACK


def test_epochs_that_cannot_be_forgotten_on_disk_take_the_directory_offline(follower, monkeypatch):
    def failing(*_: Any, **__: Any) -> None:
        raise OSError(5, "broken")

    take_all(follower, at(0, 3), 3)
    monkeypatch.setattr(type(follower.epochs), "write", failing)

    with pytest.raises(StorageError):
        append_fetched(follower, old(1), 3, NOW_MS)

    assert take(follower, at(2, 3), 3).fault is Fault.CLOSED


# ---- producers and transactions ----


def test_producers_are_known_as_the_leader_knows_them(leader, follower):
    for producer, sequence in ((9, 0), (9, 1), (7, 0), (9, 2)):
        append(leader, batch(producer_id=producer, producer_epoch=1, base_sequence=sequence))

    take_all(follower, everything(leader))

    assert producers(follower) == producers(leader)
    assert set(producers(follower)) == {7, 9}


def producers(log: PartitionLog) -> dict[int, Any]:
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.recent_batches,
            entry.current_txn_first_offset,
            entry.coordinator_epoch,
            entry.last_timestamp,
        )
        for entry in log.producers()
    }


def test_sequences_are_the_leaders_business(follower):
    data = at(0, producer_id=9, producer_epoch=3, base_sequence=5)
    data += at(1, producer_id=9, producer_epoch=3, base_sequence=90)
    data += at(2, producer_id=9, producer_epoch=2, base_sequence=1)

    take_all(follower, data)


def old(offset: int, magic: int = 1) -> bytes:
    """A message of format 0 or 1 as in a leader's log."""
    return message_bytes(magic, OldMessage(offset, NOW_MS if magic else -1, b"k", b"v"))


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize(("magic", "version"), [(0, "0.9.0"), (1, "0.10.2")])
def test_messages_of_old_formats_stay_byte_for_byte_what_the_leader_has(
    tmp_path, follower, store, magic, version, codec
):
    """Also in several segments, and after a recovery."""
    leader_store = LogStore(tmp_path / "leader")
    leader = leader_store.open(**{"message.format.version": version, "segment.bytes": 400})
    builder = BatchBuilder(CODECS[codec])
    for number in range(5):
        builder.append(b"v%d" % number, b"k", NOW_MS + number)
    for _ in range(4):
        append(leader, builder.build())
    data = everything(leader)

    take_all(follower, data)

    assert everything(follower) == data
    assert (data[MAGIC_AT], follower.log_end_offset) == (magic, 20)
    newest = list_offsets(follower, -3)
    assert (newest["offset"], newest["timestamp"]) == ((4, NOW_MS + 4) if magic else (-1, -1))
    follower = store.restart(clean=False, role=FOLLOWER)
    assert (everything(follower), follower.log_end_offset) == (data, 20)
    take_all(follower, old(20, magic))
    leader_store.stop(clean=False)


def test_messages_of_old_formats_may_leave_gaps(follower):
    """Compaction has left them, or a wrapper whose offset is that of its last message."""
    data = old(3) + old(7) + old(8)
    take_all(follower, data)
    assert (everything(follower), follower.log_end_offset) == (data, 9)


@pytest.mark.parametrize("segment_bytes", [130, 10_000])
def test_message_of_an_old_format_makes_the_log_forget_its_epochs(store, segment_bytes):
    """Where those before it end is not known any more, so that the next leader's is not compared:
    the log is truncated to its high watermark. Kafka does so.
    """
    follower = store.open(role=FOLLOWER, **{"segment.bytes": segment_bytes})
    take_all(follower, at(0, 3) + at(1, 5), 5)
    assert follower.epochs.entries == [(3, 0), (5, 1)]

    take_all(follower, old(2), 6)

    assert follower.epochs.entries == []
    assert store.restart(clean=False, role=FOLLOWER).epochs.entries == []


def test_epochs_begin_again_behind_messages_of_an_old_format(follower, store):
    take_all(follower, at(0, 5), 5)
    take_all(follower, old(1) + at(2, 5) + old(3) + at(4, 6), 6)
    assert follower.epochs.entries == [(6, 4)]
    assert LeaderEpochs(follower.path).entries == [], "recovery would not find out"
    store.manager.checkpoint()
    assert LeaderEpochs(follower.path).entries == [(6, 4)]


def test_transactions_end_as_on_the_leader(leader, follower):
    append(leader, sent(5, 0, 2))
    append(leader, sent(6, 0))
    end_transaction(leader, 5, commit=False, coordinator_epoch=3)
    append(leader, sent(5, 2))
    end_transaction(leader, 6, commit=True)

    take_all(follower, everything(leader))

    assert producers(follower) == producers(leader)
    assert follower.last_stable_offset == leader.last_stable_offset == 4
    name = f"{0:020d}.txnindex"
    mine, theirs = (Path(log.path, name).read_bytes() for log in (follower, leader))
    assert mine == theirs != b""


def test_aborted_transaction_stays_unstable_until_its_marker_is_below_the_high_watermark(
    leader, follower, store
):
    """Otherwise a read_committed consumer would pass records whose outcome it cannot look up."""
    append(leader, sent(5, 0, 2))
    end_transaction(leader, 5, commit=False)
    follower.hold_high_watermark()

    take_all(follower, everything(leader))

    assert store.slot()["last_stable"][0] == 0
    follower.set_high_watermark(2)
    follower.publish()
    assert store.slot()["last_stable"][0] == 0
    follower.set_high_watermark(3)
    follower.publish()
    assert store.slot()["last_stable"][0] == 3


def test_abort_that_finds_no_room_for_its_index_entry_is_left(leader, follower, monkeypatch):
    append(leader, sent(5, 0, 2))
    end_transaction(leader, 5, commit=False)
    append(leader, batch())
    monkeypatch.setattr(PartitionLog, "add_aborted", lambda *_: "there is no room")

    outcome = take(follower, everything(leader))

    assert outcome.fault is Fault.NO_ROOM
    assert fault_text(follower, outcome, 2, 0) == "there is no room"
    assert follower.log_end_offset == 2
    assert everything(follower) == everything(leader)[: outcome.taken]
    monkeypatch.undo()
    take_all(follower, everything(leader)[outcome.taken :])
    assert everything(follower) == everything(leader)


def test_restarted_follower_knows_what_it_knew(leader, follower, store):
    append(leader, sent(5, 0, 2))
    end_transaction(leader, 5, commit=False)
    append(leader, batch(producer_id=9, producer_epoch=1, base_sequence=0))
    take_all(follower, everything(leader))
    before = producers(follower)

    again = store.restart(clean=False, role=FOLLOWER)

    assert producers(again) == before
    assert again.epochs.entries == [(0, 0)]


# ---- what is wrong ----


def resealed(message: bytes) -> bytes:
    """With the checksum of its bytes."""
    return changed(message, 12, struct.pack(">I", zlib.crc32(message[16:])))


GOOD = at(0, values=2)


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (changed(at(2), len(at(2)) - 1, b"\xff"), Fault.BAD_CRC),
        (changed(at(2), CRC_AT, b"\0\0\0\0"), Fault.BAD_CRC),
        (changed(at(2), MAGIC_AT, b"\3"), Fault.BAD_MAGIC),
        (changed(at(2), MAGIC_AT, b"\xff"), Fault.BAD_MAGIC),
        (changed(at(2), MAGIC_AT, b"\1"), Fault.BAD_CRC),
        (changed(at(2), 8, struct.pack(">i", 48)), Fault.BAD_LENGTH),
        (changed(at(2), 8, struct.pack(">i", -1)), Fault.BAD_LENGTH),
        (changed(at(2), 8, struct.pack(">i", -(1 << 31))), Fault.BAD_LENGTH),
        (at((1 << 63) - 1), Fault.BAD_LENGTH),
        (changed(at((1 << 63) - 5), LAST_DELTA_AT, struct.pack(">i", 5)), Fault.BAD_LENGTH),
        (changed(at(2), LAST_DELTA_AT, struct.pack(">i", -1)), Fault.BAD_COUNT),
        (changed(at(2), COUNT_AT, struct.pack(">i", -1)), Fault.BAD_COUNT),
        (at(1), Fault.OFFSET_BACK),
        (at(0), Fault.OFFSET_BACK),
        (at(-1), Fault.OFFSET_BACK),
        (at(2, 9), Fault.EPOCH_AHEAD),
        (at(2, -1), Fault.EPOCH_BACK),
        (changed(old(2), len(old(2)) - 1, b"\xff"), Fault.BAD_CRC),
        (changed(old(2), CRC_AT - 5, b"\0\0\0\0"), Fault.BAD_CRC),
        (changed(old(2), 8, struct.pack(">i", 13)), Fault.BAD_LENGTH),
        (changed(old(2), 8, struct.pack(">i", -1)), Fault.BAD_LENGTH),
        (old((1 << 63) - 1), Fault.BAD_LENGTH),
        (resealed(changed(old(2), 26, struct.pack(">i", 9))), Fault.BAD_LENGTH),
        (old(1), Fault.OFFSET_BACK),
        (old(-1), Fault.OFFSET_BACK),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_batch_at_fault_is_left_and_what_came_before_stays(follower, bad, fault):
    outcome = take(follower, GOOD + bad + at(3), 0)

    assert (outcome.fault, outcome.taken) == (fault, len(GOOD))
    assert everything(follower) == GOOD
    assert follower.log_end_offset == 2
    assert "from leader 7" in fault_text(follower, outcome, 7, 0)
    take_all(follower, at(2))


def test_every_fault_is_corrupt_or_divergent_or_neither():
    assert {f for f in Fault if f.is_corrupt} == {
        Fault.BAD_LENGTH, Fault.BAD_MAGIC, Fault.BAD_CRC, Fault.BAD_COUNT,
    }  # fmt: skip
    assert {f for f in Fault if f.is_divergent} == {
        Fault.OFFSET_BACK, Fault.EPOCH_BACK, Fault.EPOCH_AHEAD,
    }  # fmt: skip


def test_wrong_checksum_is_told_with_both(follower):
    bad = changed(at(0), CRC_AT, b"\0\0\0\1")

    outcome = take(follower, bad)

    assert outcome.stored_crc == 1
    assert outcome.computed_crc == struct.unpack_from(">I", at(0), CRC_AT)[0]
    text = fault_text(follower, outcome, 3, 0)
    assert "offset 0 from leader 3" in text and "0x00000001" in text


def test_header_at_fault_is_told_before_its_records_are_there(follower):
    outcome = take(follower, at(0, 5, values=100)[:61], 4)

    assert outcome.fault is Fault.EPOCH_AHEAD


def test_full_disk_takes_what_fits_and_the_rest_later(follower):
    data = b"".join(at(offset) for offset in range(10))

    with files_up_to(len(data) - 1):
        outcome = take(follower, data)

    assert outcome.fault is Fault.NO_ROOM
    assert fault_text(follower, outcome, 2, 0)
    assert everything(follower) == data[: outcome.taken]
    take_all(follower, data[outcome.taken :])
    assert everything(follower) == data


def test_failed_write_takes_the_directory_offline(follower):
    break_file(follower)

    with pytest.raises(StorageError):
        append_fetched(follower, at(0), 0, NOW_MS)

    outcome = append_fetched(follower, at(0), 0, NOW_MS)
    assert (outcome.fault, outcome.taken) == (Fault.CLOSED, 0)
    assert "closed" in fault_text(follower, outcome, 2, 0)


def test_closed_log_takes_nothing(follower, store):
    store.stop(clean=False)

    assert append_fetched(follower, at(0), 0, NOW_MS).fault is Fault.CLOSED
