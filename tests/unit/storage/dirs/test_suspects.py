"""The partitions that a power failure may have cut short, until they are known to be whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.storage.log_store import LogStore

from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.formats import SUSPECT_PARTITIONS

pytestmark = pytest.mark.unit

A, B = ("t", 0), ("t", 1)


def suspect(store: LogStore, *keys: tuple[str, int], number: int = 0) -> None:
    OffsetCheckpoint(store.dirs[number], SUSPECT_PARTITIONS).merge(dict.fromkeys(keys, 0))


def listed(store: LogStore, number: int = 0) -> set[tuple[str, int]]:
    return set(OffsetCheckpoint(store.dirs[number], SUSPECT_PARTITIONS).read() or ())


def test_without_a_power_failure_nothing_is_suspect_and_nothing_is_written(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    log = store.open()

    assert log.key not in store.manager.suspects
    store.manager.suspects.prove(log.key)
    store.manager.tick()
    store.stop(clean=True)
    assert not (Path(store.dirs[0]) / SUSPECT_PARTITIONS).exists()


def test_proven_partition_is_taken_off_the_list_of_whatever_directory_has_it(
    tmp_path: Path,
) -> None:
    store = LogStore(tmp_path, dirs=2)
    suspect(store, A, number=0)
    suspect(store, A, B, number=1)
    suspects = store.start().suspects
    assert A in suspects and B in suspects

    suspects.prove(A)
    store.manager.tick()

    assert A not in suspects and B in suspects
    assert (listed(store, 0), listed(store, 1)) == (set(), {B})
    store.stop(clean=False)


def test_what_is_proven_last_is_written_when_the_broker_stops(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    suspect(store, A, B)
    store.start().suspects.prove(B)

    store.stop(clean=True)

    assert listed(store) == {A}
    assert B not in store.start().suspects
    store.stop(clean=False)


def test_deleted_partition_is_not_suspect_when_it_is_created_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    suspect(store, A)
    store.start()
    store.open()

    store.manager.remove_partitions([0])

    assert A not in store.manager.suspects
    store.stop(clean=False)


def test_list_that_cannot_be_read_makes_every_partition_suspect(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.open()
    (Path(store.dirs[0]) / SUSPECT_PARTITIONS).write_text("0\n1\nnonsense\n")

    assert A in store.start().suspects
    store.stop(clean=False)
