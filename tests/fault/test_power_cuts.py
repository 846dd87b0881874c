"""The power fails at any moment during all operations of storage; synced data is there afterwards.

A program runs behind a shim that writes down each change of a file (``write_log``); then the disk
is put together as it may be after a cut at a random moment, under two sets of rules, and opened. A
failure prints its seed; ``KBROKER_FAULT_SCALE`` multiplies the cuts. Not seen: stores into the
mapped indexes, which lie in the disk's copy as of their last sync.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault.storage_workload import (
    COMPACTED,
    CONFIG,
    NO_MOVES,
    ONLY_MOVES,
    SOME_MOVES,
    id_of,
    value_of,
)
from fault.write_log import JOURNAL, STRICT, Change, Disk, marks, read_log
from support.faults.shim import shimmed
from support.running.grids import some_of
from support.storage.compaction import stored_batches
from support.storage.log_store import LogStore, append, batch

from kbroker.record.batch import Record
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

TESTS = Path(__file__).resolve().parent.parent
STEPS = 150
CUTS = 120
RUNS = 2


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory in memory if there is one: hundreds of states are created and opened."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


def record(work: Path, seed: int, moves: str) -> list[Change]:
    log, root = work / "changes", work / "root"
    root.mkdir()
    command = [sys.executable, "-m", "fault.storage_workload"]
    finished = subprocess.run(
        [*command, str(root), str(log), str(seed), str(STEPS), moves],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", **shimmed(root, log=log)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    shutil.rmtree(root)
    return read_log(log)


class Promises:
    """What the marks before a power failure promise."""

    def __init__(self, facts: list[dict[str, Any]]) -> None:
        self.ends: dict[str, int] = {}
        self.deleted_up_to: dict[str, int] = {}
        self.removing: set[str] = set()
        self.removed: set[str] = set()
        self.written: dict[str, list[tuple[int, str, bool]]] = {}
        self.step = ""
        for fact in facts:
            if "synced" in fact:
                self.ends[fact["synced"]] = fact["end"]
            elif "deleting" in fact:
                before = self.deleted_up_to.get(fact["deleting"], 0)
                self.deleted_up_to[fact["deleting"]] = max(before, fact["start"])
            elif "written" in fact:
                self.written.setdefault(fact["written"], []).extend(fact["records"])
            elif "removing" in fact:
                self.removing.add(fact["removing"])
            elif "removed" in fact:
                self.removed.add(fact["removed"])
            self.step = fact.get("step", self.step)


def stored_records(log: PartitionLog) -> list[Record]:
    """All records served."""
    found = [r for b in stored_batches(log) if not b.is_control for r in b.records()]
    return [one for one in found if one.offset >= log.log_start_offset]


def check_values(log: PartitionLog) -> list[Record]:
    """All records served, each at its own offset with its own key and value."""
    found = stored_records(log)
    for one in found:
        assert one.key is not None
        generation = 1 if one.key == b"txn" else 0
        assert one.value in (None, value_of(generation, one.offset, one.key)), one
    return found


def check_kept(log: PartitionLog, promises: Promises, end: int) -> None:
    offsets = [one.offset for one in check_values(log)]
    start = log.log_start_offset
    assert offsets == list(range(start, log.log_end_offset)), (start, log.log_end_offset, offsets)
    assert start <= promises.deleted_up_to.get(log.name, 0)
    assert log.log_end_offset >= end, f"synced up to {end}, ends at {log.log_end_offset}"


def check_sparse(log: PartitionLog, promises: Promises, end: int) -> None:
    """The last value of each key below ``end`` is there, or a later one; nothing else."""
    found = {one.offset: one for one in check_values(log)}
    newest: dict[str, int] = {}
    for one in found.values():
        assert one.key is not None
        newest[one.key.decode()] = one.offset
    assert log.log_end_offset >= end, f"synced up to {end}, ends at {log.log_end_offset}"
    last: dict[str, tuple[int, bool]] = {}
    for offset, key, is_tombstone in promises.written.get(log.name, []):
        if offset < end:
            last[key] = (offset, is_tombstone)
        if offset in found:
            one = found[offset]
            assert one.key == key.encode() and (one.value is None) == is_tombstone, one
    for key, (offset, is_tombstone) in last.items():
        assert is_tombstone or newest.get(key, -1) >= offset, (key, offset, newest.get(key))


def open_log(store: LogStore, name: str, number: int) -> PartitionLog:
    topic = name.rpartition("-")[0]
    options = COMPACTED if topic == "c" else CONFIG
    topic_id = {} if topic in "tc" else {"topic_id": id_of(topic)}
    log = store.try_open(topic, 0, slot=number, **options, **topic_id)
    assert log is not None, f"{name}: {store.manager.offline_reason(number)}"
    return log


def check_log(log: PartitionLog, promises: Promises, end: int) -> None:
    (check_sparse if log.topic == "c" else check_kept)(log, promises, end)


def places(root: Path, name: str) -> list[str]:
    """Directories of a partition, including those of its moves."""
    found = [*root.glob(f"logs-*/{name}"), *root.glob(f"logs-*/{name}.*-future")]
    return [str(path.relative_to(root)) for path in found]


def end_moves(store: LogStore) -> None:
    """Moves in progress complete."""
    moves = store.manager.moves
    for _ in range(1000):
        if not moves:
            return
        store.clock.advance(100)
        moves.turn(store.clock.monotonic_ms())
    raise AssertionError("the moves do not end")


def check_state(root: Path, promises: Promises, moves: str) -> None:
    """Open the state after a power failure; everything promised is there, and the log works."""
    if not (root / "logs-0").exists():
        assert not promises.ends
        return
    store = LogStore(root, dirs=1 if moves == NO_MOVES else 2)
    try:
        for name in promises.removed:
            assert not list(root.glob(f"logs-*/{name}")), f"{name} is back"
        present = sorted(promises.ends.keys() - promises.removing)
        logs = [open_log(store, name, number) for number, name in enumerate(present)]
        for log in logs:
            check_log(log, promises, promises.ends[log.name])
        before = {log.name: check_values(log) for log in logs}
        for log in logs:
            end = log.log_end_offset
            assert append(log, batch([b"next"])) == end
        end_moves(store)
        for log in logs:
            assert len(places(root, log.name)) == 1, places(root, log.name)
            assert stored_records(log)[:-1] == before[log.name], log.name
        store.stop(clean=True)
        store.start(clean=True)
        for number, name in enumerate(present):
            assert stored_records(open_log(store, name, number))[:-1] == before[name], name
    finally:
        store.stop(clean=False)


def is_switch(change: Change) -> bool:
    """Whether a future replica gets the partition's name."""
    return change.op == "R" and change.path.endswith("-future")


