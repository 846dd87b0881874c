"""Kafka's control requests, sent by a controller to brokers, as values.

A controller says nothing to a broker in any other way, to its own neither: there these are handed
over by a call, everywhere else they will be on the wire as APIs 4, 5 and 6, with the same fields.
The wire groups partitions by topic; here each names its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode

NO_LEADER = -1
# In UpdateMetadata: the partition is deleted.
LEADER_DURING_DELETE = -2
# In StopReplica: any leader epoch; the first for a topic that is being deleted, the second from a
# controller that does not send one.
EPOCH_DURING_DELETE = -2
NO_LEADER_EPOCH = -1
# From a controller that does not know the broker epoch.
NO_BROKER_EPOCH = -1

PartitionKey = tuple[str, int]  # topic, partition


class LedPartition(NamedTuple):
    """A partition of LeaderAndIsr. ``controller_epoch``: of the controller that decided it.
    ``is_new``: the broker has no log of it yet.
    """

    topic: str
    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int  # the version of its node in the store, "zkVersion" on the wire
    replicas: list[int]
    is_new: bool = False
    adding_replicas: Sequence[int] = ()
    removing_replicas: Sequence[int] = ()

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class KnownPartition(NamedTuple):
    """A partition of UpdateMetadata."""

    topic: str
    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int
    replicas: list[int]
    offline_replicas: Sequence[int] = ()

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class StoppedPartition(NamedTuple):
    """A partition of StopReplica. ``delete``: whether its log is deleted, too."""

    topic: str
    partition: int
    leader_epoch: int
    delete: bool

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class LiveBroker(NamedTuple):
    """``endpoints`` as in the cluster image: listener, host, port, security protocol."""

    endpoints: list[list[Any]]
    rack: str | None


class Sender(NamedTuple):
    """Which controller has sent a request, and to which registration of the broker."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int = NO_BROKER_EPOCH


class LeaderAndIsr(NamedTuple):
    """The broker's role in partitions of which it has a replica. ``creations``: of its topics, as
    far as this broker has asked the store; not on the wire.
    """

    sender: Sender
    partitions: list[LedPartition]
    topic_ids: Mapping[str, bytes]
    creations: Mapping[str, bytes] = {}


class UpdateMetadata(NamedTuple):
    """States of partitions, and all live brokers. Partitions that are not named stay as they
    were.
    """

    sender: Sender
    partitions: list[KnownPartition]
    topic_ids: Mapping[str, bytes]
    live_brokers: Mapping[int, LiveBroker]


class StopReplica(NamedTuple):
    """Partitions of which the broker must stop its replica."""

    sender: Sender
    partitions: list[StoppedPartition]


ControlRequest = LeaderAndIsr | UpdateMetadata | StopReplica


class ControlResponse(NamedTuple):
    """``error``: of the whole request, which then had no effect. ``partitions``: those that were
    rejected or failed.
    """

    error: ErrorCode = ErrorCode.NONE
    partitions: Mapping[PartitionKey, ErrorCode] = {}

    def __str__(self) -> str:
        if self.error:
            return self.error.name
        return ", ".join(f"{topic}-{n} {code.name}" for (topic, n), code in self.partitions.items())
