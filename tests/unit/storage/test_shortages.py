"""Without file descriptors, operations that need a file are rejected, and no log directory goes
offline.
"""

import errno
import logging
import os
from pathlib import Path

import pytest
from support.running.descriptors import no_descriptors, open_files
from support.storage.log_store import (
    NOW_MS,
    append,
    append_error,
    batch,
    end_transaction,
    sent,
    stored_values,
)

import kbroker.storage.log.unsynced
from kbroker._ext.shared.partition_table import OFFLINE, ONLINE
from kbroker.errors import ErrorCode, ShortageError
from kbroker.storage import files, shortages
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.shortages import RETRY_MS

pytestmark = [pytest.mark.unit, pytest.mark.own_process]

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def all_are_for_logs(monkeypatch):
    """A log is opened with the last descriptor, so that it may be the missing one."""
    monkeypatch.setattr(shortages, "RESERVED", 0)


def small(**changes):
    """A segment has room for two batches of one record."""
    return {"segment.bytes": 2 * len(batch()) + 5, **changes}


def assert_online(store):
    assert store.manager.dirs.failures() == {}
    assert store.slot()["state"] == ONLINE


def test_roll_without_descriptors_rejects_the_batch_and_rolls_later(store, caplog):
    log = store.open(**small())
    append(log, batch())
    append(log, batch())

    with no_descriptors():
        assert append_error(log, batch())[0] == ErrorCode.KAFKA_STORAGE_ERROR
        assert "raise the limit on open files" in log.appender.error_text

    assert_online(store)
    assert "raise the limit on open files" in caplog.text
    assert append(log, batch()) == 2
    assert [offset for offset, _ in stored_values(store.restart(clean=False))] == [0, 1, 2]


@pytest.mark.parametrize("left", [1, 2, 3])
def test_roll_that_runs_out_halfway_leaves_a_sound_log(store, left):
    """With room for the new segment, but not for sealing the old one."""
    log = store.open(**small(**{"index.interval.bytes": 1}))
    append(log, sent(7, 0))
    end_transaction(log, 7, commit=False)

    with no_descriptors(left):
        rolled = log.roll(NOW_MS) is None

    assert_online(store)
    end = log.log_end_offset
    append(log, batch())
    assert len(log.segments) == 2 or not rolled
    for clean in (False, True):
        log = store.restart(clean=clean)
        assert log.log_end_offset == end + 1
        assert [offset for offset, _ in stored_values(log)][-1] == end
    assert list_offsets(log, NOW_MS)["offset"] == 0


def test_smaller_batch_after_a_rejected_roll_is_found_again(store):
    """The segment that the roll had created must not block later ones."""
    log = store.open(**small())
    append(log, batch())
    with no_descriptors(1):
        # The log file can be opened, but not its index.
        assert append_error(log, batch(size=30))[0] == ErrorCode.KAFKA_STORAGE_ERROR

    append(log, batch())
    append(log, batch())

    assert len(log.segments) == 2
    log = store.restart(clean=False)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert [offset for offset, _ in stored_values(log)] == [0, 1, 2]


def test_index_that_cannot_grow_for_want_of_a_descriptor_misses_an_entry_only(store):
    log = store.open(**{"index.interval.bytes": 1})
    append(log, batch())

    with no_descriptors():
        append(log, batch())

    append(log, batch())
    assert_online(store)
    assert list_offsets(log, NOW_MS)["offset"] == 0


