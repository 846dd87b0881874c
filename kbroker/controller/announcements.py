"""Which control requests follow from what has changed. Pure: state in, requests out.

A broker gets LeaderAndIsr for the partitions of which it has a replica, every broker UpdateMetadata
for all; of one change in this order, as from Kafka's controllers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    ControlRequest,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.controller.state import (
    Change,
    ClusterState,
    DeletionBegun,
    PartitionsChanged,
    PartitionState,
    TopicCreated,
    TopicEnlarged,
    TopicState,
)


class Request(NamedTuple):
    """For one broker."""

    broker_id: int
    request: ControlRequest


class Announced(NamedTuple):
    """A partition that is told to brokers."""

    topic: TopicState
    number: int
    state: PartitionState
    is_new: bool


def at_start(state: ClusterState, to: Iterable[int]) -> list[Request]:
    """All there is, to brokers that this controller has told nothing.

    The brokers come first: whoever is to follow a leader has to know where that is. A topic that is
    being deleted is told to those who have its replicas, so that they find the logs to delete.
    """
    brokers = list(to)
    partitions = [
        Announced(topic, number, partition, is_new=False)
        for topic in state.topics()
        if not topic.stopped
        for number, partition in enumerate(topic.partitions)
    ]
    known = [partition for partition in partitions if not partition.topic.deleting]
    return [
        *_metadata(state, [], brokers),
        *_leaders(state, partitions, brokers),
        *_metadata(state, known, brokers),
    ]


def of_changes(state: ClusterState, changes: Iterable[Change]) -> list[Request]:
    """What brokers are told of changes that were entered."""
    announced: list[Announced] = []
    deleted: list[str] = []
    for change in changes:
        if isinstance(change, DeletionBegun):
            deleted.append(change.name)
        else:
            announced += _partitions(state, change)
    brokers = list(state.brokers)
    requests = []
    if announced:
        requests += _leaders(state, announced, brokers)
        requests += _metadata(state, announced, brokers)
    if deleted:
        requests += _deletion(state, deleted, brokers)
    return requests


def _partitions(state: ClusterState, change: Change) -> Iterator[Announced]:
    match change:
        case TopicCreated(topic):
            if topic.deleting:
                return
            for number, partition in enumerate(topic.partitions):
                yield Announced(topic, number, partition, is_new=True)
        case TopicEnlarged(name, partitions, _):
            topic = state.existing(name)
            first = len(topic.partitions) - len(partitions)
            for number, partition in enumerate(partitions, first):
                yield Announced(topic, number, partition, is_new=True)
        case PartitionsChanged(name, changed):
            for number, partition in changed.items():
                yield Announced(state.existing(name), number, partition, is_new=False)


def stop(state: ClusterState, names: Iterable[str]) -> list[Request]:
    """Have the logs of topics that are being deleted deleted; all that have any of them live."""
    by_broker: dict[int, list[StoppedPartition]] = {}
    for name in names:
        for number, partition in enumerate(state.existing(name).partitions):
            stopped = StoppedPartition(name, number, EPOCH_DURING_DELETE, delete=True)
            for broker_id in partition.replicas:
                by_broker.setdefault(broker_id, []).append(stopped)
    return [
        Request(broker_id, StopReplica(_sender(state, broker_id), stopped_there))
        for broker_id, stopped_there in by_broker.items()
    ]


def is_current(state: ClusterState, request: ControlRequest, broker_id: int) -> bool:
    """Whether the broker has not registered anew since it was sent that."""
    broker = state.brokers.get(broker_id)
    return broker is not None and broker.epoch == request.sender.broker_epoch


def _leaders(
    state: ClusterState, announced: Iterable[Announced], to: Iterable[int]
) -> list[Request]:
    by_broker: dict[int, list[LedPartition]] = {broker_id: [] for broker_id in to}
    topic_ids = {}
    for topic, number, partition, is_new in announced:
        topic_ids[topic.name] = topic.topic_id
        leader, leader_epoch, isr, replicas, partition_epoch = partition
        told = LedPartition(
            topic.name, number, state.controller_epoch, leader, leader_epoch, isr,
            partition_epoch, replicas, is_new,
        )  # fmt: skip
        for broker_id in replicas:
            if broker_id in by_broker:
                by_broker[broker_id].append(told)
    return [
        Request(broker_id, LeaderAndIsr(_sender(state, broker_id), partitions, topic_ids))
        for broker_id, partitions in by_broker.items()
        if partitions
    ]


def _metadata(
    state: ClusterState, announced: Iterable[Announced], to: Iterable[int]
) -> list[Request]:
    known = []
    topic_ids = {}
    for topic, number, partition, _ in announced:
        topic_ids[topic.name] = topic.topic_id
        leader, leader_epoch, isr, replicas, partition_epoch = partition
        told = KnownPartition(
            topic.name, number, state.controller_epoch, leader, leader_epoch, isr,
            partition_epoch, replicas,
        )  # fmt: skip
        known.append(told)
    return _to_all(state, known, topic_ids, to)


def _deletion(state: ClusterState, names: Iterable[str], to: Iterable[int]) -> list[Request]:
    """Nobody serves these topics any more."""
    topics = [state.existing(name) for name in names]
    known = [
        KnownPartition(
            topic.name, number, state.controller_epoch, LEADER_DURING_DELETE, EPOCH_DURING_DELETE,
            partition.isr, partition.partition_epoch, partition.replicas,
        )
        for topic in topics
        for number, partition in enumerate(topic.partitions)
    ]  # fmt: skip
    return _to_all(state, known, {topic.name: topic.topic_id for topic in topics}, to)


def _to_all(
    state: ClusterState,
    known: list[KnownPartition],
    topic_ids: dict[str, bytes],
    to: Iterable[int],
) -> list[Request]:
    live = {broker_id: broker.live for broker_id, broker in state.brokers.items()}
    return [
        Request(broker_id, UpdateMetadata(_sender(state, broker_id), known, topic_ids, live))
        for broker_id in to
    ]


def _sender(state: ClusterState, broker_id: int) -> Sender:
    epoch = state.brokers[broker_id].epoch
    return Sender(state.broker_id, state.controller_epoch, epoch)
