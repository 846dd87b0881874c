"""The writes and syncs of a clean shutdown, with few logs and with many."""

import errno
import os
from pathlib import Path

import pytest
from support.storage.log_store import LogStore, append, batch, checkpoint, stored_values

from kbroker.storage import files
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.log.log_sync import REPLAYED_BYTES_MAX

pytestmark = pytest.mark.unit

# A clean shutdown writes no snapshot for a short log without producers.
PRODUCER = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def test_clean_stop_of_untouched_logs_writes_and_syncs_nothing_of_them(store, monkeypatch):
    append(store.open("t", 0, slot=0), batch())
    store.open("t", 1, slot=1)
    store.stop(clean=True)
    store.start(clean=True)
    written, unwritten = store.open("t", 0, slot=0), store.open("t", 1, slot=1)
    before = {path: path.stat() for path in Path(store.dirs[0]).glob("t-*/*")}

    assert written.sync.seal() is None and unwritten.sync.seal() is None
    assert store.manager.close(clean=True)

    after = {path: path.stat() for path in Path(store.dirs[0]).glob("t-*/*")}
    same = {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in before.items()}
    assert {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in after.items()} == same
    store.start(clean=True)
    assert stored_values(store.open("t", 0, slot=0)) == [(0, b"v" * 10)]


def test_clean_stop_of_many_written_logs_leaves_what_a_clean_start_needs(tmp_path):
    store = LogStore(tmp_path, slots=40)
    for partition in range(40):
        append(store.open("t", partition, slot=partition), batch([b"%d" % partition], **PRODUCER))

    assert store.manager.close(clean=True)

    store.start(clean=True)
    for partition in range(40):
        log = store.open("t", partition, slot=partition)
        assert log.recovery_point == 1
        assert stored_values(log) == [(0, b"%d" % partition)]
        assert store.path(f"{1:020d}.snapshot", partition=partition).exists()
    store.stop(clean=False)


def test_stop_makes_no_snapshot_that_a_start_replaces_by_a_short_walk(store):
    short, long = store.open("t", 0, slot=0), store.open("t", 1, slot=1)
    append(short, batch())
    append(long, batch(size=REPLAYED_BYTES_MAX))

    store.stop(clean=True)

    assert not list(store.path(partition=0).glob("*.snapshot"))
    assert store.path(f"{1:020d}.snapshot", partition=1).exists()


def test_producer_after_a_stop_without_a_snapshot_is_known_to_the_next_start(store):
    append(store.open(), batch())
    log = store.restart(clean=True)
    append(log, batch(**PRODUCER))
    log = store.restart(clean=True)
    assert list(log.appender.producers.entries) == [7]
    store.path(f"{2:020d}.snapshot").unlink()

    log = store.restart(clean=True)

    assert list(log.appender.producers.entries) == [7], "the headers are walked"


def test_clean_stop_after_a_recovery_seals_the_log_again(store):
    append(store.open(), batch(**PRODUCER))
    log = store.restart(clean=False)

    job = log.sync.seal()

    assert job is not None and job.end_offset == 1
    log.close(job)
    assert store.path(f"{1:020d}.snapshot").exists()


@pytest.fixture
def many(tmp_path):
    made = LogStore(tmp_path, slots=20)
    for number in range(20):
        append(made.open("t", number, slot=number), batch(**PRODUCER))
    yield made
    made.stop(clean=False)


def count_calls(monkeypatch, name):
    calls = []
    real = getattr(os, name)
    monkeypatch.setattr(os, name, lambda fd: (calls.append(fd), real(fd))[1])
    return calls


def test_stop_of_many_logs_syncs_the_file_system_and_no_single_file(many, monkeypatch):
    calls = count_calls(monkeypatch, "fdatasync")
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: True)

    assert many.manager.close(clean=True)

    assert calls == []
    assert "t 19 1\n" in checkpoint(many)
    assert not [p for p in many.path("", partition=3).iterdir() if p.stat().st_size > 4000]


def test_stop_of_any_number_of_logs_syncs_the_file_system_once(tmp_path, monkeypatch):
    store = LogStore(tmp_path, slots=600)
    for number in range(600):
        append(store.open("t", number, slot=number), batch())
    syncs = []
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: not syncs.append(self.path))

    assert store.manager.close(clean=True)

    assert syncs == store.dirs


def test_stop_makes_no_file_in_logs_that_were_flushed(many, monkeypatch):
    for log in many.manager.logs():
        log.flush()
    made = []
    real = os.open

    def note(path, flags, *mode):
        if flags & os.O_CREAT and "/t-" in path:
            made.append(path)
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", note)

    assert many.manager.close(clean=True)

    assert made == []
    for number in range(20):
        names = {path.name for path in many.path(partition=number).iterdir()}
        assert f"{1:020d}.snapshot" in names and not [n for n in names if n.endswith(".tmp")]
    many.start(clean=True)
    assert stored_values(many.open("t", 3, slot=3)) == [(0, b"v" * 10)]


def test_file_kept_for_a_stop_is_removed_by_a_start_after_a_kill(store):
    log = store.open()
    append(log, batch(**PRODUCER))
    log.flush()
    assert list(store.path().glob("*.tmp"))

    store.restart(clean=False)

    assert not list(store.path().glob("*.tmp"))


class Backlog(BackgroundDisk):
    """Runs its jobs when it is closed, like a slow disk."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def submit(self, job, on_done):
        self.waiting.append((job, on_done))

    def close(self):
        for job, on_done in self.waiting:
            on_done(job(), None)


@pytest.mark.parametrize("clean", [True, False])
def test_clean_stop_does_not_wait_for_flushes_that_it_does_itself(tmp_path, monkeypatch, clean):
    monkeypatch.setattr(LogStore, "make_background", lambda self: Backlog())
    store = LogStore(tmp_path, slots=20)
    for number in range(20):
        append(store.open("t", number, slot=number), batch())
    for log in store.manager.logs():
        store.manager.on_sealed(log)
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: True)
    calls = count_calls(monkeypatch, "fdatasync")

    assert store.manager.close(clean=clean) == clean

    assert len(calls) == (0 if clean else 20)
    if clean:
        assert "t 19 1\n" in checkpoint(store)


def test_stop_asks_each_file_where_the_kernel_does_not_tell_of_failures(many, monkeypatch):
    calls = count_calls(monkeypatch, "fdatasync")
    monkeypatch.setattr(LocalLogDir, "sync_everything", lambda self: False)

    assert many.manager.close(clean=True)

    assert len(calls) == 20


def test_stop_whose_sync_fails_is_not_clean(many, monkeypatch):
    def fail(self):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(LocalLogDir, "sync_everything", fail)
    calls = count_calls(monkeypatch, "fdatasync")

    assert not many.manager.close(clean=True)

    assert calls == []
    assert many.manager.dirs._flags[0], "the supervisor marks other directories only"
    assert not (Path(many.dirs[0]) / "recovery-point-offset-checkpoint").exists()


def test_file_system_is_synced_and_a_wrong_descriptor_is_told(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert files.sync_file_system(fd) == (files.linux_version() >= (5, 8))
    finally:
        os.close(fd)
    with pytest.raises(OSError):
        files.sync_file_system(-1)