def test_aborted_transaction_without_a_descriptor_for_its_entry_is_rejected(store):
    """The marker must not be in the log without the entry."""
    log = store.open()
    append(log, sent(7, 0))

    with no_descriptors():
        code, offset = log.appender.append_marker(7, 0, False, 0, NOW_MS)

    assert (code, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert_online(store)
    assert end_transaction(log, 7, commit=False) == 1


def test_flush_without_descriptors_syncs_the_file_system(store, monkeypatch):
    """Otherwise sealed segments would keep their file descriptors forever."""
    log = store.open(**small(**{"flush.ms": 500}))
    synced = []
    sync = files.sync_file_system
    monkeypatch.setattr(
        "kbroker.storage.dirs.log_dir.sync_file_system", lambda fd: (synced.append(fd), sync(fd))[1]
    )
    append(log, batch())
    store.clock.advance(500)

    with no_descriptors():
        store.manager.tick()

    assert_online(store)
    assert synced
    assert log.recovery_point == 1


def test_flush_waits_where_a_sync_of_the_file_system_tells_nothing(store, monkeypatch):
    monkeypatch.setattr(kbroker.storage.log.unsynced, "syncfs_tells_failures", lambda: False)
    log = store.open(**{"flush.ms": 500})
    append(log, sent(7, 0))
    end_transaction(log, 7, commit=False)
    store.clock.advance(500)

    with no_descriptors():
        store.manager.tick()
    assert log.recovery_point == 0
    assert_online(store)

    store.clock.advance(500)
    store.manager.tick()
    assert log.recovery_point == 2


def test_sync_before_a_response_does_without_descriptors(store):
    """flush.messages=1, and the previous segment is not synced yet."""
    log = store.open(**{"flush.messages": 1})
    append(log, batch())
    log.roll(NOW_MS)
    log.sync.names_changed()

    with no_descriptors():
        log.appender.sync_now()

    assert_online(store)


def test_failed_sync_takes_the_directory_offline_whatever_its_errno(store, monkeypatch):
    """A failed open may be retried; a failed sync may not."""
    log = store.open(**{"flush.ms": 500})
    append(log, batch())
    store.clock.advance(500)

    def fails(_fd):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fdatasync", fails)
    store.manager.tick()

    assert list(store.manager.dirs.failures()) == store.dirs
    assert store.slot()["state"] == OFFLINE


def test_failed_sync_of_the_file_system_without_descriptors_takes_it_offline(store, monkeypatch):
    log = store.open(**{"flush.ms": 500})
    append(log, batch())
    store.clock.advance(500)

    def fails(_fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("kbroker.storage.dirs.log_dir.sync_file_system", fails)
    with no_descriptors():
        store.manager.tick()

    assert list(store.manager.dirs.failures()) == store.dirs


@pytest.mark.parametrize("left", range(6))
@pytest.mark.parametrize("clean", [False, True])
def test_partition_that_cannot_be_opened_is_opened_later(store, caplog, left, clean):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    store.stop(clean=clean)
    store.start(clean=clean)
    caplog.set_level(logging.ERROR)

    with no_descriptors(left):
        opened = store.try_open(**small())

    assert store.manager.dirs.failures() == {}
    if opened is None:
        assert store.slot()["state"] == OFFLINE
        assert "Too many open files; raise the limit" in store.manager.offline_reason(0)
        assert "Too many open files; raise the limit" in caplog.text
        assert store.manager.shortages.due() == set()
        store.clock.advance(RETRY_MS)
        assert store.manager.shortages.due() == {0}
    log = store.open(**small())
    assert_online(store)
    assert store.manager.offline_reason(0) is None
    assert [offset for offset, _ in stored_values(log)] == [0, 1, 2]


def test_partition_that_waits_to_be_opened_holds_no_descriptors(store):
    """Each attempt would take some more, and leave less for the next."""
    log = store.open(**small())
    for _ in range(8):
        append(log, batch())
    # It is unknown which segments are synced, so each must be opened.
    store.stop(clean=False)
    store.start(clean=False)
    before = open_files(store.dirs[0])

    left, opened = 0, None
    while opened is None:
        assert open_files(store.dirs[0]) == before, left
        with no_descriptors(left):
            opened = store.try_open(**small())
        left += 1

    assert left > len(opened.segments)


def test_last_descriptors_are_not_for_further_logs(store, monkeypatch):
    """Open logs need some to be rolled, synced and read."""
    monkeypatch.setattr(shortages, "RESERVED", 3)
    log = store.open(**small())

    with no_descriptors(3):
        assert store.try_open("u", slot=1) is None
        for _ in range(3):
            append(log, batch())
    with no_descriptors(4):
        assert store.try_open("u", slot=1) is not None

    assert_online(store)


@pytest.mark.parametrize("left", range(4))
def test_partition_that_cannot_be_created_is_created_later(store, left):
    with no_descriptors(left):
        store.try_open()

    assert store.manager.dirs.failures() == {}
    append(store.open(), batch())
    assert store.restart(clean=False).log_end_offset == 1


def test_deletion_of_records_without_descriptors_continues(store):
    log = store.open(**small(), leader_epoch=3)
    for _ in range(6):
        append(log, batch())

    with no_descriptors():
        assert log.delete_records(3) == 3

    assert_online(store)
    assert [segment.base_offset for segment in log.segments] == [2, 4]
    assert not list(Path(log.path).glob(f"{0:020d}.log"))


def test_deletion_of_records_inside_a_transaction_changes_nothing_without_descriptors(store):
    """The start of the transaction cannot be found then."""
    log = store.open(**small())
    append(log, sent(7, 0, 2))
    append(log, sent(7, 2, 2))
    append(log, batch())

    with no_descriptors(), pytest.raises(ShortageError):
        log.delete_records(3)

    assert log.log_start_offset == 0
    assert_online(store)
    assert log.delete_records(3) == 3
    assert log.last_stable_offset == 3


def test_retention_without_descriptors_comes_back_later(store):
    log = store.open(**small(**{"retention.ms": 1000}))
    for _ in range(3):
        append(log, batch())
    log = store.restart(clean=True, **small(**{"retention.ms": 1000}))
    store.clock.advance(HOUR_MS)
    store.manager.tick()
    store.clock.advance(HOUR_MS)

    with no_descriptors():
        store.manager.tick()

    assert_online(store)


def test_checkpoints_without_descriptors_are_written_later(store, caplog):
    log = store.open()
    append(log, batch())
    log.flush()

    with no_descriptors():
        store.manager.checkpoint()

    assert_online(store)
    assert "checkpoints of" in caplog.text
    store.manager.checkpoint()
    text = (Path(store.dirs[0]) / "recovery-point-offset-checkpoint").read_text()
    assert text == "0\n1\nt 0 1\n"


def test_deletion_of_partitions_without_descriptors_continues(store):
    append(store.open(), batch())
    store.open("u", slot=1)

    with no_descriptors():
        store.manager.remove_partitions([0])

    assert store.manager.dirs.failures() == {}
    assert not store.path().exists()
    assert store.open(topic_id=bytes(16)).log_end_offset == 0


def test_lines_that_a_shortage_left_behind_are_dropped_before_the_partition_is_made_again(store):
    """Even if checkpoints were written since: a new log must not start with an old one's."""
    append(store.open(), batch(5))
    store.manager.checkpoint()
    store.open("other", 0, slot=1)
    with no_descriptors():
        store.manager.remove_partitions([0])
    store.manager.checkpoint()
    store.manager.tick()
    left = OffsetCheckpoint(store.dirs[0], "replication-offset-checkpoint")
    assert ("t", 0) in left.read()

    store.open(topic_id=bytes(16))

    assert ("t", 0) not in left.read()


def test_stop_without_descriptors_is_clean_or_says_that_it_is_not(store):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())

    with no_descriptors():
        clean = store.manager.close(clean=True)

    store.start(clean=clean)
    assert [offset for offset, _ in stored_values(store.open(**small()))] == [0, 1, 2]


def test_shortage_of_maps_is_told_from_a_failure(tmp_path, monkeypatch):
    """mmap fails with ENOMEM when vm.max_map_count is reached."""
    error = ShortageError(errno.ENOMEM, "x.index")

    assert isinstance(error, OSError)
    assert "vm.max_map_count" in str(error)
    assert "x.index" in str(error)
