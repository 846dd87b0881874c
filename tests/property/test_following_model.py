"""Replicas that lead and follow in turn, with clean or unclean elections, driven by
``FollowedPartition``.

Leaders answer late, with errors and with damaged bytes; followers crash. Once a follower has caught
up its log is the leader's, byte for byte, and at every moment that it fetches a prefix of it. A
failure prints its seed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER
from kbroker.errors import ErrorCode
from kbroker.replication.fetched_run import Fault, append_fetched, fault_text
from kbroker.replication.following import (
    LATEST,
    EpochQuestion,
    FollowedPartition,
    FollowingState,
    OffsetQuestion,
)
from kbroker.replication.truncation import EpochEnd
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.property

REPLICAS = 3
EPOCHS = 20
STEPS_MAX = 400
CONFIG = {"segment_bytes": 700, "role": FOLLOWER}
ERRORS = [
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
]


def log_bytes(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(log.path).glob("*.log")))


class LogToFollow:
    """The log as the state machine changes it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.epochs = log.epochs

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def truncate_to(self, offset: int) -> int:
        return self.log.truncate_to(offset, NOW_MS)

    def restart_at(self, offset: int) -> None:
        self.log.restart_at(offset, NOW_MS)


class Follower:
    """A follower whose requests take no time except that of ``now_ms``."""

    def __init__(self, log: PartitionLog, leader: PartitionLog, epoch: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log, self.leader, self.epoch = log, leader, epoch
        self.machine = FollowedPartition(log.name, LogToFollow(log), 100)
        self.now_ms = 0
        self.trouble = 0.3
        self.machine.follow(1, epoch)

    def step(self) -> None:
        machine = self.machine
        if machine.retry_at_ms is not None:
            self.now_ms = machine.retry_at_ms
            machine.resume(self.now_ms)
        elif machine.state is FollowingState.FETCHING:
            self.fetch()
        elif isinstance(machine.question, EpochQuestion):
            machine.on_epoch_end(self.error(), self.epoch_end(machine.question.epoch), self.now_ms)
        else:
            assert isinstance(machine.question, OffsetQuestion)
            end, start = self.leader.log_end_offset, self.leader.log_start_offset
            offset = end if machine.question.timestamp == LATEST else start
            machine.on_offset(self.error(), offset, self.now_ms)

    def error(self) -> int:
        return self.chance.choice(ERRORS) if self.chance.random() < self.trouble else 0

    def epoch_end(self, asked: int) -> EpochEnd:
        end = self.leader.log_end_offset
        found = self.leader.epochs.end_offset_for(asked, end)
        return EpochEnd(-1, -1) if found is None else EpochEnd(*found)

    def fetch(self) -> None:
        error = self.error()
        mine, theirs = log_bytes(self.log), log_bytes(self.leader)
        if not self.leader.log_start_offset <= self.log.log_end_offset <= len(theirs) + 1:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error:
            self.machine.on_fetch_error(error, self.now_ms)
            return
        # I4: when it fetches, its log is a prefix of its leader's.
        assert theirs.startswith(mine)
        data = bytearray(theirs[len(mine) : len(mine) + self.chance.randrange(1, 2000)])
        if data and self.chance.random() < self.trouble / 3:
            data[min(len(data) - 1, 40)] ^= 1
        outcome = append_fetched(self.log, data, self.epoch, NOW_MS)
        self.log.publish()
        if outcome.fault is not Fault.NONE:
            text = fault_text(self.log, outcome, 1, self.epoch)
            self.machine.on_fault(outcome.fault, text, self.now_ms)

    def catch_up(self) -> None:
        for _ in range(STEPS_MAX):
            self.step()
            if self.machine.is_fetching and log_bytes(self.log) == log_bytes(self.leader):
                return
        raise AssertionError(f"not caught up: {self.machine.state}")


@pytest.mark.parametrize("seed", range(20))
def test_follower_becomes_its_leader_whatever_happens(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    stores = [LogStore(tmp_path / str(i)) for i in range(REPLICAS)]
    logs = [store.open(**CONFIG) for store in stores]
    try:
        for epoch in range(EPOCHS):
            leader = chance.randrange(REPLICAS)  # anybody: clean or not
            logs[leader].take_role(LEADER, epoch, 0)
            for _ in range(chance.randint(0, 4)):
                append(logs[leader], batch(chance.randint(1, 3), timestamp=NOW_MS + epoch))
            for number in range(REPLICAS):
                if number == leader or chance.random() < 0.3:
                    continue
                if chance.random() < 0.2:
                    logs[number] = stores[number].restart(clean=False, **CONFIG)
                logs[number].take_role(FOLLOWER, epoch, 0)
                logs[number].hold_high_watermark()
                follower = Follower(logs[number], logs[leader], epoch, chance.randrange(1 << 30))
                if chance.random() < 0.4:  # its leader changes before it has finished
                    for _ in range(chance.randrange(12)):
                        follower.step()
                else:
                    follower.catch_up()
                    known = [
                        e for e in logs[leader].epochs.entries if e[1] < logs[number].log_end_offset
                    ]
                    assert logs[number].epochs.entries == known
    finally:
        for store in stores:
            store.stop(clean=False)
