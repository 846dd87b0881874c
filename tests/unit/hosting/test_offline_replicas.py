"""Replicas that cannot be served: when a new LeaderAndIsr is requested, and the response."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker._ext.shared.partition_table import OFFLINE, ONLINE, PartitionTable, region_size
from kbroker.cluster.control_requests import LeaderAndIsr, LedPartition, PartitionKey, Sender
from kbroker.errors import ErrorCode
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.image import Changes
from kbroker.hosting.offline_replicas import STEP, OfflineReplicas
from kbroker.hosting.slots import Slot
from kbroker.ipc.pending import Pending
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

COUNT = 3 * STEP
FIRST, LAST = ("t", 0), ("t", COUNT - 1)


class SlotsInOrder:
    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        return {number: (number, 1) for number in partitions}

    def release(self, topic: str, partitions: Any = None) -> None:
        raise AssertionError("no slot is released here")


class CountedTable(PartitionTable):
    reads = 0

    def read(self, slot: int) -> Any:
        self.reads += 1
        return super().read(slot)


class Bench:
    """A broker with the partitions of ``t``, alternating between two log directories."""

    def __init__(self) -> None:
        region = bytearray(region_size(COUNT))
        self.table = CountedTable(region, COUNT)
        self.dirs = bytearray(2)
        self.reports: list[Pending[None]] = []
        self.unavailable: dict[str, int] = {}
        slots: Any = SlotsInOrder()
        self.hosting = Hosting(BrokerId(1), "c", slots)
        self.hosting.publish_to(self)
        self.offline = OfflineReplicas(self.hosting.replicas, self.table, self.dirs, self.report)
        self.hosting.ask_of_offline(self.offline)
        self.lead(4)
        for slot in range(COUNT):
            self.table.reset(slot, state=ONLINE, slot_incarnation=1, log_dir_index=slot % 2)
        self.tick()

    def report(self) -> Pending[None]:
        self.reports.append(Pending())
        return self.reports[-1]

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        done: Pending[dict[str, int]] = Pending()
        done.resolve(self.unavailable)
        return done

    async def stop_replicas(self, replicas: Any) -> None:
        raise AssertionError("nothing is deleted here")

    def lead(self, leader_epoch: int) -> dict[PartitionKey, ErrorCode]:
        """The errors of a LeaderAndIsr for all partitions."""
        partitions = [
            LedPartition("t", number, 1, 1, leader_epoch, [1], 0, [1]) for number in range(COUNT)
        ]
        outcome = self.hosting.take(LeaderAndIsr(Sender(1, 1), partitions, {}))
        return dict(outcome.value.partitions)

    def tick(self, times: int = 10) -> None:
        for _ in range(times):
            self.offline.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_failed_log_directory_is_reported_at_once_and_the_replicas_in_it_are_said(
    bench: Bench,
) -> None:
    bench.dirs[1] = 1
    bench.tick(1)
    assert len(bench.reports) == 1

    errors = bench.lead(4)  # the controller asks

    assert errors == {
        ("t", number): ErrorCode.KAFKA_STORAGE_ERROR
        if number % 2
        else ErrorCode.STALE_CONTROLLER_EPOCH
        for number in range(COUNT)
    }


def test_report_is_made_once(bench: Bench) -> None:
    bench.dirs[1] = 1
    bench.tick()
    assert len(bench.reports) == 1, "not again while it is under way"
    bench.reports[0].resolve()
    bench.tick()

    assert len(bench.reports) == 1


def test_report_that_fails_is_made_again(bench: Bench) -> None:
    bench.dirs[1] = 1
    bench.tick()
    bench.reports[0].resolve(error=RuntimeError("no store"))
    bench.tick()

    assert len(bench.reports) == 2


def test_replica_whose_files_are_damaged_is_reported_soon(bench: Bench) -> None:
    bench.table.set_state(COUNT - 1, OFFLINE)
    bench.tick(1)
    assert bench.reports == []

    bench.tick(COUNT // STEP + 1)

    assert len(bench.reports) == 1
    assert bench.offline.has(LAST) and not bench.offline.has(FIRST)


def test_what_the_controller_was_told_in_a_response_is_not_reported(bench: Bench) -> None:
    bench.unavailable = {"t-0": int(ErrorCode.KAFKA_STORAGE_ERROR)}
    assert bench.lead(5) == {FIRST: ErrorCode.KAFKA_STORAGE_ERROR}
    bench.table.set_state(0, OFFLINE)
    bench.tick()

    assert bench.reports == []


def test_replica_that_goes_offline_again_is_reported_again(bench: Bench) -> None:
    for _ in range(2):
        bench.table.set_state(0, OFFLINE)
        bench.tick()
        bench.reports[-1].resolve()
        bench.table.set_state(0, ONLINE)
        bench.tick()

    assert len(bench.reports) == 2


def test_slot_of_an_earlier_replica_says_nothing_of_this_one(bench: Bench) -> None:
    bench.table.reset(0, state=OFFLINE, slot_incarnation=0, log_dir_index=0)
    bench.tick()

    assert bench.reports == [] and not bench.offline.has(FIRST)


def test_replicas_are_looked_at_only_after_a_change(bench: Bench) -> None:
    """A broker may have ten thousand."""
    bench.table.reads = 0
    bench.tick()
    assert bench.table.reads == 0

    bench.table.set_state(0, OFFLINE)
    bench.tick()
    assert bench.table.reads == COUNT
    bench.reports[0].resolve()
    bench.tick()

    assert bench.table.reads == 2 * COUNT, "which the controller has now been told"
    bench.lead(5)  # others, for all it knows
    bench.table.reads = 0
    bench.tick()
    assert bench.table.reads == COUNT


def test_partition_that_is_not_here_is_not_offline(bench: Bench) -> None:
    assert not bench.offline.has(("u", 0))
