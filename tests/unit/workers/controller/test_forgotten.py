"""What a running broker does with replicas that others have, of which no controller tells it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    PartitionKey,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.topic_ids import local_topic_id
from kbroker.errors import ErrorCode
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.image import Changes
from kbroker.hosting.replicas import HostedReplica, HostedReplicas
from kbroker.hosting.slots import SlotAssignments
from kbroker.ipc.calls import StoppedReplica
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.types import BrokerId
from kbroker.workers.controller import forgotten
from kbroker.workers.controller.forgotten import STEP, WAIT_MS, ForgottenReplicas

pytestmark = pytest.mark.unit

ME = 1
FIRST, SECOND = Sender(2, 5), Sender(3, 6)  # controllers
IDS = {"t": local_topic_id("c", "t")}


class Bench:
    """Broker 1 follows ``t-0`` and ``t-1`` in leader epoch 4, as the first controller has said."""

    def __init__(self, directory: Any) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.apply("create", path)
        self.apply("create", paths.CLUSTER_ID, paths.encode_cluster_id("c"))
        self.slots = SlotAssignments(str(directory), 2 * STEP, 1)
        self.hosting = Hosting(BrokerId(ME), "c", self.slots)
        self.hosting.publish_to(self)
        store = SettledStore(self.ensemble.connect())
        self.forgotten = ForgottenReplicas(ME, self.hosting, store, "c")
        self.aside: list[tuple[str, int]] = []
        self.orders: list[Pending[None]] = []
        self.holds_orders = False
        self.topic([ME, 2], [ME, 2])
        self.lead(4, [ME, 2], numbers=[0, 1])
        self.know(4, [ME, 2], numbers=[0, 1])

    # -- as the processes of the broker --

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        done: Pending[dict[str, int]] = Pending()
        done.resolve({})
        return done

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        self.aside += [(one.topic, one.partition) for one in replicas if one.is_kept]
        if self.holds_orders:
            self.orders.append(Pending())
            await self.orders[-1]

    # -- what happens --

    def apply(self, kind: Any, path: str, data: bytes = b"") -> None:
        self.ensemble.apply([StoreOperation(kind, path, data)], self.session_id)

    def topic(self, *replicas: list[int], **rest: dict[str, list[int]]) -> None:
        path = paths.topic("t")
        kind = "create" if self.ensemble.tree.exists(path) is None else "set"
        self.apply(kind, path, paths.encode_topic(None, dict(enumerate(replicas)), rest))

    def lead(self, epoch: int, replicas: list[int], sender: Sender = FIRST,
             numbers: Sequence[int] = (0,)) -> dict[Any, ErrorCode]:  # fmt: skip
        rows = [
            LedPartition("t", n, sender.controller_epoch, 2, epoch, replicas, epoch, replicas)
            for n in numbers
        ]
        outcome = self.hosting.take(LeaderAndIsr(sender, rows, IDS))
        return dict(outcome.value.partitions) if outcome.done else {}

    def know(self, epoch: int, replicas: list[int], sender: Sender = FIRST, leader: int = 2,
             numbers: Sequence[int] = (0,)) -> None:  # fmt: skip
        rows = [
            KnownPartition("t", n, sender.controller_epoch, leader, epoch, replicas, 0, replicas)
            for n in numbers
        ]
        assert self.hosting.take(UpdateMetadata(sender, rows, IDS, {})).done

    def know_deleted(self, sender: Sender) -> None:
        self.know(EPOCH_DURING_DELETE, [ME, 2], sender, LEADER_DURING_DELETE, numbers=[0, 1])

    def wait(self, duration_ms: int = WAIT_MS + 2_000) -> None:
        until_ms = self.ensemble.now_ms + duration_ms
        while self.ensemble.now_ms < until_ms:
            self.forgotten.tick(self.ensemble.now_ms)
            waited = self.ensemble.sleep(500)
            self.ensemble.run_until(lambda waited=waited: waited.done)

    @property
    def hosted(self) -> list[int]:
        return sorted(replica.told.partition for replica in self.hosting.replicas)


@pytest.fixture
def bench(tmp_path: Any) -> Bench:
    return Bench(tmp_path)


def test_replica_that_others_have_is_set_aside_and_its_slot_freed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller died after it had written the reassignment; the next one knows the rest."""
    bench.topic([2, 3], [ME, 2])
    bench.know(5, [2, 3], SECOND)
    free = bench.slots.free_count

    bench.wait(WAIT_MS - 2_000)
    assert bench.aside == []
    bench.wait()

    assert bench.aside == [("t", 0)]
    assert bench.hosted == [1]
    assert bench.slots.free_count == free + 1
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert record.getMessage().startswith("other brokers have t-0 now")


def test_replica_of_a_deleted_topic_is_set_aside_after_a_change_of_the_controller(
    bench: Bench,
) -> None:
    bench.apply("delete", paths.topic("t"))
    bench.know_deleted(FIRST)
    bench.wait()
    assert bench.hosted == [0, 1], "StopReplica of this controller may still come"

    bench.know_deleted(SECOND)
    bench.wait()
    assert sorted(bench.aside) == [("t", 0), ("t", 1)]
    assert bench.hosted == []


