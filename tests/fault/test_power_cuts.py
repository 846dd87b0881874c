"""The power goes at any moment of everything storage does; what was synced is there afterwards.

A program runs behind a shim that writes down each change of a file (``write_log``); then the disk
is put together as it may be after a cut at a random moment, under two sets of rules, and opened. A
failure prints its seed; ``KBROKER_FAULT_SCALE`` multiplies the cuts. Not seen: stores into the
mapped indexes, which lie in the disk's copy as of their last sync.
"""

from __future__ import annotations

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
from doubles.compaction import stored_batches
from doubles.log_store import LogStore, append, batch
from fault.shim import shimmed
from fault.storage_workload import COMPACTED, CONFIG, id_of, value_of
from fault.write_log import JOURNAL, STRICT, Change, Disk, marks, read_log

from kbroker.record.batch import Record
from kbroker.storage.partition_log import PartitionLog

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

TESTS = Path(__file__).resolve().parent.parent
STEPS = 150
CUTS = 120
RUNS = 2


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of states are made and opened."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


def record(work: Path, seed: int) -> list[Change]:
    log, root = work / "changes", work / "root"
    root.mkdir()
    command = [sys.executable, "-m", "fault.storage_workload"]
    finished = subprocess.run(
        [*command, str(root), str(log), str(seed), str(STEPS)],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", **shimmed(root, log=log)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    shutil.rmtree(root)
    return read_log(log)


class Promises:
    """What the marks up to a cut say must be true."""

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


def check_values(log: PartitionLog) -> list[Record]:
    """Every record that is served, each at its own offset with its own key and value."""
    found = [r for b in stored_batches(log) if not b.is_control for r in b.records()]
    found = [one for one in found if one.offset >= log.log_start_offset]
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
    """The last value of each key below ``end`` is there, or a later one; nothing made up."""
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


def check_state(root: Path, promises: Promises) -> None:
    """Open what a cut left; everything promised is there, and it goes on."""
    if not (root / "logs-0").exists():
        assert not promises.ends
        return
    store = LogStore(root)
    try:
        for number, (name, end) in enumerate(sorted(promises.ends.items())):
            if name in promises.removing:
                if name in promises.removed:
                    assert not (root / "logs-0" / name).exists(), f"{name} is back"
                continue
            topic = name.rpartition("-")[0]
            options = COMPACTED if topic == "c" else CONFIG
            topic_id = {} if topic in "tc" else {"topic_id": id_of(topic)}
            log = store.try_open(topic, 0, slot=number, **options, **topic_id)
            assert log is not None, f"{name}: {store.manager.offline_reason(number)}"
            if topic == "c":
                check_sparse(log, promises, end)
            else:
                check_kept(log, promises, end)
            before = log.log_end_offset
            assert append(log, batch([b"next"])) == before
        store.stop(clean=True)
        store.start(clean=True)
        for number, name in enumerate(sorted(set(promises.ends) - promises.removing)):
            topic = name.rpartition("-")[0]
            options = COMPACTED if topic == "c" else CONFIG
            topic_id = {} if topic in "tc" else {"topic_id": id_of(topic)}
            assert store.try_open(topic, 0, slot=number, **options, **topic_id) is not None, name
    finally:
        store.stop(clean=False)


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("rules", [JOURNAL, STRICT])
def test_power_cut_leaves_all_that_was_synced(
    work: Path, rules: str, run: int, seed: int, scale: int
) -> None:
    changes = record(work, seed + run)
    chance = random.Random(seed)
    for number in range(CUTS * scale):
        cut = chance.randrange(1, len(changes) + 1)
        promises = Promises(marks(changes[:cut]))
        state = work / "state"
        state_seed = chance.getrandbits(32)
        disk = Disk(work / "root", changes[:cut])
        disk.write(state, random.Random(state_seed), rules)
        try:
            check_state(state, promises)
        except AssertionError as error:
            last = disk.last._replace(data=b"") if disk.last else None
            raise AssertionError(
                f"cut {number} after change {cut} of {len(changes)} ({last}), while "
                f"{promises.step}: {error}"
            ) from error
        shutil.rmtree(state)
