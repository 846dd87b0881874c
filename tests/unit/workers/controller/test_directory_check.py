"""A broker compares its log directories with what the store knows of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kbroker.ipc.pending import run
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.incarnations import read_incarnation
from kbroker.storage.formats import SUSPECT_PARTITIONS
from kbroker.workers.controller.directory_check import DONE_NAME, check_directories

pytestmark = pytest.mark.unit


class Machine:
    """Broker 1 with one log directory, which has partition t-0."""

    def __init__(self, tmp_path: Path) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        self.path = tmp_path / "data"
        (self.path / "t-0").mkdir(parents=True)
        self.runtime = tmp_path / "runtime"
        self.runtime.mkdir()

    def start(self, *, was_clean: bool = True) -> bool:
        """Whether the directory is in doubt."""
        (self.runtime / DONE_NAME).unlink(missing_ok=True)
        return self.check(was_clean=was_clean)

    def check(self, *, was_clean: bool = True) -> bool:
        store = SettledStore(self.ensemble.connect())
        done = run(check_directories(store, 1, str(self.runtime), {str(self.path): was_clean}))
        self.ensemble.run_until(lambda: done.done)
        assert done.error is None
        return done.value

    def replace(self, by: Path | None) -> None:
        self.path.rename(self.path.with_name(f"old-{len(self.stored)}"))  # keeps its inodes
        if by is not None:
            shutil.copytree(by, self.path)
        else:
            self.path.mkdir()

    def backup(self, to: Path) -> Path:
        shutil.copytree(self.path, to)
        return to

    @property
    def suspects(self) -> set[tuple[str, int]]:
        return set(OffsetCheckpoint(str(self.path), SUSPECT_PARTITIONS).read() or ())

    @property
    def stored(self) -> dict[str, int]:
        return paths.decode_log_dirs(self.ensemble.tree.get(paths.log_dirs(1)).data)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("was_clean", [False, True])
def test_nothing_is_in_doubt_after_an_upgrade_and_as_long_as_the_directory_stays(
    machine: Machine, was_clean: bool
) -> None:
    for number in range(1, 4):
        assert not machine.start(was_clean=was_clean)
        found = read_incarnation(str(machine.path))
        assert found is not None and found.start == number
        assert machine.stored == {found.id: number}
    assert machine.suspects == set()


def test_empty_directory_is_in_doubt(machine: Machine) -> None:
    machine.start()
    machine.replace(None)

    assert machine.start()
    assert not machine.start()  # from now on it is the broker's
    assert len(machine.stored) == 2


def test_partitions_of_a_restored_directory_are_suspect(machine: Machine, tmp_path: Path) -> None:
    machine.start()
    backup = machine.backup(tmp_path / "backup")
    machine.start()
    machine.replace(backup)

    assert machine.start()
    assert machine.suspects == {("t", 0)}


def test_copy_that_was_taken_in_the_last_run_is_in_doubt_unless_it_was_closed(
    machine: Machine, tmp_path: Path
) -> None:
    machine.start()
    machine.replace(machine.backup(tmp_path / "backup"))

    assert machine.start(was_clean=False)


def test_closed_directory_may_be_copied_to_another_disk(machine: Machine, tmp_path: Path) -> None:
    machine.start()
    machine.replace(machine.backup(tmp_path / "backup"))

    assert not machine.start(was_clean=True)


def test_only_the_first_controller_process_of_a_run_looks(machine: Machine) -> None:
    machine.start()

    assert not machine.check(was_clean=False)
    assert list(machine.stored.values()) == [1]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"starts": 1}', b'{"starts": {"a": "b"}}'])
def test_node_that_cannot_be_read_is_written_again(machine: Machine, data: Any) -> None:
    machine.start()
    operation = StoreOperation("set", paths.log_dirs(1), data)
    machine.ensemble.apply([operation], machine.session_id)

    assert not machine.start()
    assert list(machine.stored.values()) == [2]
