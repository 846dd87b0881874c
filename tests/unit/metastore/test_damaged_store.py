"""Damaged files of the metadata store: the loss is reported, and the last good state restored."""

import random
import shutil

import pytest

from kbroker.metastore.node_file import QUIET_MS, UNSETTLED_MAX_MS, NodeFile
from kbroker.metastore.store import StoreFailed
from kbroker.metastore.store_files import (
    COPY_NAME,
    DAMAGED_SUFFIX,
    FILE_NAME,
    WAL_NAME,
    read_copy,
)

SEEDS = 25
SETTLED, LATER = 30, 12


def contents(store):
    return {node.path: node.data for node in store.subtree("/")}


def write(store, number):
    """One change: a new node, and one written again."""
    transaction = store.multi().create(f"/n{number:03d}", str(number).encode() * 150)
    if number:
        transaction.set("/n000", str(number).encode())
    transaction.commit()


class Files:
    """The files of a killed broker, and every state that its store had."""

    def __init__(self, directory):
        self.directory = directory
        live = directory / "live"
        live.mkdir()
        store = NodeFile(str(live))
        self.states = [contents(store)]
        for number in range(SETTLED + LATER):
            if number == SETTLED:
                store._settle()
            write(store, number)
            self.states.append(contents(store))
        shutil.copytree(live, directory / "killed")
        store.close()
        shutil.copytree(live, directory / "stopped")

    def copy(self, how, target):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.directory / how, target)
        return target


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("store"))


def opened(directory):
    """(contents, what the store says was damaged)."""
    store = NodeFile(str(directory))
    try:
        return contents(store), store.damage
    finally:
        store.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_undamaged_files_are_taken_as_they_are(files, tmp_path, how):
    directory = files.copy(how, tmp_path / "data")
    assert opened(directory) == (files.states[-1], None)
    assert opened(directory) == (files.states[-1], None)
    assert not list(directory.glob(f"*{DAMAGED_SUFFIX}"))


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("name", [FILE_NAME, WAL_NAME, COPY_NAME])
def test_damage_anywhere_is_mended_or_told(files, tmp_path, how, name):
    """SQLite drops everything after damage in its log, and reads damaged pages."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        directory = files.copy(how, tmp_path / "data")
        damaged = bytearray((directory / name).read_bytes() if (directory / name).exists() else b"")
        if not damaged:
            continue
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(damaged))
            if rng.random() < 0.7:
                damaged[at] ^= 1 << rng.randrange(8)
            else:
                damaged[at : at + 64] = rng.randbytes(len(damaged[at : at + 64]))
        (directory / name).write_bytes(damaged)
        try:
            found, damage = opened(directory)
        except StoreFailed:
            assert name == FILE_NAME and not (directory / COPY_NAME).exists(), seed
            continue
        assert found in files.states, (seed, damage)
        if found == files.states[-1]:
            continue
        # The very last change may have been torn by a power failure, without a response.
        assert damage is not None or found == files.states[-2], seed
        assert found in files.states[SETTLED:], (seed, damage)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_missing_database_comes_back_from_its_copy(files, tmp_path, how):
    """A leftover write-ahead log must neither prevent the start nor be taken for the new one's."""
    directory = files.copy(how, tmp_path / "data")
    (directory / FILE_NAME).unlink()
    found, damage = opened(directory)
    assert found == files.states[SETTLED if how == "killed" else -1]
    assert "missing" in damage
    assert opened(directory) == (found, None)


def test_log_of_changes_without_anything_else_is_set_aside(files, tmp_path):
    directory = files.copy("killed", tmp_path / "data")
    (directory / FILE_NAME).unlink()
    (directory / COPY_NAME).unlink()
    found, damage = opened(directory)
    assert found == {}
    assert f"{WAL_NAME}{DAMAGED_SUFFIX}" in damage
    assert (directory / f"{WAL_NAME}{DAMAGED_SUFFIX}").exists()


def test_database_of_a_backup_is_behind_its_copy(files, tmp_path):
    directory = files.copy("stopped", tmp_path / "data")
    shutil.copyfile(files.directory / "killed" / FILE_NAME, directory / FILE_NAME)
    found, damage = opened(directory)
    assert found == files.states[-1]
    assert "changes" in damage
    assert (directory / f"{FILE_NAME}{DAMAGED_SUFFIX}").exists()


def test_damaged_place_early_in_the_log_names_what_is_lost(files, tmp_path):
    directory = files.copy("killed", tmp_path / "data")
    wal = bytearray((directory / WAL_NAME).read_bytes())
    wal[32 + 24 + 4000] ^= 1
    (directory / WAL_NAME).write_bytes(wal)
    found, damage = opened(directory)
    assert found == files.states[SETTLED]
    assert f"{LATER} metadata changes" in damage
    assert (directory / f"{WAL_NAME}{DAMAGED_SUFFIX}").read_bytes() == wal


def test_store_of_an_older_kbroker_gets_its_count(files, tmp_path):
    store = NodeFile(str(tmp_path))
    write(store, 0)
    for kind, name in store._db.execute(
        "SELECT type, name FROM sqlite_master WHERE type = 'trigger' OR name = 'changes'"
    ).fetchall():
        store._db.execute(f"DROP {kind} {name}")
    store._db.close()
    found, damage = opened(tmp_path)
    assert found == files.states[1] and damage is None
    assert read_copy(str(tmp_path)) is not None


def test_changes_are_settled_when_it_is_quiet_and_every_few_seconds(tmp_path):
    store = NodeFile(str(tmp_path))

    def settled():
        copy = read_copy(str(tmp_path))
        empty = (tmp_path / WAL_NAME).stat().st_size == 0
        return empty and copy is not None and set(copy.rows) - {"/"} == set(contents(store))

    store.settle(1000)
    write(store, 0)
    store.settle(1100)
    assert not settled()
    store.settle(1100 + QUIET_MS - 1)
    assert not settled()
    store.settle(1100 + QUIET_MS)
    assert settled()
    # Never quiet.
    start = now = 5000
    number = 1
    while True:
        write(store, number)
        store.settle(now)
        if settled():
            break
        number, now = number + 1, now + QUIET_MS // 2
        assert now - start <= UNSETTLED_MAX_MS
    assert now - start >= UNSETTLED_MAX_MS - QUIET_MS
    store.close()


def test_copy_that_finds_no_room_is_written_later(tmp_path, monkeypatch, caplog):
    store = NodeFile(str(tmp_path))
    write(store, 0)

    def full(directory, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kbroker.metastore.node_file.check_room", full)
    for now in (1000, 1000 + QUIET_MS, 1000 + 2 * QUIET_MS):
        store.settle(now)
    assert read_copy(str(tmp_path)) is None
    assert caplog.text.count(COPY_NAME) == 1
    monkeypatch.undo()
    store.settle(1000 + QUIET_MS + UNSETTLED_MAX_MS)
    assert len(read_copy(str(tmp_path)).rows) == 2
    store.close()
