"""The replicas of a leader against a plain model of Kafka's rules, on random histories."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from support.replication.follower_entries import entry

from kbroker._ext.log.replica_set import ReplicaSet

pytestmark = pytest.mark.property

LAG_MS = 100
SEEDS = 300
STEPS = 120
REPLICAS = (2, 3, 4, 5)


@dataclass
class Follower:
    """As Kafka's ``Replica``, of one leader epoch."""

    end: int = -1
    caught_up_ms: float = float("-inf")
    asked_ms: float = float("-inf")
    seen_end: int = -1


class Model:
    """Keeps everything in dictionaries and looks at all of it each time."""

    def __init__(self) -> None:
        self.followers = {replica: Follower() for replica in REPLICAS}
        self.assigned: set[int] = set()
        self.committed: set[int] = set()
        self.maximal: set[int] = set()
        self.log_end = self.high_watermark = self.epoch_start = 0
        self.now_ms = 1_000
        self.epoch = 0

    def begin(self) -> None:
        self.epoch += 1
        self.epoch_start = self.log_end
        self.followers = {replica: Follower() for replica in REPLICAS}

    def members(self, assigned: set[int], committed: set[int], maximal: set[int]) -> None:
        self.assigned, self.committed, self.maximal = assigned, committed, maximal
        for replica in committed:
            if self.followers[replica].caught_up_ms == float("-inf"):
                self.followers[replica].caught_up_ms = self.now_ms

    def fetch(self, replica: int, offset: int) -> None:
        follower = self.followers[replica]
        if offset >= self.log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, self.now_ms)
        elif offset >= follower.seen_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.asked_ms)
        follower.asked_ms, follower.seen_end, follower.end = self.now_ms, self.log_end, offset

    def raise_high_watermark(self) -> int:
        ends = [
            follower.end
            for replica, follower in self.followers.items()
            if replica in self.assigned
            and (replica in self.maximal or self.now_ms - follower.caught_up_ms <= LAG_MS)
        ]
        self.high_watermark = max(self.high_watermark, min([*ends, self.log_end]))
        return self.high_watermark

    def lagging(self) -> set[int]:
        return {
            replica
            for replica in self.committed
            if self.followers[replica].end != self.log_end
            and self.now_ms - self.followers[replica].caught_up_ms > LAG_MS
        }

    def joining(self) -> set[int]:
        return {
            replica
            for replica in self.assigned - self.maximal
            if self.followers[replica].end >= max(self.high_watermark, self.epoch_start)
        }

    def short(self) -> set[int]:
        return {r for r in self.committed if -1 < self.followers[r].end < self.high_watermark}


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 50))
def test_replica_set_is_what_kafkas_rules_make_of_any_history(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        run(random.Random(seed))


def run(rng: random.Random) -> None:
    model, tested = Model(), ReplicaSet(None, LAG_MS)
    new_epoch(rng, model, tested)
    for _ in range(STEPS):
        step = rng.choice(["fetch"] * 6 + ["append", "append", "wait", "members", "epoch"])
        if step == "fetch":
            replica = rng.choice(REPLICAS)
            offset = rng.randint(max(model.followers[replica].end - 1, 0), model.log_end)
            said = entry(
                replica, offset, seen=model.log_end, at_ms=model.now_ms, leader_epoch=model.epoch
            )
            tested.note_entry(said, 0, model.high_watermark, model.now_ms)
            model.fetch(replica, offset)
        elif step == "append":
            model.log_end += rng.randint(1, 5)
        elif step == "wait":
            model.now_ms += rng.randint(0, LAG_MS)
        elif step == "members":
            members(rng, model, tested)
        elif rng.random() < 0.3:
            new_epoch(rng, model, tested)
        before = model.high_watermark
        assert tested.high_watermark(model.log_end, before, model.now_ms) == (
            model.raise_high_watermark()
        )
        assert set(tested.lagging(model.now_ms)) == model.lagging()
        assert set(tested.joining(model.high_watermark, model.now_ms)) == model.joining()
        assert set(tested.short(model.high_watermark)) == model.short()


def new_epoch(rng: random.Random, model: Model, tested: ReplicaSet) -> None:
    model.begin()
    tested.begin_epoch(model.epoch, model.log_end, model.log_end, model.now_ms)
    members(rng, model, tested)


def members(rng: random.Random, model: Model, tested: ReplicaSet) -> None:
    assigned = set(rng.sample(REPLICAS, rng.randint(1, len(REPLICAS))))
    maximal = set(rng.sample(sorted(assigned), rng.randint(0, len(assigned))))
    committed = set(rng.sample(sorted(maximal), rng.randint(0, len(maximal))))
    model.members(assigned, committed, maximal)
    tested.set_assigned(assigned)
    tested.set_in_sync(committed, maximal, model.now_ms)
