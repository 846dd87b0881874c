"""Reads and writes the nodes of topics in the metadata store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.cluster.topic_names import name_fault
from kbroker.controller.state.state import PartitionState, without_state
from kbroker.controller.state.topics import Assignment, PlannedTopic
from kbroker.metastore import paths
from kbroker.metastore.store import Node, StoreTransaction

logger = logging.getLogger(__name__)


def create_topic(
    transaction: StoreTransaction[Any],
    topic: PlannedTopic,
    config_version: int | None,
    partitions: Mapping[int, PartitionState],
    controller_epoch: int,
    topic_id: bytes | None,
) -> None:
    """Add a topic's nodes. topic_id: as stored in them.

    config_version: of the settings that a topic of that name left.
    """
    write_assignment(transaction, topic, config_version, topic_id)
    transaction.create(paths.topic_partitions(topic.name))
    create_partitions(transaction, topic.name, partitions, controller_epoch)


def write_assignment(
    transaction: StoreTransaction[Any],
    topic: PlannedTopic,
    config_version: int | None,
    topic_id: bytes | None,
) -> None:
    """Add the nodes that any broker may write for a topic, the configs before the watched one."""
    path, config = paths.topic_config(topic.name), paths.encode_config(topic.config)
    if config_version is None:
        transaction.create(path, config)
    else:
        transaction.set(path, config, config_version)
    transaction.create(paths.topic(topic.name), paths.encode_topic(topic_id, topic.assignment))


def create_partitions(
    transaction: StoreTransaction[Any],
    name: str,
    partitions: Mapping[int, PartitionState],
    controller_epoch: int,
) -> None:
    """Add the nodes of partitions; those without a state have no leader."""
    for number, partition in partitions.items():
        transaction.create(paths.partition(name, number))
        if partition.is_stored:
            document = paths.encode_partition_state(
                partition.leader, partition.leader_epoch, partition.isr, controller_epoch
            )
            transaction.create(paths.partition_state(name, number), document)


def all_in_sync(
    assignment: Assignment, leader_epochs: Mapping[int, int]
) -> dict[int, PartitionState]:
    """States in which the first replica leads and all are in sync. leader_epochs: where not 0."""
    return {
        number: PartitionState(replicas[0], leader_epochs.get(number, 0), list(replicas), replicas)
        for number, replicas in assignment.items()
    }


# The exceptions raised by a document that no broker has written.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


class StoredState(NamedTuple):
    """Leader and in-sync replicas of a partition as stored, and the version of their node."""

    leader: int
    leader_epoch: int
    isr: list[int]
    version: int


class StoredTopic(NamedTuple):
    """A topic as stored."""

    name: str
    document: Node
    topic_id: bytes | None  # None: written by a Kafka that knew no topic ids
    assignment: Assignment
    states: dict[int, StoredState]  # of partitions that have one
    rest: dict[str, Any]  # other fields, kept when the document is rewritten

    def partitions(self) -> list[PartitionState]:
        """In order of their numbers; those without a state have no leader."""
        adding, removing = paths.reassigned_of_topic(self.rest)
        partitions = []
        for number, replicas in sorted(self.assignment.items()):
            state = self.states.get(number)
            partition = without_state(replicas)
            if state is not None:
                leader, leader_epoch, isr, version = state
                partition = PartitionState(leader, leader_epoch, isr, replicas, version)
            partitions.append(
                partition._replace(adding=adding.get(number, ()), removing=removing.get(number, ()))
            )
        return partitions


def stored_topics(nodes: Iterable[Node], *, ignore_damaged: bool = False) -> list[StoredTopic]:
    """Parse topics from nodes: all of those below ``/brokers/topics``, or some.

    ignore_damaged: skip topics that cannot be parsed, and log an ERROR. A partition whose state
    cannot be parsed counts as one without: nobody can lead it, as its node is there.
    """
    documents: dict[str, Node] = {}
    states: dict[str, dict[int, StoredState]] = {}
    for node in nodes:
        parts = node.path.split("/")
        if len(parts) == 4:
            documents[parts[3]] = node
        elif len(parts) == 7 and parts[6] == "state":
            try:
                state = StoredState(*paths.decode_partition_state(node.data), node.stat.version)
                states.setdefault(parts[3], {})[int(parts[5])] = state
            except DAMAGED as error:
                if not ignore_damaged:
                    raise
                logger.error("ignoring the state %s: %r", node.path, error)
    topics = []
    for name, node in documents.items():
        try:
            topics.append(_stored_topic(name, node, states.get(name, {})))
        except DAMAGED as error:
            if not ignore_damaged:
                raise
            logger.error("ignoring topic %s of the store: %s: %r", name, node.path, error)
    return topics


def _stored_topic(name: str, node: Node, states: dict[int, StoredState]) -> StoredTopic:
    """Raises DAMAGED for what no broker could host."""
    fault = name_fault(name)
    if fault is not None:
        raise ValueError(f"its name {fault}")
    topic_id, assignment = paths.decode_topic(node.data)
    if sorted(assignment) != list(range(len(assignment))) or not all(assignment.values()):
        raise ValueError(f"partitions {assignment}"[:1000])
    topic = StoredTopic(name, node, topic_id, assignment, states, paths.rest_of_topic(node.data))
    topic.partitions()
    return topic
