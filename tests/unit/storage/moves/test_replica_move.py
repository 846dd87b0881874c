"""A replica moves between log directories: every step, and a crash after each of them."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from support.storage.log_store import (
    LogStore,
    append,
    batch,
    break_file,
    end_transaction,
    sent,
    small,
    stored_values,
)

from kbroker.errors import ErrorCode
from kbroker.storage import checkpoint as checkpoint_module
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.log.log_sync import LogSync
from kbroker.storage.moves import replica_move, replica_moves, segment_copy
from kbroker.storage.moves.replica_moves import RATE_KEY

pytestmark = pytest.mark.unit

KEY = ("t", 0)


@pytest.fixture
def store(tmp_path):
    made = LogStore(tmp_path, dirs=2)
    yield made
    made.stop(clean=False)


def other_dir(store, log):
    return next(path for path in store.dirs if path != log.log_dir)


def turns(store, count=60):
    """Run the move; returns the slots that were moved."""
    moved = []
    for _ in range(count):
        store.clock.advance(10)
        moved += store.manager.moves.turn(store.clock.monotonic_ms())
    return moved


def names(path):
    return sorted(entry.name for entry in Path(path).iterdir() if entry.name.startswith("t-0"))


def move(store, log, **more):
    target = other_dir(store, log)
    assert store.manager.moves.request(KEY, log.slot, target) == ErrorCode.NONE
    return target


def test_move_takes_every_segment_along_and_the_log_continues(store):
    log = store.open(**small())
    old = log.log_dir
    for _ in range(5):
        append(log, batch())
    log.delete_records(2)
    before = store.slot()

    target = move(store, log)
    assert turns(store) == [0]

    assert log.log_dir == target
    assert store.slot()["log_dir_index"] == store.dirs.index(target)
    assert store.slot()["segment_version"] != before["segment_version"]
    assert [offset for offset, _ in stored_values(log)] == [2, 3, 4]
    assert append(log, batch()) == 5
    assert names(target) == ["t-0"]
    (doomed,) = names(old)
    assert doomed.endswith("-delete")
    assert not (Path(target) / "t-0" / "moved.txt").exists()
    log = store.restart(clean=False, **small())
    assert (log.log_dir, log.log_start_offset, log.log_end_offset) == (target, 2, 6)


def test_move_takes_the_line_of_the_cleaner_along(store):
    """It says that the log has gaps, even if the topic is not compacted any more."""
    log = store.open(**small())
    old = log.log_dir
    append(log, batch())
    OffsetCheckpoint(old, CLEANER_CHECKPOINT).merge({KEY: 1, ("other", 0): 5})

    target = move(store, log)
    assert turns(store) == [0]

    assert OffsetCheckpoint(target, CLEANER_CHECKPOINT).read() == {KEY: 1}
    assert OffsetCheckpoint(old, CLEANER_CHECKPOINT).read() == {("other", 0): 5}


def test_move_while_records_come_in_loses_none(store):
    log = store.open(**{"segment.bytes": 3 * len(batch())})
    append(log, batch())
    move(store, log)

    for number in range(40):
        append(log, batch())
        if number % 7 == 0:
            log.delete_records(number // 2)
        turns(store, 1)
    turns(store)

    values = stored_values(log)
    assert [offset for offset, _ in values] == list(range(log.log_start_offset, 41))
    assert append(log, batch()) == 41


@pytest.mark.parametrize("before", [3, 5, 6, 7])
def test_follower_truncated_in_mid_move_takes_none_of_the_old_bytes_along(
    store, monkeypatch, before
):
    """before: turns of the move until another leader replaces records, some of them copied."""
    monkeypatch.setattr(replica_move, "SLICE_BYTES", 100)
    monkeypatch.setattr(replica_moves, "SLICE_BYTES", 100)
    monkeypatch.setattr(replica_move, "SWITCH_BYTES", 0)
    monkeypatch.setattr(replica_move, "PASSES", 99)
    log = store.open(**{"segment.bytes": 3 * len(batch())})
    for _ in range(8):
        append(log, batch([b"old"]))
    target = move(store, log)
    turns(store, before)

    log.truncate_to(4, store.clock.now_ms())
    for _ in range(8):
        append(log, batch([b"new"]))
    turns(store, 200)

    assert log.log_dir == target
    expected = [b"old"] * 4 + [b"new"] * 8
    assert [value for _, value in stored_values(log)] == expected
    log = store.restart(clean=False)
    assert [value for _, value in stored_values(log)] == expected


def test_move_ends_though_every_slice_takes_as_long_as_a_segment_is_filled(store):
    log = store.open(**small())
    target = move(store, log)

    moved = []
    while not moved and log.log_end_offset < 60:
        append(log, batch())
        moved = turns(store, 1)

    assert moved == [0]
    turns(store)
    assert [offset for offset, _ in stored_values(log)] == list(range(log.log_end_offset))
    log = store.restart(clean=False, **small())
    assert (log.log_dir, append(log, batch())) == (target, log.log_end_offset - 1)


def test_segments_are_copied_together_and_synced_at_once(store, monkeypatch):
    log = store.open(**small())
    for _ in range(12):
        append(log, batch())
    syncs = []
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: not syncs.append(self.path))
    monkeypatch.setattr(segment_copy, "sync_file", lambda path: syncs.append(path))

    target = move(store, log)
    jobs = 2  # the directory, the segments
    turns(store, jobs)

    assert store.manager.moves.get(0).size == log.segments.size
    assert syncs == [target]


def test_every_file_is_synced_where_the_kernel_does_not_tell_of_failures(store, monkeypatch):
    log = store.open(**small())
    for _ in range(12):
        append(log, batch())
    syncs = []
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: False)
    monkeypatch.setattr(segment_copy, "sync_file", lambda path: syncs.append(Path(path).name))

    move(store, log)
    turns(store)

    assert {f"{number:020}.log" for number in range(12)} <= set(syncs)
    assert {f"{number:020}.index" for number in range(11)} <= set(syncs)


def test_log_that_is_flushed_without_a_break_is_moved(store, monkeypatch):
    """Each roll starts a flush; no new one starts once the move waits for the last."""
    log = store.open(**small())
    append(log, batch())
    move(store, log)
    store.manager.moves.turn(1)
    running = log.sync.begin()
    began = []
    monkeypatch.setattr(LogSync, "begin", lambda sync: began.append(sync))

    assert turns(store) == []
    for _ in range(3):
        append(log, batch())
    store.manager.tick()
    running.run(lambda: True)
    log.sync.finish(running)
    append(log, batch())
    store.manager.tick()

    assert not began
    monkeypatch.undo()
    assert turns(store) == [0]
    assert [offset for offset, _ in stored_values(log)] == list(range(5))


def test_moved_log_keeps_producers_and_open_transactions(store):
    log = store.open()
    append(log, sent(7, 0))
    end_transaction(log, 7, commit=False)
    append(log, sent(7, 1))
    stable = log.last_stable_offset

    target = move(store, log)
    turns(store)

    assert log.last_stable_offset == stable == 2
    assert (Path(target) / "t-0" / ("0" * 20 + ".txnindex")).exists()
    log = store.restart(clean=False)
    assert log.log_dir == target
    assert log.last_stable_offset == stable
    assert [p.producer_id for p in log.producers()] == [7]


def test_moved_log_is_found_by_offset_and_time(store):
    log = store.open(**{"index.interval.bytes": 1})
    for number in range(20):
        append(log, batch(timestamp=1_700_000_000_000 + number))

    move(store, log)
    turns(store)

    assert list_offsets(log, 1_700_000_000_013)["offset"] == 13
    for _ in range(400):
        append(log, batch(timestamp=1_700_000_000_100))
    assert list_offsets(log, 1_700_000_000_019)["offset"] == 19
    log = store.restart(clean=True)
    assert list_offsets(log, 1_700_000_000_013)["offset"] == 13


def test_move_of_an_empty_log(store):
    log = store.open()
    target = move(store, log)

    assert turns(store) == [0]

    assert append(log, batch()) == 0
    assert store.restart(clean=False).log_dir == target


def test_move_there_and_back(store):
    log = store.open()
    first = log.log_dir
    append(log, batch())

    for expected in (other_dir(store, log), first):
        move(store, log)
        assert turns(store) == [0]
        assert log.log_dir == expected
        append(log, batch())

    store.manager.checkpoint()
    log = store.restart(clean=False)
    assert (log.log_dir, log.log_end_offset, log.recovery_point) == (first, 3, 2)


def prepared(store, log):
    """Start a move and run it as far as possible without the switch."""
    store.manager.moves.is_held = lambda slot: True
    target = move(store, log)
    turns(store)
    assert store.manager.moves.get(log.slot).is_prepared
    store.manager.moves.is_held = lambda slot: False
    return target


def line(path, name):
    return (OffsetCheckpoint(path, name).read() or {}).get(KEY)


def test_move_that_is_given_up_leaves_no_line_in_checkpoints(store):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    log.delete_records(1)
    target = prepared(store, log)
    assert (line(target, LOG_START_CHECKPOINT), line(target, RECOVERY_POINT_CHECKPOINT)) == (1, 2)

    store.manager.remove_partitions([0])
    turns(store)

    assert line(target, LOG_START_CHECKPOINT) is None
    assert line(target, RECOVERY_POINT_CHECKPOINT) is None


def test_lines_of_the_moved_log_are_there_when_it_is(store):
    """Including those that the switch of an earlier move drops late."""
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    log.delete_records(1)
    target = prepared(store, log)
    for name in (LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT):
        OffsetCheckpoint(target, name).merge({}, [KEY])

    assert turns(store) == [0]

    assert (line(target, LOG_START_CHECKPOINT), line(target, RECOVERY_POINT_CHECKPOINT)) == (1, 2)


def test_loop_has_a_turn_between_two_switches(store):
    """Hundreds of small logs are ready for theirs at the same time."""
    moves = store.manager.moves
    for number in range(4):
        store.manager.placement.prefer(("t", number), store.dirs[0])
    logs = [store.open("t", number, slot=number) for number in range(4)]
    moves.is_held = lambda slot: True
    for log in logs:
        assert moves.request(log.key, log.slot, store.dirs[1]) == ErrorCode.NONE
    turns(store, 100)
    assert all(moves.get(log.slot).is_prepared for log in logs)
    moves.is_held = lambda slot: False

    assert [len(turns(store, 1)) for _ in range(6)] == [1, 1, 1, 1, 0, 0]

    assert {log.log_dir for log in logs} == {store.dirs[1]}


# ---- answers ----


def test_request_responds_as_kafka_does(store):
    moves = store.manager.moves
    log = store.open()
    elsewhere = other_dir(store, log)

    assert moves.request(KEY, 0, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert moves.request(KEY, 0, log.log_dir) == ErrorCode.NONE
    assert moves.request(("no", 0), -1, elsewhere) == ErrorCode.REPLICA_NOT_AVAILABLE
    assert moves.request(("x" * 230, 0), -1, elsewhere) == ErrorCode.INVALID_TOPIC_EXCEPTION
    store.manager.placement.cordoned = [elsewhere]
    assert moves.request(KEY, 0, elsewhere) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    store.manager.fail_log_dir(elsewhere, "broken")
    assert moves.request(KEY, 0, elsewhere) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not moves


def test_partition_is_made_where_it_was_wanted(store):
    wanted = store.dirs[1]
    for number in range(3):
        store.manager.moves.request(("t", number), -1, wanted)

    found = {store.open("t", number, slot=number).log_dir for number in range(3)}

    assert found == {wanted}


def test_nothing_new_goes_to_a_cordoned_directory(store):
    store.manager.placement.cordoned = [store.dirs[0]]

    found = {store.open("t", number, slot=number).log_dir for number in range(3)}

    assert found == {store.dirs[1]}
    assert [entry["cordoned"] for entry in store.manager.describe()] == [True, False]


def test_known_partition_is_not_recreated_while_its_directory_may_be_offline(store):
    store.manager.fail_log_dir(store.dirs[1], "broken")

    opened = store.try_open(topic_id=bytes(16), is_new=False)

    assert opened is None
    assert not names(store.dirs[0])
    assert store.try_open(slot=0) is not None  # a new one is


def test_request_back_to_where_it_is_gives_up_the_move(store):
    log = store.open()
    append(log, batch())
    target = move(store, log)
    store.manager.moves.turn(1)

    assert store.manager.moves.request(KEY, 0, log.log_dir) == ErrorCode.NONE

    turns(store)
    assert not store.manager.moves
    assert names(target) == []


def test_removed_partition_takes_its_future_along(store):
    log = store.open()
    append(log, batch())
    target = move(store, log)
    store.manager.moves.turn(1)
    assert names(target)

    store.manager.remove_partitions([0])
    turns(store)

    assert names(target) == []


def test_describe_shows_the_future_and_its_lag(store, monkeypatch):
    monkeypatch.setattr(replica_move, "SLICE_SEGMENTS", 1)
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    target = move(store, log)
    for at in range(2):  # the directory, the first segment
        store.manager.moves.turn(at)

    (described,) = [entry for entry in store.manager.describe() if entry["path"] == target]

    (future,) = described["logs"]
    assert future == {
        "topic": "t", "partition": 0, "size": len(batch()), "lag": 2, "future": True,
    }  # fmt: skip


# ---- throttle ----


def test_throttle_holds_the_copy_back(tmp_path, monkeypatch):
    monkeypatch.setattr(replica_move, "SWITCH_BYTES", 0)
    store = LogStore(tmp_path, dirs=2, **{RATE_KEY: 100})
    log = store.open()
    for _ in range(10):
        append(log, batch())
    size = log.segments.size
    move(store, log)

    turns(store, 100)  # one second
    assert store.manager.moves
    assert 50 <= store.manager.moves.get(0).size <= 120

    turns(store, size)
    assert not store.manager.moves
    store.stop(clean=True)


# ---- failures ----


def test_damaged_segment_is_not_copied(store):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    path = Path(log.path) / ("0" * 19 + "1.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    old = log.log_dir

    target = move(store, log)
    turns(store)

    assert not store.manager.moves
    assert log.log_dir == old
    assert names(target) == []
    assert append(log, batch()) == 3


def test_failing_target_goes_offline_and_the_log_stays(store, monkeypatch):
    log = store.open(**small())
    append(log, batch())
    target = move(store, log)
    monkeypatch.setattr(segment_copy, "_write_block", fails(errno.EIO))

    turns(store)

    assert list(store.manager.dirs.failures()) == [target]
    assert not store.manager.moves
    assert append(log, batch()) == 1


def test_target_that_fails_at_a_switch_ends_every_move_into_it(store, monkeypatch):
    for number in range(3):
        store.manager.moves.request(("t", number), -1, store.dirs[0])
    logs = [store.open("t", number, slot=number) for number in range(3)]
    target = store.dirs[1]
    for log in logs:
        assert store.manager.moves.request(log.key, log.slot, target) == ErrorCode.NONE
    monkeypatch.setattr(replica_move.ReplicaMove, "switch", fails(errno.EIO))

    assert turns(store) == []

    assert list(store.manager.dirs.failures()) == [target]
    assert not store.manager.moves
    assert [append(log, batch()) for log in logs] == [0, 0, 0]


def test_sync_that_finds_no_room_has_failed(store, monkeypatch):
    log = store.open(**small())
    append(log, batch())
    target = move(store, log)
    monkeypatch.setattr(segment_copy, "sync_file", fails(errno.ENOSPC))

    turns(store)

    assert list(store.manager.dirs.failures()) == [target]
    assert log.log_dir != target


def test_source_that_cannot_be_read_at_the_switch_does_not_take_the_target_offline(
    store, monkeypatch
):
    log = store.open()
    append(log, batch())
    target = prepared(store, log)
    with monkeypatch.context() as patched:
        patched.setattr(type(log.segments[-1]), "open_log", fails(errno.EIO))
        assert turns(store) == []

    assert not store.manager.dirs.failures()
    assert not store.manager.moves
    assert log.log_dir != target
    assert append(log, batch()) == 1


def test_full_target_waits_for_room(store, monkeypatch):
    log = store.open(**small())
    append(log, batch())
    target = move(store, log)
    with monkeypatch.context() as patched:
        patched.setattr(segment_copy, "_write_block", fails(errno.ENOSPC))
        turns(store)
    assert not store.manager.dirs.failures()
    assert store.manager.moves

    store.clock.advance(6_000)
    turns(store)

    assert log.log_dir == target


def test_failing_source_leaves_the_future_to_the_next_start(store):
    log = store.open(**small())
    append(log, batch())
    target = move(store, log)
    store.manager.moves.turn(1)
    break_file(log)

    store.manager.fail_log_dir(log.log_dir, "broken")

    turns(store)
    assert not store.manager.moves
    (future,) = names(target)
    assert future.endswith("-future")


def fails(code):
    def fail(*_args):
        raise OSError(code, os.strerror(code))

    return fail


# ---- crashes ----


def copy_dirs(store, to):
    for path in store.dirs:
        shutil.copytree(path, Path(to) / Path(path).name)


def crashed_copies(store, tmp_path, monkeypatch):
    """The log directories as a crash leaves them after each change of a move."""
    copies = []

    def watch(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            result = real(*args, **kwargs)
            if not is_copying:
                is_copying.append(1)
                copies.append(tmp_path / f"crash-{len(copies)}")
                copy_dirs(store, copies[-1])
                is_copying.clear()
            return result

        monkeypatch.setattr(os, name, call)

    is_copying = []
    for name in ("rename", "unlink", "pwrite", "fsync", "mkdir"):
        watch(name)
    return copies


def test_crash_after_every_change_of_the_disk_keeps_the_log_and_ends_the_move(
    tmp_path, monkeypatch
):
    store = LogStore(tmp_path / "live", dirs=2)
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    log.delete_records(1)
    store.manager.checkpoint()
    log.flush()
    expected = stored_values(log)
    target = Path(other_dir(store, log)).name
    with monkeypatch.context() as patched:
        copies = crashed_copies(store, tmp_path, patched)
        move(store, log)
        turns(store)
    store.stop(clean=False)
    assert len(copies) > 20

    for crashed in copies:
        again = LogStore(crashed, dirs=2)
        log = again.open(**small())
        assert stored_values(log) == expected, crashed
        turns(again)
        assert not again.manager.moves, crashed
        assert append(log, batch()) == 3
        again.manager.tick()
        present = {Path(path).name: names(path) for path in again.dirs}
        kept = [name for found in present.values() for name in found if name == "t-0"]
        assert len(kept) == 1, (crashed, present)
        assert not any("-future" in name for found in present.values() for name in found), present
        had_future = Path(log.log_dir).name == target
        assert had_future, (crashed, present)
        again.stop(clean=False)


def test_move_continues_from_what_an_earlier_run_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(replica_move, "SLICE_SEGMENTS", 1)
    store = LogStore(tmp_path, dirs=2)
    log = store.open(**small())
    for _ in range(6):
        append(log, batch())
    move(store, log)
    for at in range(4):
        store.manager.moves.turn(at)
    written = []
    real = segment_copy._write_block
    monkeypatch.setattr(
        segment_copy, "_write_block", lambda *args: (written.append(args), real(*args))
    )

    log = store.restart(clean=False, **small())
    turns(store)

    assert len(written) == 3
    assert [offset for offset, _ in stored_values(log)] == list(range(6))
    store.stop(clean=False)


def test_newer_of_two_directories_with_the_partition_wins(store):
    log = store.open()
    append(log, batch())
    log.flush()
    old = Path(log.path)
    other = Path(other_dir(store, log)) / "t-0"
    shutil.copytree(old, other)
    append(log, batch())
    (other / "moved.txt").write_text("a switch that was undone\n")

    log = store.restart(clean=False)

    assert (Path(log.path), log.log_end_offset) == (old, 2)
    assert names(other.parent) == [] or names(other.parent)[0].endswith("-delete")


def test_directory_of_an_older_topic_of_the_name_does_not_count(store):
    """It was deleted while its log directory was offline."""
    log = store.open(topic_id=bytes(16))
    for _ in range(3):
        append(log, batch())
    aside = Path(store.dirs[0]).parent / "aside"
    store.stop(clean=False)
    Path(log.path).rename(aside)
    store.start()
    log = store.open()
    append(log, batch())
    home, other = log.log_dir, Path(other_dir(store, log))
    store.stop(clean=False)
    aside.rename(other / "t-0")

    store.start()
    log = store.open()

    assert (log.log_dir, log.log_end_offset) == (home, 1)
    (stray,) = names(other)
    assert stray.endswith("-stray")


def test_future_of_an_older_topic_of_the_name_is_removed(store):
    log = store.open()
    append(log, batch())
    other = Path(other_dir(store, log))
    future = other / f"t-0.{'0' * 32}-future"
    future.mkdir()
    write_partition_metadata(str(future), bytes(16))

    log = store.restart(clean=False)

    assert not store.manager.moves
    store.manager.tick()
    assert names(other) == []
    assert append(log, batch()) == 1


def test_future_of_a_deleted_partition_is_removed_once_all_directories_are_there(store):
    """Its directory was offline when the topic was deleted."""
    log = store.open()
    other = Path(other_dir(store, log))
    orphan = other / f"gone-0.{'0' * 32}-future"
    orphan.mkdir()
    (orphan / "moved.txt").write_text("")
    known = other / f"t-1.{'0' * 32}-future"
    known.mkdir()

    store.stop(clean=False)
    aside = Path(log.log_dir + ".aside")
    Path(log.log_dir).rename(aside)
    store.start()
    store.manager.moves.remove_orphans(lambda key: key[0] == "t")
    store.manager.tick()
    assert orphan.is_dir()
    store.stop(clean=False)
    aside.rename(log.log_dir)
    store.start()
    store.manager.moves.remove_orphans(lambda key: key[0] == "t")
    store.manager.tick()

    assert not orphan.exists()
    assert known.is_dir()


def test_future_that_is_gone_since_the_start_is_no_move(store):
    log = store.open()
    future = Path(other_dir(store, log)) / f"t-0.{'0' * 32}-future"
    future.mkdir()
    store.stop(clean=False)
    store.start()
    future.rmdir()

    store.open()

    assert not store.manager.moves


def test_slices_that_end_inside_a_batch_are_checked_all_the_same(store, monkeypatch):
    monkeypatch.setattr(replica_moves, "SLICE_BYTES", 50)
    monkeypatch.setattr(replica_move, "SWITCH_BYTES", 0)
    log = store.open()
    for _ in range(9):
        append(log, batch())
    target = move(store, log)

    assert turns(store, 100) == [0]

    assert log.log_dir == target
    assert [offset for offset, _ in stored_values(log)] == list(range(9))


def test_move_reads_no_checkpoint_line_by_line(store, monkeypatch):
    """There may be thousands of lines, and thousands of moves."""
    log = store.open()
    append(log, batch())
    store.manager.checkpoint()
    parsed = []
    parse = checkpoint_module.parse_checkpoint
    monkeypatch.setattr(
        checkpoint_module,
        "parse_checkpoint",
        lambda data, path: (data and parsed.append(path), parse(data, path))[1],
    )

    move(store, log)
    assert turns(store) == [0]

    assert parsed == []
    assert OffsetCheckpoint(log.log_dir, RECOVERY_POINT_CHECKPOINT).line(KEY) is not None
