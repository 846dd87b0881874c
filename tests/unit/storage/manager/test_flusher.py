"""Flushes of many logs at once, and the consequences of a failed one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.running.descriptors import open_files
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker.storage.background import BackgroundDisk
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.log_dirs import FAILING
from kbroker.storage.files import linux_version
from kbroker.storage.log import unsynced
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager import flusher as flusher_module
from kbroker.storage.manager.flusher import FLUSH_AT_ONCE_MIN

pytestmark = pytest.mark.unit

MANY = FLUSH_AT_ONCE_MIN
COUNT = MANY + 1


class LateDisk(BackgroundDisk):
    """Runs its jobs on command."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Any] = []

    def submit(self, job: Any, on_done: Any) -> None:
        self.jobs.append((job, on_done))

    def run_one(self) -> None:
        job, on_done = self.jobs.pop(0)
        try:
            result, error = job(), None
        except OSError as failure:
            result, error = None, failure
        on_done(result, error)

    def run_all(self) -> None:
        while self.jobs:
            self.run_one()

    def wait(self) -> None:
        self.run_all()

    def close(self) -> None:
        self.run_all()


class Late(LogStore):
    def make_background(self) -> LateDisk:
        self.disk = LateDisk()
        return self.disk


@pytest.fixture
def store(tmp_path):
    made = Late(tmp_path, slots=COUNT)
    yield made
    made.stop(clean=False)


@pytest.fixture
def syncs(monkeypatch):
    """The syncs: "all" for a file system, "file" for each single one."""
    found: list[str] = []
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: not found.append("all"))
    monkeypatch.setattr(flusher_module, "syncfs_tells_failures", lambda: True)
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(unsynced, name, lambda path: found.append("file"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: found.append("file"))
    return found


def opened(store: LogStore, count: int, **config: Any) -> list[PartitionLog]:
    """Logs with one unflushed record each."""
    logs = [store.open("t", number, slot=number, **config) for number in range(count)]
    for log in logs:
        append(log, batch())
    return logs


def make_due(store: LogStore) -> None:
    store.clock.advance(1000)
    store.manager.tick()


def open_log_files(store: LogStore) -> int:
    """The number of open descriptors for logs."""
    return sum(file.endswith(".log") for file in open_files(store.dirs[0]))


def test_many_logs_that_are_due_cost_one_sync(store, syncs):
    """One per log took 0.1 ms to 10 ms of each second, times their number."""
    logs = opened(store, MANY)
    append(logs[1], batch(producer_id=7, producer_epoch=0, base_sequence=0))
    before = open_log_files(store)

    make_due(store)
    assert open_log_files(store) == before  # thousands of logs may be due
    store.disk.run_all()

    assert syncs == ["all"]
    assert [log.recovery_point for log in logs] == [1, 2] + [1] * (MANY - 2)
    spare = [log for log in logs if list(Path(log.path).glob("spare.snapshot.tmp"))]
    assert spare == [logs[1]], "what has no producers needs no file for a snapshot"
    assert not store.manager.has_unflushed


def test_fewer_logs_are_synced_one_by_one(store, syncs):
    """A sync of the file system also writes data of other programs."""
    logs = opened(store, MANY - 1)

    make_due(store)
    store.disk.run_all()

    assert "all" not in syncs
    assert [log.recovery_point for log in logs] == [1] * (MANY - 1)


def test_flushes_that_wait_for_a_slow_disk_are_done_together(store, syncs):
    logs = opened(store, MANY)
    for log in logs:
        store.manager.on_sealed(log)

    store.disk.run_one()

    assert syncs == ["all"]
    assert [log.recovery_point for log in logs] == [1] * MANY
    store.disk.run_all()
    assert syncs == ["all"]


def test_record_appended_after_the_flush_began_is_left_to_the_next(store, syncs):
    """The sync may have run before it was written."""
    logs = opened(store, MANY)
    make_due(store)
    append(logs[3], batch())

    store.disk.run_all()

    assert logs[3].recovery_point == 1
    assert logs[4].recovery_point == 1
    assert store.manager.has_unflushed


@pytest.mark.parametrize("count", [1, MANY])
def test_cut_does_not_wait_for_a_flush_that_then_claims_nothing_above_it(store, syncs, count):
    """All partitions of the worker would wait for the disk."""
    log = opened(store, count)[0]
    append(log, batch())
    append(log, batch())
    make_due(store)
    assert (log.log_end_offset, len(store.disk.jobs)) == (3, 1)

    log.truncate_to(1, NOW_MS)
    append(log, batch())
    append(log, batch())
    assert len(store.disk.jobs) == 1, "nothing has waited"
    store.disk.run_all()

    assert log.recovery_point == 1
    assert log.sync.is_behind, "the two that came after the cut are for the next flush"
    make_due(store)
    store.disk.run_all()
    assert log.recovery_point == 3


def test_cut_below_the_recovery_point_waits_for_what_may_still_contain_it(store, syncs):
    [log] = opened(store, 1)
    append(log, batch())
    make_due(store)
    store.disk.run_all()
    append(log, batch())
    make_due(store)
    store.manager.checkpoint()
    assert store.disk.jobs

    log.truncate_to(1, NOW_MS)

    assert not store.disk.jobs
    text = (Path(store.dirs[0]) / "recovery-point-offset-checkpoint").read_text()
    assert text == "0\n1\nt 0 1\n"
    assert log.recovery_point == 1


def test_flush_with_the_file_system_settles_names_and_aborted_transactions(store, syncs):
    logs = opened(store, MANY)
    append(logs[0], sent(7, 0))
    end_transaction(logs[0], 7, commit=False)
    assert logs[0].segments.files.aborted.unsynced

    make_due(store)
    store.disk.run_all()

    assert not logs[0].segments.files.aborted.unsynced
    assert not logs[0].sync._unsynced
    assert logs[0].recovery_point == 3


def test_each_file_is_asked_where_the_kernel_does_not_tell_of_failures(store, syncs, monkeypatch):
    monkeypatch.setattr(flusher_module, "syncfs_tells_failures", lambda: False)
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: bool(syncs.append("all")))
    logs = opened(store, MANY)

    make_due(store)
    store.disk.run_all()

    assert syncs == ["all"] + ["file"] * MANY
    assert [log.recovery_point for log in logs] == [1] * MANY


