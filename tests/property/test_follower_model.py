"""A follower that gets its leader's log in pieces, some damaged, with truncations and crashes.

After each step the follower's log is a prefix of the leader's, byte for byte, and knows what the
leader knew at that offset: epochs, producers, aborted transactions. A failure prints its seed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, end_transaction, sent

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER
from kbroker.replication.fetched_run import Fault, append_fetched
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.property

STEPS = 60
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 120, "segment.index.bytes": 4096}
LENGTH_AT, EPOCH_AT, EPOCH_END = 8, 12, 16


def log_bytes(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(log.path).glob("*.log")))


def starts(data: bytes) -> list[int]:
    """The positions of the batches whose length field is there."""
    found, at = [], 0
    while at + EPOCH_AT <= len(data):
        found.append(at)
        at += EPOCH_AT + int.from_bytes(data[at + LENGTH_AT : at + EPOCH_AT], "big")
    return found


def covered_bytes(data: bytes, start: int) -> range:
    """A batch without its base offset and leader epoch, which no checksum covers."""
    size = EPOCH_AT + int.from_bytes(data[start + LENGTH_AT : start + EPOCH_AT], "big")
    return range(start + EPOCH_END, min(start + size, len(data)))


class Pair:
    """A leader, its follower, and the start of each batch of the leader."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.leaders, self.followers = LogStore(path / "leader"), LogStore(path / "follower")
        self.leader = self.leaders.open(**{**CONFIG, "segment.bytes": 1 << 30})
        self.follower = self.followers.open(role=FOLLOWER, **CONFIG)
        self.epoch = 0
        self.sequences = {5: 0, 6: 0, 7: 0}
        self.open: set[int] = set()

    def lead(self) -> None:
        kind = self.random.randrange(5)
        producer = self.random.choice(list(self.sequences))
        count = self.random.randint(1, 4)
        if kind == 0:
            self.epoch += self.random.randint(1, 3)
            self.leader.take_role(LEADER, self.epoch, 0)
        elif kind == 1 and self.open:
            ended = self.random.choice(sorted(self.open))
            self.open.discard(ended)
            end_transaction(self.leader, ended, commit=self.random.random() < 0.5)
        elif kind == 2:
            append(self.leader, sent(producer, self.sequences[producer], count))
            self.sequences[producer] += count
            self.open.add(producer)
        else:
            append(self.leader, batch(count, size=self.random.randint(0, 200)))

    def fetch(self, damage: bool) -> None:
        """Whole, in part, or with changed bytes that a checksum or a rule covers."""
        have = len(log_bytes(self.follower))
        data = bytearray(log_bytes(self.leader)[have:])
        data = data[: self.random.randint(0, len(data))]
        covered = [at for start in starts(data) for at in covered_bytes(data, start)]
        changed = damage and bool(covered)
        if changed:
            data[self.random.choice(covered)] ^= 1 << self.random.randrange(8)
        outcome = append_fetched(self.follower, data, self.epoch, NOW_MS)
        self.follower.publish()
        assert outcome.taken <= len(data)
        if not changed:
            assert outcome.fault is Fault.NONE
            assert len(data) - outcome.taken < max(outcome.needed, 1)

    def truncate(self) -> None:
        self.follower.truncate_to(self.random.randint(0, self.follower.log_end_offset), NOW_MS)

    def crash(self) -> None:
        self.follower = self.followers.restart(clean=False, role=FOLLOWER, **CONFIG)

    def check(self) -> None:
        mine, theirs = log_bytes(self.follower), log_bytes(self.leader)
        assert theirs.startswith(mine)
        end = self.follower.log_end_offset
        known = [entry for entry in self.leader.epochs.entries if entry[1] < end]
        assert self.follower.epochs.entries == known
        if len(mine) == len(theirs):
            assert end == self.leader.log_end_offset
            assert self.follower.last_stable_offset == self.leader.last_stable_offset
            assert opened(self.follower) == opened(self.leader)
            assert aborted(self.follower) == aborted(self.leader)


def opened(log: PartitionLog) -> dict[int, Any]:
    return {
        entry.producer_id: (
            entry.producer_epoch,
            entry.current_txn_first_offset,
            entry.last_sequence_number,
        )
        for entry in log.producers()
    }


def aborted(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(log.path).glob("*.txnindex")))


@pytest.mark.parametrize("seed", range(30))
def test_follower_is_a_prefix_of_its_leader_whatever_arrives(tmp_path: Path, seed: int) -> None:
    pair = Pair(tmp_path, seed)
    try:
        for _ in range(STEPS):
            chance = pair.random.random()
            if chance < 0.55:
                pair.lead()
            elif chance < 0.8:
                pair.fetch(damage=False)
            elif chance < 0.93:
                pair.fetch(damage=True)
            elif chance < 0.97:
                pair.truncate()
            else:
                pair.crash()
            pair.check()
    finally:
        pair.leaders.stop(clean=False)
        pair.followers.stop(clean=False)


@pytest.mark.parametrize("seed", range(20))
def test_follower_takes_nothing_it_cannot_read_back(tmp_path: Path, seed: int) -> None:
    """Bytes changed anywhere, even where no checksum covers them: the log stays recoverable."""
    chance = random.Random(seed)
    store = LogStore(tmp_path)
    follower = store.open(role=FOLLOWER, **CONFIG)
    leaders = LogStore(tmp_path / "leader")
    leader = leaders.open()
    for sequence in range(12):
        append(leader, batch(chance.randint(1, 3)))
        append(leader, sent(5, sequence))
        end_transaction(leader, 5, commit=chance.random() < 0.5)
    whole = log_bytes(leader)
    try:
        for _ in range(40):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            start = chance.choice((0, chance.randrange(len(data))))
            append_fetched(follower, data[start:], chance.randint(-1, 3), NOW_MS)
            follower.publish()
        end, stored = follower.log_end_offset, log_bytes(follower)

        follower = store.restart(clean=False, role=FOLLOWER, **CONFIG)

        assert (follower.log_end_offset, log_bytes(follower)) == (end, stored)
    finally:
        leaders.stop(clean=False)
        store.stop(clean=False)
