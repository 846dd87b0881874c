"""The bytes of each file, written by hand, and files that must not be mistaken for one."""

import os
import struct

import pytest

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.log.offset_index import (
    CorruptIndexError,
    OffsetIndex,
    OffsetIndexReader,
    TimeIndex,
)
from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerState
from kbroker.storage.checkpoint import (
    CorruptCheckpointError,
    OffsetCheckpoint,
    format_checkpoint,
    format_epochs,
    parse_checkpoint,
    parse_epochs,
)
from kbroker.storage.dirs.partition_metadata import (
    CorruptMetadataError,
    read_partition_metadata,
    write_partition_metadata,
)
from kbroker.storage.formats import base_offset_of, parse_partition_dir, segment_name
from kbroker.storage.segments.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.unit

BASE = 1000
APPENDED, FULL = 0, 1
DUPLICATE, OUT_OF_ORDER = 1, 2


# ---- offset index ----


def test_offset_index_golden_bytes(tmp_path):
    path = tmp_path / "i"
    index = OffsetIndex(path, BASE, 1 << 20)
    index.append_entry(BASE + 5, 4100)
    index.append_entry(BASE + 0x01020304, 0x7FFFFFFF)
    index.seal()

    assert path.read_bytes() == bytes.fromhex("00000005 00001004 01020304 7fffffff")


def test_offset_index_grows_in_steps_with_real_blocks_and_is_trimmed(tmp_path):
    path = tmp_path / "i"
    index = OffsetIndex(path, BASE, 10 << 20)
    assert path.stat().st_size == 0
    for i in range(1, 514):
        index.append_entry(BASE + i, i)
        if i == 1:
            assert path.stat().st_size == 4096
    assert path.stat().st_size == 8192
    assert path.stat().st_blocks * 512 >= 8192

    index.seal()

    assert path.stat().st_size == 513 * 8


def test_offset_index_lookup_is_the_floor(tmp_path):
    index = OffsetIndex(tmp_path / "i", BASE, 4096)
    for i in (10, 20, 30):
        index.append_entry(BASE + i, i * 100)

    def find(offset):
        return index.lookup(BASE + offset)

    assert find(0) == find(9) == (BASE, 0)
    assert find(10) == find(19) == (BASE + 10, 1000)
    assert find(30) == find(2**40) == (BASE + 30, 3000)


def test_offset_index_is_full_at_its_limit(tmp_path):
    index = OffsetIndex(tmp_path / "i", BASE, 23)
    assert index.append_entry(BASE + 1, 1) == APPENDED
    assert index.append_entry(BASE + 2, 2) == APPENDED
    assert index.full
    assert index.append_entry(BASE + 3, 3) == FULL
    assert index.entry_count == 2


def test_offset_index_reopened_finds_its_end_among_zeros(tmp_path):
    path = tmp_path / "i"
    index = OffsetIndex(path, BASE, 4096)
    for i in (10, 20, 30):
        index.append_entry(BASE + i, i)
    index.close()

    again = OffsetIndex(path, BASE, 4096)

    assert again.entry_count == 3
    again.verify(31)
    again.truncate_to(BASE + 20)
    assert again.entry_count == 1
    assert again.append_entry(BASE + 21, 21) == APPENDED
    again.seal()
    assert path.read_bytes() == struct.pack(">4i", 10, 10, 21, 21)


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 7,
        struct.pack(">4i", 20, 10, 10, 20),
        struct.pack(">4i", 10, 20, 20, 10),
        struct.pack(">2i", -1, 5),
        struct.pack(">2i", 10, 100),
        struct.pack(">4i", 0, 0, 10, 10),
    ],
)
def test_offset_index_that_contradicts_itself_or_the_log_is_corrupt(tmp_path, content):
    path = tmp_path / "i"
    path.write_bytes(content)

    with pytest.raises(CorruptIndexError):
        OffsetIndex(path, BASE, 4096).verify(100)


def test_index_reader_sees_entries_as_they_are_written(tmp_path):
    path = tmp_path / "i"
    index = OffsetIndex(path, BASE, 1 << 20)
    index.append_entry(BASE + 10, 100)
    reader = OffsetIndexReader(path, BASE)

    assert reader.lookup(BASE + 25) == (BASE + 10, 100)
    index.append_entry(BASE + 20, 200)
    assert reader.lookup(BASE + 25) == (BASE + 20, 200)
    index.truncate_to(BASE + 20)
    assert reader.lookup(BASE + 25) == (BASE + 10, 100)


def test_index_reader_keeps_its_map_when_the_file_is_trimmed(tmp_path):
    path = tmp_path / "i"
    index = OffsetIndex(path, BASE, 1 << 20)
    index.append_entry(BASE + 10, 100)
    reader = OffsetIndexReader(path, BASE)
    assert reader.room_for_entries == 512

    index.seal()

    assert reader.lookup(BASE + 99) == (BASE + 10, 100)
    fresh = OffsetIndexReader(path, BASE)
    assert fresh.room_for_entries == 1
    assert fresh.lookup(BASE + 99) == (BASE + 10, 100)