def test_failed_sync_of_many_logs_takes_the_directory_offline_and_is_not_repeated(
    store, syncs, monkeypatch
):
    def fail(self: LocalLogDir) -> bool:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(LocalLogDir, "sync_everything", fail)
    logs = opened(store, COUNT)
    store.manager.on_sealed(logs[-1])  # another flush that waits
    make_due(store)

    job, on_done = store.disk.jobs.pop(0)
    with pytest.raises(OSError) as failure:
        job()
    assert store.manager.dirs._flags[0] == FAILING  # for the next process, if this one dies now
    on_done(None, failure.value)
    store.disk.run_all()

    assert store.manager.dirs.failures().keys() == set(store.dirs)
    assert syncs == []
    assert open_log_files(store) == 0
    assert not (Path(store.dirs[0]) / "recovery-point-offset-checkpoint").exists()


def test_file_that_cannot_be_opened_to_sync_it_takes_only_its_directory_offline(
    store, syncs, monkeypatch
):
    """The append that rolled the segment goes on, and so does the process."""

    def fail(path: str) -> int:
        raise OSError(errno.EIO, "broken", path)

    (log,) = opened(store, 1)
    before = open_log_files(store)
    monkeypatch.setattr(unsynced, "open_file", fail)

    assert log.roll(store.clock.now_ms()) is None
    assert not store.manager.dirs.failures()
    store.disk.run_all()

    assert store.manager.dirs.failures().keys() == set(store.dirs)
    assert syncs == []
    assert open_log_files(store) < before


def test_directories_are_synced_each_for_itself(tmp_path, syncs, monkeypatch):
    """A failure in one of them does not affect the other."""
    synced = []
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: not synced.append(self.path))
    store = Late(tmp_path, dirs=2, slots=MANY + 2)
    logs = opened(store, MANY + 2)
    assert {log.log_dir for log in logs} == set(store.dirs)
    make_due(store)

    store.disk.run_all()

    assert synced == []  # half of them each: too few
    for log in logs:
        append(log, batch())
    monkeypatch.setattr(flusher_module, "FLUSH_AT_ONCE_MIN", MANY // 2)
    make_due(store)
    store.disk.run_all()
    assert sorted(synced) == store.dirs
    store.stop(clean=False)


def test_stop_does_not_finish_a_flush_of_many_logs_file_by_file(store, syncs, monkeypatch):
    """It creates a file in each log that it flushes first, which may take a second."""
    logs = opened(store, MANY)
    for log in logs:
        append(log, batch(producer_id=7, producer_epoch=0, base_sequence=0))
    made = []

    def make(directory: str) -> None:
        made.append(directory)
        store.manager._flusher.is_closing = True

    monkeypatch.setattr(unsynced, "make_spare", make)
    make_due(store)
    store.disk.run_one()

    assert store.manager.close(clean=True)

    assert len(made) == 1
    lines = (Path(store.dirs[0]) / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert sorted(lines[2:]) == sorted(f"t {number} 2" for number in range(MANY))


@pytest.mark.skipif(linux_version() < (5, 8), reason="syncfs does not tell of failures")
def test_many_logs_are_recovered_up_to_what_one_sync_wrote(tmp_path):
    """With real system calls."""
    store = LogStore(tmp_path, slots=MANY)
    opened(store, MANY)
    make_due(store)
    store.manager.checkpoint()

    store.stop(clean=False)
    store.start(clean=False)

    assert store.open("t", 5, slot=5).recovery_point == 1
    store.stop(clean=False)
