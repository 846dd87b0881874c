"""Deletions requested earlier."""

from __future__ import annotations

import os

import pytest

from kbroker.storage import files
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.dirs.deletions import DelayedDeletions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("moment", ["listdir", "rmdir"])
def test_directory_that_another_worker_removes_at_the_same_time_is_no_failure(
    moment, tmp_path, monkeypatch, caplog
):
    """A restarted first worker removes existing ones, and others wait to remove them too."""
    doomed, next_one = tmp_path / "t-0.x-delete", tmp_path / "t-1.x-delete"
    for path in (doomed, next_one):
        path.mkdir()
        (path / "0.log").write_bytes(b"x")
    original, remove = getattr(os, moment), os.rmdir

    def overtaken(path):
        if str(path) == str(doomed):
            (doomed / "0.log").unlink(missing_ok=True)
            remove(path)
        return original(path)

    monkeypatch.setattr(files.os, moment, overtaken)
    deletions = DelayedDeletions(BackgroundDisk(inline=True))
    deletions.add([str(doomed), str(next_one)], 0)
    deletions.start_due(0)

    assert not doomed.exists() and not next_one.exists()
    assert not caplog.records
