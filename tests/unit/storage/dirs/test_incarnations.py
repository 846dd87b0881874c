"""Whether a log directory is the one that the broker used last, as its last start left it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.incarnations import (
    Incarnation,
    doubt_about,
    next_start,
    read_incarnation,
    suspect_all,
    write_incarnation,
)
from kbroker.storage.formats import INCARNATION_NAME, SUSPECT_PARTITIONS

pytestmark = pytest.mark.unit

MINE, OTHER = "a" * 32, "b" * 32
KNOWN = {MINE: 5, OTHER: 2}


def doubt(found: Incarnation | None, *, was_clean: bool = True) -> str:
    return doubt_about(found, KNOWN, was_clean=was_clean)


@pytest.mark.parametrize("was_clean", [False, True])
def test_directory_of_the_last_start_is_what_it_was(was_clean: bool) -> None:
    """A killed process loses nothing that it wrote; power failures are another matter."""
    assert doubt(Incarnation(MINE, 5), was_clean=was_clean) == ""


def test_directory_whose_start_the_store_never_heard_of_is_what_it_was() -> None:
    """The broker died between noting it there and in the store; or the store is an older one."""
    assert doubt(Incarnation(MINE, 6)) == ""


def test_restored_directory_is_in_doubt_although_it_was_closed_in_order() -> None:
    assert doubt(Incarnation(MINE, 4)).startswith("it is as start 4 left it")


def test_empty_or_much_older_directory_is_in_doubt() -> None:
    assert INCARNATION_NAME in doubt(None)


def test_directory_of_somebody_else_is_in_doubt() -> None:
    assert "none of the directories" in doubt(Incarnation("c" * 32, 9))


def test_copy_of_a_directory_in_use_is_in_doubt_and_one_of_a_closed_directory_is_not() -> None:
    copied = Incarnation(MINE, 5, is_copied=True)

    assert "copy" in doubt(copied, was_clean=False)
    assert doubt(copied) == ""


@pytest.mark.parametrize("found", [None, Incarnation(MINE, 1)])
def test_nothing_is_in_doubt_before_the_store_has_notes(found: Incarnation | None) -> None:
    """After an upgrade."""
    assert doubt_about(found, {}, was_clean=False) == ""


def test_each_start_has_a_higher_number_and_a_new_directory_another_id() -> None:
    assert next_start(Incarnation(MINE, 3), KNOWN) == Incarnation(MINE, 6)
    assert next_start(Incarnation(MINE, 8), KNOWN) == Incarnation(MINE, 9)
    first, second = next_start(None, KNOWN), next_start(None, KNOWN)
    assert first.start == second.start == 1 and len({first.id, second.id, MINE}) == 3


def test_file_is_read_as_it_was_written_and_knows_that_it_was_copied(tmp_path: Path) -> None:
    one, copy = tmp_path / "one", tmp_path / "copy"
    one.mkdir()
    for start in (1, 2):
        write_incarnation(str(one), Incarnation(MINE, start))
        assert read_incarnation(str(one)) == Incarnation(MINE, start)
    shutil.copytree(one, copy)
    moved = one.rename(tmp_path / "moved")

    assert read_incarnation(str(copy)) == Incarnation(MINE, 2, is_copied=True)
    assert read_incarnation(str(moved)) == Incarnation(MINE, 2)
    assert [path.name for path in moved.iterdir()] == [INCARNATION_NAME]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"version: 1\nid: a\nstart: 1\ninode: 1\n",
        b"version: 0\nid: a\nstart: x\ninode: 1\n",
        b"version: 0\nid: \nstart: 1\ninode: 1\n",
        b"version: 0\nstart: 1\ninode: 1\n",
        b"no fields",
        "version: 0\nid: ä\nstart: 1\ninode: 1\n".encode(),
    ],
)
def test_file_that_cannot_be_parsed_counts_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / INCARNATION_NAME).write_bytes(data)

    assert read_incarnation(str(tmp_path)) is None


def test_every_partition_of_a_directory_in_doubt_is_suspect(tmp_path: Path) -> None:
    for name in ("t-0", "t-1", f"u-0.{'a' * 32}-stray"):
        (tmp_path / name).mkdir()

    assert suspect_all(str(tmp_path)) == 2
    listed = OffsetCheckpoint(str(tmp_path), SUSPECT_PARTITIONS).read()
    assert listed is not None and set(listed) == {("t", 0), ("t", 1)}
