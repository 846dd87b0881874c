"""The cleaner's checkpoint: when its lines are in the file."""

from __future__ import annotations

import os
from errno import EIO, ENOSPC
from pathlib import Path

import pytest
from support.running.descriptors import no_descriptors

from kbroker.storage.checkpoint import OffsetCheckpoint, TopicPartition
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints

pytestmark = pytest.mark.unit

A, B = ("t", 0), ("t", 1)


def stored(directory: Path) -> dict[TopicPartition, int] | None:
    return OffsetCheckpoint(str(directory), "cleaner-offset-checkpoint").read()


def test_later_lines_are_written_together(tmp_path, monkeypatch):
    """Each write writes the whole file; with 5,000 logs that took a third of a round."""
    checkpoints = CleanerCheckpoints([str(tmp_path)])
    renamed = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *args: renamed.append(args) or rename(*args))

    checkpoints.put_all(str(tmp_path), {A: 0, B: 0})
    checkpoints.put(str(tmp_path), A, 0)
    checkpoints.put_later(str(tmp_path), A, 5)
    checkpoints.put_later(str(tmp_path), B, 7)

    assert stored(tmp_path) == {A: 0, B: 0}
    assert checkpoints.get(str(tmp_path), B) == 7
    checkpoints.write()
    checkpoints.write()
    assert stored(tmp_path) == {A: 5, B: 7}
    assert len(renamed) == 2


def test_line_put_for_later_is_written_when_it_must_be_there(tmp_path):
    """The next compaction relies on it before ``write`` is due."""
    checkpoints = CleanerCheckpoints([str(tmp_path)])
    checkpoints.put_later(str(tmp_path), A, 5)

    checkpoints.put(str(tmp_path), A, 5)

    assert stored(tmp_path) == {A: 5}


def test_removed_line_is_not_written_later(tmp_path):
    """The partition of a recreated topic would inherit it."""
    checkpoints = CleanerCheckpoints([str(tmp_path)])
    checkpoints.put(str(tmp_path), A, 3)
    checkpoints.put_later(str(tmp_path), A, 5)
    checkpoints.put_later(str(tmp_path), B, 7)

    checkpoints.remove([A])
    checkpoints.write()

    assert stored(tmp_path) == {B: 7}


@pytest.mark.own_process
def test_write_that_found_no_descriptor_is_repeated(tmp_path):
    checkpoints = CleanerCheckpoints([str(tmp_path)])
    checkpoints.put(str(tmp_path), A, 3)
    checkpoints.put_later(str(tmp_path), A, 5)

    with no_descriptors():
        checkpoints.write()
    checkpoints.write()

    assert stored(tmp_path) == {A: 5}


@pytest.mark.parametrize(("error", "written"), [(ENOSPC, {A: 5}), (EIO, {A: 3})])
def test_write_that_failed_is_repeated_only_on_a_full_disk(tmp_path, monkeypatch, error, written):
    checkpoints = CleanerCheckpoints([str(tmp_path)])
    checkpoints.put(str(tmp_path), A, 3)
    checkpoints.put_later(str(tmp_path), A, 5)

    def fail(*_: object) -> None:
        raise OSError(error, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        checkpoints.write()
    checkpoints.write()

    assert stored(tmp_path) == written
