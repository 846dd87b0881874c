"""To which topic a partition's directory belongs, in a cluster without topic ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.storage.log_store import LogStore, append, batch, stored_values

from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.creation_note import (
    NO_CREATION,
    creation_of,
    is_other_creation,
    read_creation,
    write_creation,
)
from kbroker.storage.dirs.ownership import ByCreation, ByTopicId, DirOwner
from kbroker.storage.formats import CREATION_NOTE, PARTITION_METADATA, SUSPECT_PARTITIONS
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.log_manager import LogManager

pytestmark = pytest.mark.unit

ID = bytes(15) + b"\1"
STORE, OTHER_STORE = 7, 8
OLD, NEW = creation_of(STORE, 100), creation_of(STORE, 200)


def directory(tmp_path: Path, creation: bytes, records: bytes = b"records") -> str:
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020}.log").write_bytes(records)
    if creation:
        write_creation(str(path), creation)
    return str(path)


def belongs(path: str, creation: bytes, *, is_new: bool = False) -> bool:
    return ByCreation().belongs(path, DirOwner(ID, creation), is_new=is_new)


@pytest.mark.parametrize("is_new", [False, True])
def test_directory_of_an_earlier_creation_is_not_its_own(tmp_path: Path, is_new: bool) -> None:
    path = directory(tmp_path, OLD)

    assert ByCreation().is_anothers(path, DirOwner(ID, NEW))
    assert not belongs(path, NEW, is_new=is_new)
    assert read_creation(path) == OLD


@pytest.mark.parametrize("is_new", [False, True])
def test_directory_of_the_same_creation_is_its_own(tmp_path: Path, is_new: bool) -> None:
    path = directory(tmp_path, NEW)

    assert not ByCreation().is_anothers(path, DirOwner(ID, NEW))
    assert belongs(path, NEW, is_new=is_new)


def test_directory_of_an_older_kbroker_or_of_kafka_is_adopted(tmp_path: Path) -> None:
    """Nothing is set aside after an upgrade for want of a note."""
    path = directory(tmp_path, NO_CREATION)

    assert belongs(path, NEW)
    assert read_creation(path) == NEW


def test_records_without_a_note_are_not_those_of_a_new_partition(tmp_path: Path) -> None:
    path = directory(tmp_path, NO_CREATION)

    assert not belongs(path, NEW, is_new=True)


def test_empty_directory_without_a_note_may_be_that_of_a_new_partition(tmp_path: Path) -> None:
    """The process died after it had created the directory."""
    assert belongs(directory(tmp_path, NO_CREATION, b""), NEW, is_new=True)


def test_note_of_another_store_says_nothing(tmp_path: Path) -> None:
    """ZooKeeper was set up again and its nodes copied: all of them are new, and no topic is."""
    path = directory(tmp_path, creation_of(OTHER_STORE, 300))

    assert not ByCreation().is_anothers(path, DirOwner(ID, NEW))
    assert belongs(path, NEW)
    assert read_creation(path) == NEW


def test_note_stays_while_the_store_cannot_be_asked(tmp_path: Path) -> None:
    path = directory(tmp_path, OLD)

    assert belongs(path, NO_CREATION)
    assert read_creation(path) == OLD


def test_new_partition_whose_creation_is_not_known_yet_has_no_records_of_another(
    tmp_path: Path,
) -> None:
    path = directory(tmp_path, OLD)

    assert not belongs(path, NO_CREATION, is_new=True)
    (Path(path) / f"{0:020}.log").write_bytes(b"")
    assert belongs(path, NO_CREATION, is_new=True)
    assert read_creation(path) == NO_CREATION  # it will have records, and not of that one


@pytest.mark.parametrize(
    "torn", [b"", b"version: 0\ncrea", b"\0" * 40, b"version: 0\ncreation: 12"]
)
def test_torn_note_counts_as_none(tmp_path: Path, torn: bytes) -> None:
    """It is not synced when a directory is created."""
    path = directory(tmp_path, OLD)
    (Path(path) / CREATION_NOTE).write_bytes(torn)

    assert not ByCreation().is_anothers(path, DirOwner(ID, NEW))
    assert belongs(path, NEW)
    assert read_creation(path) == NEW


def test_broker_with_topic_ids_removes_the_note_and_one_without_the_id(tmp_path: Path) -> None:
    """Each is of no use to the other, and would contradict what is true when it comes back."""
    path = directory(tmp_path, OLD)

    assert ByTopicId().belongs(path, DirOwner(ID), is_new=False)
    assert not (Path(path) / CREATION_NOTE).exists()
    assert belongs(path, NEW)
    assert not (Path(path) / PARTITION_METADATA).exists()


def test_unknown_creations_are_never_different() -> None:
    assert not is_other_creation(NO_CREATION, NEW)
    assert not is_other_creation(NEW, NO_CREATION)
    assert is_other_creation(OLD, NEW)


# -- logs --


class ClusterStore(LogStore):
    """Logs of a broker in a cluster."""

    def _manager(self, *, clean: bool | dict[str, bool]) -> LogManager:
        return LogManager(
            self.config, self.dirs, self.table, 0, 1, self.clock,
            clean_start=clean, failed_flags=self.failed_flags,
            background=self.make_background(), keeps_topic_ids=False,
        )  # fmt: skip

    def of(self, creation: bytes, *, is_new: bool = False) -> PartitionLog:
        return self.open(creation=creation, is_new=is_new)


@pytest.fixture
def store(tmp_path: Path) -> ClusterStore:
    return ClusterStore(tmp_path)


def test_topic_that_was_created_again_begins_empty_and_the_old_records_are_kept(
    store: ClusterStore,
) -> None:
    append(store.of(OLD, is_new=True), batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)

    log = store.of(NEW)

    assert stored_values(log) == []
    assert read_creation(log.path) == NEW
    (stray,) = Path(store.dirs[0]).glob("t-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0
    store.stop(clean=True)


def test_log_is_found_again_by_its_creation(store: ClusterStore) -> None:
    append(store.of(NEW, is_new=True), batch([b"kept"]))
    store.stop(clean=True)
    store.start(clean=True)

    assert stored_values(store.of(NEW)) == [(0, b"kept")]
    store.stop(clean=True)


def test_partition_that_is_not_open_is_deleted_wherever_it_is(tmp_path: Path) -> None:
    store = ClusterStore(tmp_path, dirs=2)
    append(store.of(OLD, is_new=True), batch([b"old"]))
    at = 0 if store.path().exists() else 1
    store.stop(clean=True)
    OffsetCheckpoint(store.dirs[at], SUSPECT_PARTITIONS).merge({("t", 0): 0})
    future = Path(store.dirs[1 - at]) / f"t-0.{'a' * 32}-future"
    future.mkdir()
    store.start(clean=True)

    store.manager.remove_unopened([("t", 0), ("u", 3)])

    assert not store.path().exists() and not future.exists()
    names = [path.name for one in store.dirs for path in Path(one).glob("t-0*")]
    assert all(name.endswith("-delete") for name in names) and len(names) == 2
    assert ("t", 0) not in store.manager.suspects
    assert "t 0" not in Path(store.dirs[at], "recovery-point-offset-checkpoint").read_text()
    store.clock.advance(store.config["log.segment.delete.delay.ms"])
    store.manager.tick()
    assert not [path for one in store.dirs for path in Path(one).glob("t-0*")]
    store.stop(clean=True)


def test_partition_that_is_not_open_is_set_aside_by_such_an_order(store: ClusterStore) -> None:
    append(store.of(OLD, is_new=True), batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)

    store.manager.remove_unopened([("t", 0)], is_kept=True)

    assert len(list(Path(store.dirs[0]).glob("t-0.*-stray"))) == 1
    store.stop(clean=True)


def test_creation_that_is_learned_while_a_log_is_open_is_noted(store: ClusterStore) -> None:
    log = store.of(NO_CREATION, is_new=True)
    append(log, batch([b"new"]))
    assert read_creation(log.path) == NO_CREATION

    store.manager.learn_creation(0, NEW)
    store.manager.learn_creation(0, OLD)  # it is not asked for again

    assert read_creation(log.path) == NEW and log.owner.creation == NEW
    store.stop(clean=True)


def test_log_of_an_earlier_topic_that_is_open_keeps_its_note(
    store: ClusterStore, caplog: pytest.LogCaptureFixture
) -> None:
    append(store.of(OLD, is_new=True), batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)
    log = store.of(NO_CREATION)

    store.manager.learn_creation(0, NEW)

    assert read_creation(log.path) == OLD
    assert "the next start sets it aside" in caplog.text
    store.stop(clean=True)
