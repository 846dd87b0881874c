"""An ISR that a leader writes itself, on a store that loses connections and responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.cluster.control_requests import LeaderAndIsr, LedPartition, Sender
from kbroker.errors import ErrorCode
from kbroker.hosting.isr_reports import IsrReports
from kbroker.hosting.replicas import HostedReplicas
from kbroker.hosting.slots import Slot
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.workers.controller.stored_isr import StoredIsr

pytestmark = pytest.mark.unit

ME, CONTROLLER_EPOCH = 1, 7
PARTITIONS = 3
STALE = IsrResult(ErrorCode.INVALID_UPDATE_VERSION)


class SlotsInOrder:
    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        return {number: (number, 1) for number in partitions}

    def release(self, topic: str, partitions: Any = None) -> None:
        raise AssertionError("no slot is released here")


class Bench:
    """A broker that leads the partitions of ``t`` in leader epoch 4."""

    def __init__(self, seed: int = 1, faults: Faults = Faults()) -> None:
        self.ensemble = SimulatedEnsemble(seed, faults)
        self.session_id = self.ensemble.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.apply("create", path)
        self.apply("create", paths.topic("t"))
        self.apply("create", paths.topic_partitions("t"))
        for number in range(PARTITIONS):
            self.apply("create", paths.partition("t", number))
            self.apply("create", paths.partition_state("t", number), state([1, 2]))
        self.reported: list[Any] = []
        self.connected = self.ensemble.connect()
        slots: Any = SlotsInOrder()
        self.replicas = HostedReplicas(ME, slots)
        partitions = [
            LedPartition("t", number, CONTROLLER_EPOCH, ME, 4, [1, 2], 0, [1, 2])
            for number in range(PARTITIONS)
        ]
        self.replicas.take(LeaderAndIsr(Sender(2, 8), partitions, {}))
        reports = IsrReports(self.report, lambda: self.ensemble.now_ms)
        self.note = reports.note
        reports.note = self.on_note  # type: ignore[method-assign]
        self.isr = StoredIsr(ME, self.replicas, SettledStore(self.connected), reports)
        self.ensemble.run_until(lambda: self.connected.session_id != 0)

    def report(self, keys: Any) -> Pending[None]:
        raise AssertionError("it is too early")

    def on_note(self, keys: Any) -> None:
        self.reported += keys

    def apply(self, kind: str, path: str, data: bytes = b"") -> None:
        self.ensemble.apply([StoreOperation(kind, path, data)], self.session_id)

    def alter(self, *wanted: WantedIsr) -> list[IsrResult]:
        outcome = self.isr.alter_isr(wanted)
        self.ensemble.run_until(lambda: outcome.done)
        assert outcome.error is None, outcome.error
        answers: list[IsrResult] = outcome.value
        return answers

    def stored(self, number: int = 0) -> tuple[dict[str, Any], int]:
        node = self.ensemble.tree.get(paths.partition_state("t", number))
        return json.loads(node.data), node.stat.version


def state(isr: list[int], leader: int = ME, leader_epoch: int = 4) -> bytes:
    return paths.encode_partition_state(leader, leader_epoch, isr, CONTROLLER_EPOCH)


def wanted(
    isr: list[int], number: int = 0, leader_epoch: int = 4, partition_epoch: int = 0
) -> WantedIsr:
    return WantedIsr("t", number, leader_epoch, isr, partition_epoch)


def done(isr: list[int], partition_epoch: int = 1) -> IsrResult:
    return IsrResult(ErrorCode.NONE, IsrState(ME, 4, isr, partition_epoch))


def test_state_is_written_as_by_the_controller_that_made_the_leader() -> None:
    bench = Bench()

    assert bench.alter(wanted([1]), wanted([1], 2)) == [done([1]), done([1])]

    document, version = bench.stored()
    assert version == 1
    assert document == {
        "version": 1,
        "leader": ME,
        "leader_epoch": 4,
        "controller_epoch": CONTROLLER_EPOCH,
        "isr": [1],
    }
    assert bench.stored(1)[1] == 0
    assert bench.reported == [("t", 0), ("t", 2)]


def test_state_that_the_controller_has_changed_is_not_written() -> None:
    bench = Bench()
    bench.apply("set", paths.partition_state("t", 0), state([2], leader=2, leader_epoch=5))

    assert bench.alter(wanted([1])) == [STALE]
    assert bench.stored() == (json.loads(state([2], leader=2, leader_epoch=5)), 1)
    assert bench.reported == []


def test_state_that_says_so_already_was_written_by_this_leader() -> None:
    """Written by an earlier process, which died before it got the result."""
    bench = Bench()
    document = json.loads(state([1]))
    shuffled = json.dumps(dict(reversed(document.items()))).encode()
    bench.apply("set", paths.partition_state("t", 0), shuffled)

    assert bench.alter(wanted([1])) == [done([1])]
    assert bench.reported == [("t", 0)]


def test_state_of_another_controller_epoch_is_another_state() -> None:
    bench = Bench()
    other = paths.encode_partition_state(ME, 4, [1], CONTROLLER_EPOCH + 1)
    bench.apply("set", paths.partition_state("t", 0), other)

    assert bench.alter(wanted([1])) == [STALE]


def test_only_what_is_led_here_in_that_epoch_is_written() -> None:
    bench = Bench()
    fenced = IsrResult(ErrorCode.FENCED_LEADER_EPOCH)

    assert bench.alter(wanted([1], leader_epoch=3), wanted([1], number=9)) == [fenced, fenced]
    assert bench.stored()[1] == 0


def test_partition_that_is_deleted_is_unknown() -> None:
    bench = Bench()
    bench.apply("delete", paths.partition_state("t", 0))

    assert bench.alter(wanted([1])) == [IsrResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


@pytest.mark.parametrize("seed", range(40))
def test_write_whose_response_was_lost_has_happened_once(seed: int) -> None:
    bench = Bench(seed, Faults(loss_per_request=0.3, outage_max_ms=500))

    answers = bench.alter(*[wanted([1], number) for number in range(PARTITIONS)])

    assert answers == [done([1])] * PARTITIONS
    assert [bench.stored(number)[1] for number in range(PARTITIONS)] == [1] * PARTITIONS
    assert sorted(bench.reported) == [("t", number) for number in range(PARTITIONS)]
