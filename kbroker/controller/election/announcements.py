"""Computes the control requests that follow from changes of the state. Pure.

A broker gets LeaderAndIsr for the partitions it has replicas of, and every broker UpdateMetadata
for all. Within one event the order is LeaderAndIsr, UpdateMetadata, StopReplica, as in Kafka. If an
event changes a partition several times, only its final state is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    ControlRequest,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    PartitionKey,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.controller.state.state import (
    Change,
    ClusterState,
    DeletionBegun,
    PartitionsChanged,
    PartitionState,
    TopicCreated,
    TopicEnlarged,
)


class AddressedRequest(NamedTuple):
    """A control request and the broker it is for."""

    broker_id: int
    request: ControlRequest


class Batch:
    """Collects the requests of one event."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._leaders: dict[int, dict[PartitionKey, bool]] = {}  # by broker; whether it is new
        self._known: dict[PartitionKey, None] = {}
        self._untold: dict[int, None] = {}  # brokers without any state from this controller
        self._deleted: dict[str, None] = {}
        self._stopped: dict[int, dict[PartitionKey, StoppedPartition]] = {}
        self._brokers_changed = False

    # -- what there is to tell --

    def add(self, changes: Iterable[Change]) -> None:
        """Add what follows from changes of the state."""
        for change in changes:
            match change:
                case TopicCreated(topic) if not topic.deleting:
                    self._new(topic.name, range(len(topic.partitions)))
                case TopicEnlarged(name, partitions, _):
                    count = len(self._state.existing(name).partitions)
                    self._new(name, range(count - len(partitions), count))
                case PartitionsChanged(name, changed):
                    for number, partition in changed.items():
                        self.lead((name, number), is_new=is_first(partition))
                case DeletionBegun(name):
                    self._deleted[name] = None

    def _new(self, name: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.lead((name, number), is_new=True)

    def lead(
        self, key: PartitionKey, to: Iterable[int] | None = None, *, is_new: bool = False
    ) -> None:
        """LeaderAndIsr to ``to``, by default the replicas, then UpdateMetadata to all brokers.

        Nothing for a topic that is being deleted: a broker that has deleted its log already would
        take the replica as a new one, and keep it.
        """
        partition = self._state.partition(key)
        if partition is None or not partition.is_stored or self._state.existing(key[0]).deleting:
            return
        for broker_id in partition.replicas if to is None else to:
            leaders = self._leaders.setdefault(broker_id, {})
            leaders[key] = leaders.get(key, False) or is_new
        self._known[key] = None

    def repeat(self, broker_id: int, keys: Iterable[PartitionKey]) -> None:
        """Tell the broker again what it leads and follows; its response says what it cannot."""
        leaders = self._leaders.setdefault(broker_id, {})
        for key in keys:
            topic = self._state.topic(key[0])
            if topic is not None and not topic.deleting:
                leaders.setdefault(key, False)

    def refresh(self, keys: Iterable[PartitionKey]) -> None:
        """UpdateMetadata for these partitions to all brokers."""
        self._known |= dict.fromkeys(keys)

    def tell_all_to(self, broker_ids: Iterable[int]) -> None:
        """Send the complete state to these new brokers, and announce them to the others."""
        self._untold |= dict.fromkeys(broker_ids)
        self._brokers_changed = True

    def stop(self, broker_id: int, key: PartitionKey, leader_epoch: int, *, delete: bool) -> None:
        """StopReplica to the broker, instead of LeaderAndIsr for this partition."""
        stopped = StoppedPartition(*key, leader_epoch, delete)
        self._stopped.setdefault(broker_id, {})[key] = stopped
        self._leaders.get(broker_id, {}).pop(key, None)

    # -- requests --

    def requests(self) -> list[AddressedRequest]:
        """The requests, in the order in which to send them.

        New brokers are announced first, because a follower must know the address of its leader.
        They get all metadata before they lead anything: a coordinator takes a partition that is
        in no metadata for a deleted one. It says which topics are being deleted, too: an earlier
        controller may have had no time to, and a process that goes on knows them still.

        LeaderAndIsr to new brokers includes topics that are being deleted, so that their replicas
        find the logs to delete. A broker that registers again gets StopReplica once more for
        replicas that were moved away: its last registration may have ended before it heard of that.
        """
        requests: list[AddressedRequest] = []
        state = self._state
        others = [broker_id for broker_id in state.brokers if broker_id not in self._untold]
        if self._brokers_changed:
            requests += self._metadata((), others)
        if self._untold:
            requests += self._metadata(state.keys(), self._untold)
        for broker_id in self._untold:
            leaders = self._leaders.setdefault(broker_id, {})
            for key in state.keys_on([broker_id]):
                if not state.existing(key[0]).stopped:
                    leaders.setdefault(key, False)
            for key in state.removed.get(broker_id, ()):
                self.stop(broker_id, key, EPOCH_DURING_DELETE, delete=True)
        for broker_id, partitions in self._leaders.items():
            requests += self._leader_and_isr(broker_id, partitions)
        if self._known:
            requests += self._metadata(self._known, others)
        if self._deleted:
            requests += self._deletion()
        for broker_id, stopped in self._stopped.items():
            if broker_id in state.brokers:
                request = StopReplica(self._sender(broker_id), list(stopped.values()))
                requests.append(AddressedRequest(broker_id, request))
        return requests

    def _leader_and_isr(
        self, broker_id: int, partitions: dict[PartitionKey, bool]
    ) -> list[AddressedRequest]:
        state, partitions_led, topic_ids = self._state, list[LedPartition](), dict[str, bytes]()
        creations: dict[str, bytes] = {}
        for key, is_new in partitions.items():
            partition, topic = state.partition(key), state.topic(key[0])
            if partition is None or topic is None or not partition.is_stored:
                continue
            topic_ids[topic.name] = topic.topic_id
            if topic.creation:
                creations[topic.name] = topic.creation
            partitions_led.append(led(state, key, partition, is_new))
        if not partitions_led or broker_id not in state.brokers:
            return []
        request = LeaderAndIsr(self._sender(broker_id), partitions_led, topic_ids, creations)
        return [AddressedRequest(broker_id, request)]

    def _metadata(self, keys: Iterable[PartitionKey], to: Iterable[int]) -> list[AddressedRequest]:
        state, known_partitions, topic_ids = self._state, list[KnownPartition](), dict[str, bytes]()
        for key in keys:
            partition, topic = state.partition(key), state.topic(key[0])
            if partition is None or topic is None:
                continue
            if not partition.is_stored and not topic.deleting:
                continue
            topic_ids[topic.name] = topic.topic_id
            row = known(state, key, partition)
            known_partitions.append(being_deleted(row) if topic.deleting else row)
        return self._to_all(known_partitions, topic_ids, to)

    def _deletion(self) -> list[AddressedRequest]:
        """UpdateMetadata that marks these topics as being deleted."""
        topics = [self._state.existing(name) for name in self._deleted]
        removed = [
            being_deleted(known(self._state, (topic.name, number), partition))
            for topic in topics
            for number, partition in enumerate(topic.partitions)
        ]
        topic_ids = {topic.name: topic.topic_id for topic in topics}
        return self._to_all(removed, topic_ids, self._state.brokers)

    def _to_all(
        self, known_partitions: list[KnownPartition], topic_ids: dict[str, bytes], to: Iterable[int]
    ) -> list[AddressedRequest]:
        live = live_brokers(self._state)
        return [
            AddressedRequest(
                broker_id,
                UpdateMetadata(self._sender(broker_id), known_partitions, topic_ids, live),
            )
            for broker_id in to
            if broker_id in self._state.brokers
        ]

    def _sender(self, broker_id: int) -> Sender:
        return sender(self._state, broker_id)


def at_start(state: ClusterState, to: Iterable[int]) -> list[AddressedRequest]:
    """The complete state, for brokers that have nothing from this controller yet."""
    batch = Batch(state)
    batch.tell_all_to(to)
    return batch.requests()


def of_changes(state: ClusterState, changes: Iterable[Change]) -> list[AddressedRequest]:
    """The requests that follow from changes of the state."""
    batch = Batch(state)
    batch.add(changes)
    return batch.requests()


def is_first(partition: PartitionState) -> bool:
    """Whether this is the partition's first state."""
    return partition.partition_epoch == 0 and partition.leader_epoch == 0


def led(
    state: ClusterState, key: PartitionKey, partition: PartitionState, is_new: bool
) -> LedPartition:
    """The partition's entry in LeaderAndIsr."""
    return LedPartition(
        *key, state.controller_epoch, partition.leader, partition.leader_epoch, partition.isr,
        partition.partition_epoch, partition.replicas, is_new,
        partition.adding, partition.removing,
    )  # fmt: skip


def known(state: ClusterState, key: PartitionKey, partition: PartitionState) -> KnownPartition:
    """The partition's entry in UpdateMetadata."""
    offline = [b for b in partition.replicas if not state.is_live(b, key)]
    return KnownPartition(
        *key, state.controller_epoch, partition.leader, partition.leader_epoch, partition.isr,
        partition.partition_epoch, partition.replicas, offline,
    )  # fmt: skip


def being_deleted(row: KnownPartition) -> KnownPartition:
    """The entry in UpdateMetadata of a partition whose topic is being deleted."""
    return row._replace(leader=LEADER_DURING_DELETE, leader_epoch=EPOCH_DURING_DELETE)


def live_brokers(state: ClusterState) -> dict[int, LiveBroker]:
    return {broker_id: broker.live for broker_id, broker in state.brokers.items()}


def sender(state: ClusterState, broker_id: int) -> Sender:
    return Sender(state.broker_id, state.controller_epoch, state.brokers[broker_id].epoch)


def stop(state: ClusterState, names: Iterable[str]) -> list[AddressedRequest]:
    """StopReplica with deletion for topics being deleted; all their brokers must be live."""
    batch = Batch(state)
    for name in names:
        for number, partition in enumerate(state.existing(name).partitions):
            for broker_id in partition.replicas:
                batch.stop(broker_id, (name, number), EPOCH_DURING_DELETE, delete=True)
    return batch.requests()


def is_current(state: ClusterState, request: ControlRequest, broker_id: int) -> bool:
    """Whether the broker still has the registration that the request was sent to."""
    broker = state.brokers.get(broker_id)
    return broker is not None and broker.epoch == request.sender.broker_epoch