def test_index_reader_of_a_missing_or_empty_file_starts_at_the_segment(tmp_path):
    assert OffsetIndexReader(tmp_path / "none", BASE).lookup(BASE + 9) == (BASE, 0)
    (tmp_path / "empty").touch()
    assert OffsetIndexReader(tmp_path / "empty", BASE).lookup(BASE + 9) == (BASE, 0)


# ---- time index ----


def test_time_index_golden_bytes_leave_out_what_is_not_newer(tmp_path):
    path = tmp_path / "t"
    index = TimeIndex(path, BASE, 4096)
    index.append_entry(0x0102030405060708, BASE + 3)
    index.append_entry(0x0102030405060708, BASE + 4)
    index.append_entry(0x0102030405060709, BASE + 0x10203)
    index.seal()

    assert path.read_bytes() == bytes.fromhex("010203040506070800000003 010203040506070900010203")


@pytest.mark.parametrize("entries", [[], [(100, 5)], [(100, 5), (200, 9)]])
def test_time_index_of_a_clean_stop_ends_with_the_newest_record(tmp_path, entries):
    path = tmp_path / "t"
    index = TimeIndex(path, BASE, 8192)
    for timestamp, offset in entries:
        index.append_entry(timestamp, BASE + offset)

    index.seal_in_place(200, BASE + 9)

    expected = [entry for entry in entries if entry[0] < 200] + [(200, 9)]
    assert path.read_bytes() == b"".join(struct.pack(">qi", *entry) for entry in expected)


def test_time_index_of_a_log_without_timestamps_stays_empty(tmp_path):
    index = TimeIndex(tmp_path / "t", BASE, 8192)

    index.seal_in_place(-1, BASE)

    assert (tmp_path / "t").read_bytes() == b""


def test_time_index_keeps_its_last_place_for_the_seal(tmp_path):
    index = TimeIndex(tmp_path / "t", BASE, 36)
    assert index.append_entry(1, BASE) == APPENDED
    assert index.append_entry(2, BASE + 1) == APPENDED
    assert index.full
    assert index.append_entry(3, BASE + 2) == FULL
    assert index.append_entry(3, BASE + 2, final=True) == APPENDED
    assert index.last_entry == (3, BASE + 2)


def test_time_index_lookup_is_the_floor_and_survives_reopening(tmp_path):
    path = tmp_path / "t"
    index = TimeIndex(path, BASE, 8192)
    for i in range(400):
        index.append_entry(1000 + i * 10, BASE + i)
    index.close()

    again = TimeIndex(path, BASE, 8192)

    assert again.entry_count == 400
    again.verify(BASE + 400)
    assert again.lookup(999) == (-1, BASE)
    assert again.lookup(1000) == again.lookup(1009) == (1000, BASE)
    assert again.lookup(1 << 60) == (4990, BASE + 399)
    with pytest.raises(CorruptIndexError):
        again.verify(BASE + 399)


# ---- producer snapshots ----


def test_snapshot_golden_bytes():
    state = ProducerState(100)
    state.append_batch(7, 2, 2**31 - 1, 1, 99, 1234)

    entry = struct.pack(">qhiqiqiq", 7, 2, 0, 99, 1, 1234, -1, -1)
    body = struct.pack(">i", 1) + entry
    assert state.to_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body


def test_snapshot_round_trip_keeps_the_last_batch_of_each_producer():
    state = ProducerState(50)
    for sequence in range(7):
        state.append_batch(1, 0, sequence, 0, sequence, 10 + sequence)
    state.append_batch(2, 5, 0, 9, 40, 99, True)

    again = ProducerState.from_snapshot(state.to_snapshot(), 50)

    assert again.entries[1].recent_batches == [(6, 6, 6, 6, 16)]
    assert again.entries[2].recent_batches == [(0, 9, 31, 40, 99)]
    assert again.first_open_transaction() == 31
    assert again.to_snapshot() == state.to_snapshot()


@pytest.mark.parametrize("restarted", [False, True])
def test_batch_of_an_ended_transaction_is_no_duplicate(restarted):
    state = ProducerState(50)
    state.append_batch(1, 0, 0, 0, 5, 10, True)
    assert state.check_batch(1, 0, 0, 0) == (DUPLICATE, 5)
    state.finish_transaction(1, 0, 3, 11)
    if restarted:
        state = ProducerState.from_snapshot(state.to_snapshot(), 50)
    assert state.check_batch(1, 0, 0, 0)[0] == OUT_OF_ORDER

    state.append_batch(1, 0, 1, 1, 8, 12, True)
    if restarted:
        state = ProducerState.from_snapshot(state.to_snapshot(), 50)

    assert state.check_batch(1, 0, 0, 0)[0] == OUT_OF_ORDER
    assert state.check_batch(1, 0, 1, 1) == (DUPLICATE, 8)


