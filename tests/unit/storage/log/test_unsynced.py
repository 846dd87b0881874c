"""Sync jobs run later than they are created, in another thread; the log may be gone by then."""

import os

import pytest

import kbroker.storage.log.unsynced
from kbroker.storage.log.unsynced import Unsynced
from kbroker.storage.segments.segment import Segment

pytestmark = pytest.mark.unit


def test_job_of_a_log_deleted_meanwhile_is_no_failure_of_the_disk(tmp_path):
    """A failure would take the log directory offline, and every partition in it."""
    path = tmp_path / "t-0"
    path.mkdir()
    unsynced = Unsynced(str(path), str(tmp_path))
    sealed = Segment(str(path), 0, 0, 10)
    fd = os.open(sealed.path(".log"), os.O_RDWR | os.O_CREAT)
    unsynced.add(fd, sealed)
    unsynced.names_changed()
    job = unsynced.job(10, 10)

    path.rename(tmp_path / "t-0.0123-delete")
    job.run(lambda: True)

    assert job.end_offset == 10
    unsynced.close()


def test_job_that_cannot_sync_fails(tmp_path):
    unsynced = Unsynced(str(tmp_path), str(tmp_path))
    reader, writer = os.pipe()  # fdatasync rejects a pipe
    job = unsynced.job(1, 1, active_fd=writer)

    with pytest.raises(OSError):
        job.run(lambda: True)

    os.close(reader)
    os.close(writer)


def test_names_that_a_job_has_taken_on_are_synced_by_the_next_one_too(tmp_path):
    """The first job may still be queued when a response waits for the second."""
    unsynced = Unsynced(str(tmp_path / "t-0"), str(tmp_path))
    unsynced.names_changed(path_is_new=True)
    slow = unsynced.job(1, 1)
    urgent = unsynced.job(1, 1)

    assert urgent.directories == slow.directories == [str(tmp_path / "t-0"), str(tmp_path)]
    unsynced.settle(urgent, 1)
    assert not unsynced
    unsynced.names_changed()
    unsynced.settle(slow, 1)
    assert unsynced.job(1, 1).directories == [str(tmp_path / "t-0")]


def test_job_of_many_files_syncs_the_file_system_instead(tmp_path, monkeypatch):
    unsynced = Unsynced(str(tmp_path), str(tmp_path))
    for base_offset in range(0, 50, 10):
        sealed = Segment(str(tmp_path), base_offset, 0, base_offset + 10)
        unsynced.add(os.open(sealed.path(".log"), os.O_RDWR | os.O_CREAT), sealed)
    data, names, calls = [], [], []
    monkeypatch.setattr(os, "fdatasync", data.append)
    monkeypatch.setattr(kbroker.storage.log.unsynced, "sync_file", names.append)

    for tells_failures in (True, False):
        unsynced.job(50, 50).run(lambda tells=tells_failures: (calls.append(1), tells)[1])

    assert len(calls) == 2
    assert names == []
    # For the second: if syncfs does not report failures, the data files are synced.
    assert len(data) == 5
    unsynced.close()


def test_job_of_few_files_leaves_the_file_system_alone(tmp_path, monkeypatch):
    unsynced = Unsynced(str(tmp_path), str(tmp_path))
    sealed = Segment(str(tmp_path), 0, 0, 10)
    unsynced.add(os.open(sealed.path(".log"), os.O_RDWR | os.O_CREAT), sealed)

    synced, calls = [], []
    monkeypatch.setattr(kbroker.storage.log.unsynced, "sync_file", synced.append)
    job = unsynced.job(10, 10)
    files = list(job.files)

    job.run(lambda: (calls.append(1), True)[1])

    assert len(files) == 4
    assert synced == files
    assert calls == []
    unsynced.close()
