"""A writer of transactions is killed at any moment; the log has every one that it published.

The child takes steps that follow from a seed and says so after each is published. The parent kills
it, opens the log, and compares it with what those steps make, or those and the one under way.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from support.running.grids import some_of
from support.storage.log_store import LogStore, append, end_transaction, sent

from kbroker.storage.segments.txn_index import AbortedTransaction, read_entries

pytestmark = pytest.mark.fault

CONFIG = {"segment.bytes": 2000, "index.interval.bytes": 300}
PRODUCERS = 4
STEPS = 5000
Step = tuple[int, bool | None]  # producer, and how its transaction ends, None: one more record


def steps_of(seed: int) -> list[Step]:
    chance = random.Random(seed)
    return [
        (chance.randrange(PRODUCERS), chance.choice([None, None, None, True, False]))
        for _ in range(STEPS)
    ]


class Expected:
    """The log end offset, the last stable offset and the aborted transactions after some steps."""

    def __init__(self, steps: list[Step]) -> None:
        self.end = 0
        self.aborted: list[AbortedTransaction] = []
        first: dict[int, int] = {}
        for producer, commit in steps:
            if commit is None:
                first.setdefault(producer, self.end)
            elif producer in first:
                begun = first.pop(producer)
                if not commit:
                    stable = min([*first.values(), self.end + 1])
                    self.aborted.append(AbortedTransaction(producer, begun, self.end, stable))
            self.end += 1
        self.stable = min([*first.values(), self.end])


def write(path: Path, steps: list[Step], done: int) -> None:
    """Execute the steps, reporting each with one byte."""
    store = LogStore(path)
    log = store.open(**CONFIG)
    sequences = [0] * PRODUCERS
    for producer, commit in steps:
        if commit is None:
            append(log, sent(producer, sequences[producer], size=30))
            sequences[producer] += 1
        else:
            end_transaction(log, producer, commit=commit)
        os.write(done, b".")


def killed_writer(path: Path, steps: list[Step], wanted: int) -> int:
    """The number of steps that a writer had reported when it was killed, somewhere after the
    requested one.
    """
    news, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(path, steps, done)
        finally:
            os._exit(0)
    os.close(done)
    taken = 0
    while taken < wanted:
        taken += len(os.read(news, wanted - taken))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(news, 65536):
        taken += len(more)
    os.close(news)
    return taken


@pytest.mark.parametrize("seed", some_of(range(15), range(2)))
def test_killed_writer_leaves_every_published_transaction(tmp_path, seed):
    steps = steps_of(seed)
    taken = killed_writer(tmp_path, steps, random.Random(seed).randint(1, 2000))

    store = LogStore(tmp_path)
    log = store.open(**CONFIG)

    expected = Expected(steps[:taken])
    if log.log_end_offset != expected.end:
        expected = Expected(steps[: taken + 1])
    assert log.log_end_offset == expected.end, f"seed {seed} after {taken} steps"
    found = [
        entry
        for each in log.segments
        for entry in read_entries(each.path(".txnindex"), each.base_offset, each.next_offset)
    ]
    assert (store.slot()["last_stable"][0], found) == (expected.stable, expected.aborted), (
        f"seed {seed} after {taken} steps"
    )
    store.stop(clean=False)
