"""Full disks, and failing disks."""

import os
from pathlib import Path

import pytest
from fault import disks
from support.storage.log_store import (
    NOW_MS,
    LogStore,
    append,
    append_error,
    batch,
    break_file,
    stored_values,
)

from kbroker._ext.shared.partition_table import OFFLINE, ONLINE
from kbroker.errors import StorageError
from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.fault

KAFKA_STORAGE_ERROR = 56
DISK_BYTES = 256 * 1024


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    with disks.small_disk(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def fill(path: Path) -> Path:
    """Use up every free byte."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


def append_until_full(log) -> list[tuple[int, bytes]]:
    """Append 3,000 bytes at a time until one is rejected; returns the accepted ones."""
    accepted = []
    while True:
        value = b"%d" % len(accepted) + b"v" * 3000
        code, base, *_ = log.appender.append_batch(batch([value]), NOW_MS)
        if code:
            assert code == KAFKA_STORAGE_ERROR
            return accepted
        accepted.append((base, value))
        log.publish()


def test_full_disk_rejects_appends_keeps_reading_and_heals(small_disk):
    store = LogStore(small_disk)
    log = store.open(**{"index.interval.bytes": 100})
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 65536)

    accepted = append_until_full(log)
    text = log.appender.error_text

    assert store.dirs[0] in text and "bytes free" in text
    assert store.slot()["state"] == ONLINE
    assert stored_values(log) == accepted  # nothing of the rejected batch is left behind
    assert append_error(log, batch([b"v" * 3000]))[0] == KAFKA_STORAGE_ERROR
    assert list_offsets(log, NOW_MS)["offset"] == 0
    filler.unlink()
    assert append(log, batch([b"v" * 3000])) == len(accepted)
    store.stop(clean=True)


def test_full_disk_does_not_stop_the_next_start(small_disk):
    store = LogStore(small_disk)
    config = {"index.interval.bytes": 100, "segment.bytes": 20_000}
    log = store.open(**config)
    accepted = append_until_full(log)
    fill(small_disk)

    for clean in (False, True, True):
        store.stop(clean=clean)
        store.start(clean=False)
        log = store.try_open(**config)
        assert log is not None, store.manager.offline_reason(0)
        assert stored_values(log) == accepted

    (small_disk / "filler").unlink()
    store.manager.tick()
    store.stop(clean=False)


def test_full_disk_rejects_a_roll_and_rolls_later(small_disk):
    store = LogStore(small_disk)
    log = store.open(**{"segment.bytes": 4000})
    append(log, batch([b"v" * 3000]))
    filler = fill(small_disk)

    assert append_error(log, batch([b"v" * 3000]))[0] == KAFKA_STORAGE_ERROR

    filler.unlink()
    assert append(log, batch([b"v" * 3000])) == 1
    assert len(log.segments) == 2
    store.stop(clean=False)


def test_full_disk_deletes_records_and_segments(small_disk):
    store = LogStore(small_disk)
    log = store.open(**{"segment.bytes": 20_000, "file.delete.delay.ms": 0})
    accepted = append_until_full(log)
    fill(small_disk)

    log.delete_records(len(accepted))
    store.manager.tick()

    assert append(log, batch([b"v" * 3000])) == len(accepted)
    store.stop(clean=False)


# ---- a failing disk ----


def test_failed_write_takes_only_its_directory_offline(tmp_path):
    store = LogStore(tmp_path, dirs=2)
    bad = store.open("a", 0, slot=0)
    neighbour = store.open("b", 0, slot=1)
    good = store.open("c", 0, slot=2)
    fourth = store.open("d", 0, slot=3)
    assert bad.log_dir == good.log_dir != neighbour.log_dir == fourth.log_dir
    append(bad, batch())
    break_file(bad)

    with pytest.raises(StorageError):
        bad.appender.append_batch(batch(), NOW_MS)
    gone = store.manager.fail_directory_of(0)

    assert sorted(gone) == [0, 2]
    assert store.slot(0)["state"] == store.slot(2)["state"] == OFFLINE
    assert store.manager.appender(0) is None
    assert append(neighbour, batch()) == 0
    assert store.manager.dirs.failures().keys() == {store.dirs[0]}
    assert store.try_open("a", 0, slot=0) is None
    assert store.open("e", 0, slot=4).log_dir == store.dirs[1]
    assert not store.manager.close(clean=True)


def test_failed_sync_is_final(tmp_path):
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch())
    break_file(log)

    with pytest.raises(StorageError):
        log.appender.sync_now()

    with pytest.raises(StorageError):
        log.appender.sync_now()
    assert append_error(log, batch())[0] == KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0
    store.stop(clean=False)


def test_failed_background_flush_takes_the_directory_offline(tmp_path):
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch())
    break_file(log)
    store.clock.advance(1000)

    changed = store.manager.tick()

    assert changed == [0]
    assert store.slot()["state"] == OFFLINE
    assert store.manager.log(0) is None
    store.stop(clean=False)


def test_failed_directory_is_not_used_by_a_worker_that_starts_again(tmp_path):
    """A sync after a failed one reports success for lost data."""
    store = LogStore(tmp_path, dirs=2)
    store.stop(clean=True)
    store.failed_flags = bytearray(2)
    store.start(clean=True)
    log = store.open()
    other = LogStore(tmp_path / "other", dirs=2)
    other.stop(clean=True)
    other.failed_flags = store.failed_flags
    other.start(clean=True)
    mate = other.open()
    append(log, batch())
    break_file(log)
    store.clock.advance(1000)
    store.manager.tick()
    store.stop(clean=False)

    store.start(clean=False)

    assert list(store.failed_flags) == [1, 0]
    assert store.try_open() is None
    assert store.slot()["state"] == OFFLINE
    assert store.manager.dirs.failures().keys() == {store.dirs[0]}
    assert store.manager.close(clean=True) is False  # the next start recovers
    # The broker's other workers do not continue in it either.
    append(mate, batch())
    assert other.manager.tick() == [0]
    assert other.slot()["state"] == OFFLINE
    other.stop(clean=False)


def test_failed_sync_counts_even_if_its_worker_dies_at_once(tmp_path):
    store = LogStore(tmp_path)
    store.stop(clean=True)
    store.failed_flags = bytearray(1)
    store.start(clean=True)
    log = store.open()
    append(log, batch())
    break_file(log)
    store.clock.advance(1000)
    store.manager._flusher._on_flushed = lambda *_: None  # killed before it hears of it
    store.manager.tick()
    assert store.manager.dirs.failures() == {}

    store.start(clean=False)

    assert store.try_open() is None
    store.stop(clean=False)


def test_unreadable_directory_is_offline_from_the_start(tmp_path):
    store = LogStore(tmp_path, dirs=2)
    store.stop(clean=True)
    os.rename(store.dirs[0], store.dirs[0] + ".gone")

    store.start(clean=True)

    assert store.open().log_dir == store.dirs[1]
    assert store.manager.dirs.failures().keys() == {store.dirs[0]}
    store.stop(clean=True)
