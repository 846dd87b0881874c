"""Replicas that lead and follow in turn, with clean or unclean elections: a follower's log becomes
a prefix.

First on lists of epochs, where it is seen that exactly the common prefix stays, then on real logs.
A failure prints its seed.
"""

from __future__ import annotations

import random
from itertools import groupby
from pathlib import Path

import pytest
from support.running.in_one import in_one
from support.storage.log_store import NOW_MS, LogStore, append, batch

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER
from kbroker.replication.fetched_run import Fault, append_fetched
from kbroker.replication.truncation import Cut, EpochEnd, EpochHistory, cut_for, first_question
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.property

REPLICAS = 3


class ListedEpochs:
    """The epochs of a log that is a list: each record is its leader epoch."""

    def __init__(self, records: list[int]) -> None:
        self.records = records

    @property
    def latest(self) -> int | None:
        return self.records[-1] if self.records else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """Written for the test, by reading each record."""
        if not self.records or epoch > self.records[-1]:
            return None
        known = [own for own, _ in groupby(self.records) if own <= epoch]
        if not known:
            return epoch, 0
        return known[-1], max(i for i, own in enumerate(self.records) if own == known[-1]) + 1


def asked(leader: EpochHistory, end: int, epoch: int, leader_epoch: int) -> EpochEnd:
    """The OffsetForLeaderEpoch response. A leader that has written nothing in its epoch yet treats
    it like any other.
    """
    if epoch == leader_epoch:
        return EpochEnd(epoch, end)
    found = leader.end_offset_for(epoch, end)
    if found is None:
        latest = leader.latest
        return EpochEnd(-1, -1) if latest is None else EpochEnd(latest, end)
    return EpochEnd(*found)


def common(one: list[int], other: list[int]) -> int:
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


@in_one("seed", range(200))
def test_exactly_the_common_prefix_stays(seed: int) -> None:
    chance = random.Random(seed)
    logs: list[list[int]] = [[] for _ in range(REPLICAS)]
    for epoch in range(30):
        leader = chance.randrange(REPLICAS)  # anybody: clean or not
        for _ in range(chance.randint(0, 4)):
            logs[leader].append(epoch)
        for follower in range(REPLICAS):
            if follower != leader and chance.random() < 0.6:
                follow(logs[follower], logs[leader], epoch, chance)


def follow(mine: list[int], theirs: list[int], leader_epoch: int, chance: random.Random) -> None:
    wanted = mine[: common(mine, theirs)]
    for _ in range(len(set(mine)) + 1):
        question = first_question(ListedEpochs(mine), len(mine), 0)
        if isinstance(question, Cut):
            break
        response = asked(ListedEpochs(theirs), len(theirs), question, leader_epoch)
        if response.end_offset < 0:  # an empty leader: nothing of this log is there
            break
        step = cut_for(response, question, ListedEpochs(mine), len(mine), 0)
        del mine[step.offset :]
        if step.is_final:
            break
    else:
        raise AssertionError("more questions than epochs")
    if theirs:
        assert mine == wanted
    else:
        mine.clear()
    mine += theirs[len(mine) : len(mine) + chance.randint(0, 5)]
    assert theirs[: len(mine)] == mine


# ---- real logs ----


def log_bytes(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(log.path).glob("*.log")))


def catch_up(mine: PartitionLog, theirs: PartitionLog, leader_epoch: int, size: int) -> None:
    while True:
        question = first_question(mine.epochs, mine.log_end_offset, 0)
        if isinstance(question, Cut):
            mine.truncate_to(question.offset, NOW_MS)
            break
        response = asked(theirs.epochs, theirs.log_end_offset, question, leader_epoch)
        step = cut_for(response, question, mine.epochs, mine.log_end_offset, 0)
        assert mine.truncate_to(step.offset, NOW_MS) == step.offset
        if step.is_final:
            break
    have = log_bytes(mine)
    assert log_bytes(theirs).startswith(have)
    data = log_bytes(theirs)[len(have) : len(have) + size]
    outcome = append_fetched(mine, data, leader_epoch, NOW_MS)
    mine.publish()
    assert outcome.fault is Fault.NONE
    assert log_bytes(theirs).startswith(log_bytes(mine))


@pytest.mark.parametrize("seed", range(20))
def test_real_logs_follow_whoever_leads(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stores = [LogStore(tmp_path / str(i)) for i in range(REPLICAS)]
    config = {"segment_bytes": 700, "role": FOLLOWER}
    logs = [store.open(**config) for store in stores]
    try:
        for epoch in range(25):
            leader = chance.randrange(REPLICAS)
            logs[leader].take_role(LEADER, epoch, 0)
            for _ in range(chance.randint(0, 4)):
                append(logs[leader], batch(chance.randint(1, 3), timestamp=NOW_MS + epoch))
            for follower in range(REPLICAS):
                if follower == leader or chance.random() < 0.3:
                    continue
                logs[follower].take_role(FOLLOWER, epoch, 0)
                if chance.random() < 0.2:
                    logs[follower] = stores[follower].restart(clean=False, **config)
                catch_up(logs[follower], logs[leader], epoch, chance.randrange(3000))
    finally:
        for store in stores:
            store.stop(clean=False)