def test_snapshot_cut_or_flipped_anywhere_is_corrupt():
    state = ProducerState(50)
    state.append_batch(1, 0, 0, 0, 1, 1)
    data = state.to_snapshot()

    bad = [data[:n] for n in range(len(data))] + [data + b"\0"]
    bad += [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in range(len(data))]
    for content in bad:
        with pytest.raises(CorruptSnapshotError):
            ProducerState.from_snapshot(content, 50)


# ---- text files ----


def test_checkpoint_golden_text():
    data = format_checkpoint({("my-topic", 0): 5, ("b", 11): 2**40})

    assert data == b"0\n2\nmy-topic 0 5\nb 11 1099511627776\n"
    assert parse_checkpoint(data) == {("my-topic", 0): 5, ("b", 11): 2**40}
    assert parse_checkpoint(b"0\n0\n") == {}
    assert parse_checkpoint(b"") == {}  # as Kafka creates it


@pytest.mark.parametrize(
    "data",
    [b"\n", b"0\n", b"1\n0\n", b"0\n1\n", b"0\n1\na 0 5", b"0\n1\na 0\n", b"0\n1\na 0 x\n",
     b"0\n2\na 0 5\n", b"0\n1\na 0 5\nb 0 5\n", b"0\n1\n\xff 0 5\n", "0\n1\na 0 ٣\n".encode()],
)  # fmt: skip
def test_checkpoint_that_is_none_is_corrupt(data):
    with pytest.raises(CorruptCheckpointError):
        parse_checkpoint(data)


def test_checkpoint_merge_touches_only_its_own_lines(tmp_path):
    first = OffsetCheckpoint(str(tmp_path), "c")
    second = OffsetCheckpoint(str(tmp_path), "c")
    first.merge({("a", 0): 1, ("a", 1): 2})
    second.merge({("b", 0): 3})

    first.merge({("a", 0): 9}, [("a", 1)])

    assert second.read() == {("a", 0): 9, ("b", 0): 3}
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_leader_epochs_golden_text():
    assert format_epochs([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert parse_epochs(b"0\n2\n0 0\n3 17\n") == [(0, 0), (3, 17)]


def test_leader_epochs_assign_truncate_and_survive(tmp_path):
    epochs = LeaderEpochs(str(tmp_path))
    assert epochs.assign(1, 0)
    assert not epochs.assign(1, 5)
    assert epochs.assign(2, 5)
    assert epochs.assign(4, 5)  # epoch 2 wrote nothing
    assert epochs.assign(6, 9)

    epochs.truncate_from_end(9)
    epochs.truncate_from_start(3)

    assert epochs.entries == [(1, 3), (4, 5)]
    assert epochs.epoch_for(2) is None
    assert epochs.epoch_for(4) == 1
    assert epochs.epoch_for(5) == 4
    epochs.truncate_from_start(6)
    assert LeaderEpochs(str(tmp_path)).entries == epochs.entries == [(4, 6)]


def test_leader_epochs_whose_first_start_alone_moves_are_not_written(tmp_path):
    """DeleteRecords of thousands of partitions would write a file for each."""
    epochs = LeaderEpochs(str(tmp_path))
    epochs.assign(1, 0)
    epochs.assign(4, 5)
    before = os.stat(tmp_path / "leader-epoch-checkpoint").st_ino

    epochs.truncate_from_start(3)
    loaded = LeaderEpochs(str(tmp_path))
    loaded.settle(4, 3, 20, [])

    assert loaded.entries == epochs.entries == [(1, 3), (4, 5)]
    assert os.stat(tmp_path / "leader-epoch-checkpoint").st_ino == before
    loaded.settle(4, 3, 2, [])
    assert LeaderEpochs(str(tmp_path)).entries == [(4, 3)]


def test_leader_epochs_damaged_file_is_ignored(tmp_path):
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"0\n2\n3 9\n1 0\n")

    assert LeaderEpochs(str(tmp_path)).entries == []


def test_partition_metadata_round_trip_and_damage(tmp_path):
    directory = str(tmp_path)
    assert read_partition_metadata(directory) is None

    write_partition_metadata(directory, b"\xfb\xff" * 8)

    text = (tmp_path / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: -__7__v_-__7__v_-__7_w"
    assert read_partition_metadata(directory) == b"\xfb\xff" * 8
    for bad in ("", "version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", "version: 0\ntopic_id: x"):
        (tmp_path / "partition.metadata").write_text(bad)
        with pytest.raises(CorruptMetadataError):
            read_partition_metadata(directory)


# ---- names ----


def test_names_of_segments_and_partitions():
    assert segment_name(12345, ".log") == "00000000000000012345.log"
    assert base_offset_of("00000000000000012345.log.swap") == 12345
    assert base_offset_of("leader-epoch-checkpoint") is None
    assert parse_partition_dir("my-topic-7") == ("my-topic", 7)
    assert parse_partition_dir("t-0.0123456789abcdef0123456789abcdef-delete") is None
    assert parse_partition_dir("metadata") is None