@pytest.mark.parametrize(
    "replicas, rest",
    [
        ([2, ME], {}),
        ([2, 3], {"adding_replicas": {"0": [ME]}}),
        ([2, 3], {"removing_replicas": {"0": [ME]}}),
    ],
)
def test_replica_that_is_assigned_in_the_store_stays(
    bench: Bench, replicas: list[int], rest: dict[str, dict[str, list[int]]]
) -> None:
    """It was given back, and LeaderAndIsr will say so."""
    bench.topic(replicas, [ME, 2], **rest)
    bench.know(5, [2, 3], SECOND)
    bench.wait(3 * WAIT_MS)
    assert bench.hosted == [0, 1]


def test_metadata_that_is_older_than_the_role_says_nothing(bench: Bench) -> None:
    bench.topic([2, 3], [ME, 2])
    bench.know(4, [2, 3])
    bench.wait()
    assert bench.hosted == [0, 1]


def test_replica_that_gets_a_role_meanwhile_stays(bench: Bench) -> None:
    bench.topic([2, 3], [ME, 2])
    bench.know(5, [2, 3], SECOND)
    bench.wait(WAIT_MS - 2_000)
    bench.lead(6, [2, ME], SECOND)
    bench.wait()
    assert bench.hosted == [0, 1]


def test_role_that_comes_while_the_log_is_set_aside_waits_for_it(bench: Bench) -> None:
    """The partition begins empty then, and is copied."""
    bench.topic([2, 3], [ME, 2])
    bench.know(5, [2, 3], SECOND)
    bench.holds_orders = True
    bench.wait()
    before = bench.hosting.replicas.replica(("t", 0))
    bench.lead(6, [2, ME], SECOND)
    assert bench.hosting.replicas.replica(("t", 0)) == before

    bench.orders.pop().resolve()

    after = bench.hosting.replicas.replica(("t", 0))
    assert before is not None and after is not None
    assert after.told.leader_epoch == 6
    assert after.slot_incarnation > before.slot_incarnation
    assert bench.aside == [("t", 0)]


def test_stop_replica_that_comes_late_deletes_as_ever(bench: Bench) -> None:
    bench.topic([2, 3], [ME, 2])
    bench.know(5, [2, 3], SECOND)
    bench.holds_orders = True
    stop = StopReplica(SECOND, [StoppedPartition("t", 0, EPOCH_DURING_DELETE, True)])
    stopped = bench.hosting.take(stop)
    bench.wait(2 * WAIT_MS)
    assert not stopped.done and bench.aside == []

    bench.orders.pop().resolve()
    bench.wait()
    assert bench.aside == []
    assert bench.hosted == [1]


@pytest.mark.parametrize(
    "path, data",
    [
        (paths.CLUSTER_ID, paths.encode_cluster_id("another")),
        (paths.CLUSTER_ID, b"{"),
        (paths.topic("t"), b"{"),
    ],
)
def test_store_that_cannot_be_trusted_takes_nothing(
    bench: Bench, path: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that serves outlives a ZooKeeper that is damaged, or is another one."""
    bench.topic([2, 3], [ME, 2])
    bench.know(5, [2, 3], SECOND)
    before = bench.ensemble.tree.get(path).data
    bench.apply("set", path, data)
    with caplog.at_level(logging.INFO, forgotten.__name__):
        bench.wait(3 * WAIT_MS)
    assert bench.hosted == [0, 1]
    assert "replicas" in caplog.text

    bench.apply("set", path, before)
    bench.wait()
    assert bench.hosted == [1]


def test_topics_that_are_all_gone_take_nothing(bench: Bench) -> None:
    bench.know_deleted(SECOND)
    bench.apply("delete", paths.topic("t"))
    bench.apply("delete", paths.BROKER_TOPICS)
    bench.wait(2 * WAIT_MS)
    assert bench.hosted == [0, 1]


def test_replicas_are_looked_at_again_only_after_a_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle broker may have ten thousand, and looks four times a second."""
    bench.wait()
    looked: list[object] = []
    plain = HostedReplicas.replica

    def counted(replicas: HostedReplicas, key: PartitionKey) -> HostedReplica | None:
        looked.append(key)
        return plain(replicas, key)

    monkeypatch.setattr(HostedReplicas, "replica", counted)
    bench.wait()
    assert looked == []

    bench.lead(5, [ME, 2])
    looked.clear()
    bench.wait()

    assert sorted(looked) == [("t", 0), ("t", 1)]


def test_many_replicas_are_looked_at_in_steps(bench: Bench, tmp_path: Any) -> None:
    """No tick looks at all of them; the message names some."""
    bench.topic(*[[2, 3]] * (STEP + 50))
    bench.lead(4, [ME, 2], numbers=range(2, STEP + 50))
    bench.know(5, [2, 3], SECOND, numbers=range(STEP + 50))
    bench.wait(2 * WAIT_MS)
    assert len(bench.aside) == STEP + 50
    assert bench.hosted == []