def check_cuts(work: Path, run_seed: int, seed: int, rules: str, cuts: int, moves: str) -> None:
    """Record a run, cut it at random moments, and open each resulting state."""
    changes = record(work, run_seed, moves)
    chance = random.Random(seed)
    # The last steps of replica moves: half of the cuts are near one.
    switches = [n for n, one in enumerate(changes, 1) if is_switch(one)]
    for number in range(cuts):
        cut = chance.randrange(1, len(changes) + 1)
        if switches and number % 2:
            cut = min(len(changes), max(1, chance.choice(switches) + chance.randint(-8, 12)))
        promises = Promises(marks(changes[:cut]))
        state = work / "state"
        state_seed = chance.getrandbits(32)
        disk = Disk(work / "root", changes[:cut])
        disk.write(state, random.Random(state_seed), rules)
        try:
            check_state(state, promises, moves)
        except AssertionError as error:
            last = disk.last._replace(data=b"") if disk.last else None
            raise AssertionError(
                f"cut {number} after change {cut} of {len(changes)} ({last}), while "
                f"{promises.step}: {error}"
            ) from error
        shutil.rmtree(state)


@pytest.mark.parametrize("run", some_of(range(RUNS), [0]))
@pytest.mark.parametrize("rules", some_of([JOURNAL, STRICT], [STRICT]))
def test_power_failure_leaves_all_that_was_synced(
    work: Path, rules: str, run: int, seed: int, scale: int
) -> None:
    check_cuts(work, seed + run, seed, rules, CUTS * scale, NO_MOVES)


@pytest.mark.parametrize(
    ("rules", "moves"),
    some_of(
        itertools.product((JOURNAL, STRICT), (SOME_MOVES, ONLY_MOVES)),
        [(JOURNAL, SOME_MOVES)],
    ),
)
@pytest.mark.slow
def test_power_failure_while_replicas_move_leaves_all_that_was_synced(
    work: Path, rules: str, moves: str, seed: int, scale: int
) -> None:
    """In the end the partition is in one directory, with every record, and stays there."""
    check_cuts(work, seed, seed, rules, CUTS * scale, moves)
