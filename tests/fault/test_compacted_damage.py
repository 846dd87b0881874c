"""Files after compaction and transactions are damaged; then the log is opened again.

The rest of exam E3: ``.txnindex``, ``txn-index-checkpoint``, ``.snapshot``, the cleaner's
checkpoint, ``.cleaned``, ``.swap`` and ``.deleted`` files, each torn at every byte of its last two
entries and of its beginning, flipped in every byte, zeroed by page, emptied, removed, duplicated
under other names. Readers of committed records see what they saw before, or the partition is
offline. What is not slow takes one byte of several.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.committed_reader import committed_offsets
from support.storage.compaction import Compaction, cleanable_end, stored_batches
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

CONFIG = {
    "segment.bytes": 700,
    "index.interval.bytes": 100,
    "segment.index.bytes": 4096,
    "cleanup.policy": ("compact",),
}
KEYS = 3
TXN_ENTRY, PAGE = 34, 4096
# A step of a compaction to stop after, for files that only exist in the middle of one.
STATES = {"at-rest": None, "cleaned": "cleaned", "prepared": "synced", "half-swapped": ".index"}


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory in memory if there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


class Template:
    """A log with transactions, committed and aborted in turn, stopped in the given state."""

    def __init__(self, path: Path, state: str) -> None:
        self.path = path
        store = LogStore(path)
        log = store.open(**CONFIG)
        sequences = {1: itertools.count(), 2: itertools.count()}
        for number in range(24):
            producer, key = number % 2 + 1, b"key-%d" % (number % KEYS)
            append(log, batch([b"plain-%d" % number], key=key))
            append(log, sent(producer, next(sequences[producer]), [b"txn-%d" % number], key=key))
            end_transaction(log, producer, commit=number % 3 != 0)
        log.flush()
        store.manager.checkpoint()
        self.before = committed_offsets(store, log)
        CleanerCheckpoints(store.dirs).put(store.dirs[0], ("t", 0), cleanable_end(log) - 1)
        if STATES[state] is not None:
            compaction = Compaction(log, now_ms=NOW_MS)
            for step in compaction.steps():
                if step == STATES[state]:
                    break
        store.stop(clean=state == "at-rest")
        self.values = {
            record.offset: (record.key, record.value)
            for each in stored_batches_of(path)
            for record in each
        }

    def files(self, suffix: str) -> list[str]:
        """Names of the partition's, or the directory's, files with this suffix."""
        directory = self.path / "logs-0"
        found = [f"t-0/{p.name}" for p in (directory / "t-0").iterdir()]
        found += [p.name for p in directory.iterdir() if p.is_file()]
        return sorted(name for name in found if name.endswith(suffix))


def stored_batches_of(path: Path) -> list[list]:
    """Records of every log file, whatever its current name."""
    from kbroker.record.batch import iterate_batches

    found = []
    for file in sorted((path / "logs-0" / "t-0").glob("*.log*")):
        for each in iterate_batches(file.read_bytes(), partial_tail=True):
            if not each.is_control:
                found.append(list(each.records()))
    return found


def damages(data: bytes, stride: int) -> Iterator[tuple[str, bytes | None]]:
    """All kinds of damage tried on a file; cuts and flips at one byte of ``stride``."""
    tail = 2 * TXN_ENTRY if len(data) % TXN_ENTRY == 0 else 130
    cuts = {*range(max(0, len(data) - tail), len(data)), *range(min(len(data), 70))}
    for at in sorted({*sorted(cuts)[::stride], 0, len(data) // 2, len(data) - 1}):
        yield f"cut at {at}", data[:at]
    for at in range(0, len(data), stride if len(data) < 400 else 7 * stride):
        changed = bytes([data[at] ^ 1 << at % 8])
        yield f"bit {at % 8} of {at}", data[:at] + changed + data[at + 1 :]
    for at in range(0, len(data), PAGE):
        size = len(data[at : at + PAGE])
        yield f"zeros from {at}", data[:at] + bytes(size) + data[at + size :]
    yield "twice", data + data
    yield "zeros behind", data + bytes(100)
    yield "removed", None


# Redundant with the log, or without meaning: damage to it loses nothing.
KINDS = [
    ("at-rest", ".txnindex"),
    ("at-rest", "txn-index-checkpoint"),
    ("at-rest", ".snapshot"),
    ("at-rest", "cleaner-offset-checkpoint"),
    ("cleaned", ".log.cleaned"),
    ("cleaned", ".timeindex.cleaned"),
    ("prepared", ".timeindex.swap"),
    ("prepared", ".log.swap"),
    ("half-swapped", ".log.swap"),
    ("half-swapped", ".log.deleted"),
]


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("state", "suffix"), KINDS, ids=[f"{s}{k}" for s, k in KINDS])
def test_damaged_file_of_a_compacted_log_shows_nothing_wrong(
    work: Path, state: str, suffix: str, stride: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    template = Template(work / "template", state)
    names = template.files(suffix)
    assert names, template.files("")
    for name in [names[0], names[-1]] if len(names) > 1 else names:
        data = (template.path / "logs-0" / name).read_bytes()
        assert data, name
        for how, content in damages(data, stride):
            trial = work / "trial"
            shutil.copytree(template.path, trial)
            path = trial / "logs-0" / name
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            try:
                check(template, trial, may_be_offline=suffix == ".log.swap")
            except (AssertionError, OSError, ValueError) as error:
                raise AssertionError(f"{name}, {how}: {error}") from error
            shutil.rmtree(trial)


def check(template: Template, trial: Path, *, may_be_offline: bool = False) -> None:
    clean = (template.files(".cleaned") + template.files(".swap")) == []
    store = LogStore(trial)
    store.start(clean=clean)
    log = store.try_open(**CONFIG)
    try:
        if log is None:
            assert may_be_offline, store.manager.offline_reason(0)
            return
        seen = committed_offsets(store, log)
        assert set(seen) <= set(template.before), "shows what was never committed"
        # Compacted or not, the last record of each key is there.
        stored = {r.offset: (r.key, r.value) for b in stored_batches(log) for r in b.records()
                  if not b.is_control}  # fmt: skip
        assert all(template.values[offset] == stored[offset] for offset in seen)
        last = {template.values[offset][0]: offset for offset in template.before}
        assert set(last.values()) <= set(seen), "the last value of a key is gone"
        if clean:
            assert seen == template.before
        assert append(log, batch([b"next"])) == log.log_end_offset - 1
        append(log, sent(7, 0))
        end_transaction(log, 7, commit=True)
    finally:
        store.stop(clean=False)


@pytest.mark.parametrize("pattern", ["copy of {}", "{}.bak", "{}~", "{} (1)", "0{}", "-{}"])
def test_duplicates_under_other_names_change_nothing(work: Path, pattern: str) -> None:
    template = Template(work / "template", "at-rest")
    trial = work / "trial"
    shutil.copytree(template.path, trial)
    for path in [p for p in (trial / "logs-0").rglob("*") if p.is_file()]:
        shutil.copy(path, path.with_name(pattern.format(path.name)))

    check(template, trial)
