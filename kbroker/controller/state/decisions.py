"""The controller's decisions: from state and request to store writes and state changes. Pure.

A decision is one transaction, and conditional: on the versions that the state knows, or on a node's
absence. Its changes are entered once it is written; which control requests follow from them,
``announcements`` says. BadVersion, NodeExists and NoNode say that somebody else wrote in between:
then the state is brought up to date, and the decision is made again (``active_controller``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.cluster.control_requests import PartitionKey
from kbroker.controller.configs.configs import Configs, ConfigsChanged
from kbroker.controller.state.elections import first_states
from kbroker.controller.state.state import (
    Change,
    ClusterState,
    DeletionBegun,
    PartitionsChanged,
    PartitionState,
    Reassigned,
    TopicCreated,
    TopicEnlarged,
    TopicRemoved,
    TopicState,
)
from kbroker.controller.state.topics import Assignment, PlannedTopic
from kbroker.controller.store.topic_nodes import create_partitions, create_topic
from kbroker.metastore import paths
from kbroker.metastore.entities import entity_config
from kbroker.metastore.store import ANY_VERSION, Node, StoreOperation, StoreTransaction

# Kinds of configs that Kafka 2.7 does not have.
UNKNOWN_TO_KAFKA = (paths.GROUP_CONFIGS, paths.IP_CONFIGS, paths.CLIENT_METRICS_CONFIGS)
REMOVED_IF_EMPTY = (paths.GROUP_CONFIGS, paths.CLIENT_METRICS_CONFIGS)


class Decision(NamedTuple):
    writes: list[StoreOperation]
    changes: list[Change]


def collect() -> StoreTransaction[list[StoreOperation]]:
    """A transaction that only collects its operations."""
    return StoreTransaction(lambda operations: operations)


def create(state: ClusterState, topics: Iterable[PlannedTopic]) -> Decision:
    """Create topics with their configs and the first state of each partition."""
    transaction, changes = collect(), list[Change]()
    for new in topics:
        version = state.configs.versions.get(paths.topic_config(new.name))
        states = first_states(state, new.name, new.assignment)
        topic_id = state.topic_ids.to_store(new.topic_id)
        create_topic(transaction, new, version, states, state.controller_epoch, topic_id)
        partitions = [states[number] for number in sorted(states)]
        topic = TopicState(new.name, new.topic_id, partitions)
        changes.append(TopicCreated(topic, new.config))
    return Decision(transaction.operations, changes)


def enlarge(state: ClusterState, name: str, added: Assignment) -> Decision:
    """Add partitions to an existing topic."""
    topic = state.existing(name)
    assignment = {number: p.replicas for number, p in enumerate(topic.partitions)} | added
    transaction = collect()
    document = paths.encode_topic(state.topic_ids.to_store(topic.topic_id), assignment, topic.rest)
    transaction.set(paths.topic(name), document, topic.document_version)
    states = first_states(state, name, added)
    create_partitions(transaction, name, states, state.controller_epoch)
    partitions = [states[number] for number in sorted(states)]
    enlarged = TopicEnlarged(name, partitions, topic.document_version + 1)
    return Decision(transaction.operations, [enlarged])


Decide = Callable[[PartitionKey, PartitionState], PartitionState | None]


def change_partitions(
    state: ClusterState, keys: Iterable[PartitionKey], decide: Decide
) -> Decision:
    """Change partitions to what ``decide`` returns; None leaves one as it is. Topics that are being
    deleted are not changed.
    """
    transaction = collect()
    changed: dict[str, dict[int, PartitionState]] = {}
    for key in keys:
        name, number = key
        old, topic = state.partition(key), state.topic(name)
        if old is None or topic is None or topic.deleting:
            continue
        new = decide(key, old)
        if new is None:
            continue
        document = paths.encode_partition_state(
            new.leader, new.leader_epoch, new.isr, state.controller_epoch
        )
        path = paths.partition_state(name, number)
        if old.is_stored:
            transaction.set(path, document, old.partition_epoch)
        else:
            transaction.create(path, document)
        written = new._replace(partition_epoch=old.partition_epoch + 1)
        changed.setdefault(name, {})[number] = written
    changes: list[Change] = [PartitionsChanged(*entry) for entry in changed.items()]
    return Decision(transaction.operations, changes)


def reassign(
    state: ClusterState, name: str, keys: Iterable[PartitionKey], decide: Decide
) -> Decision:
    """Change the assignment of partitions of one topic, and their states with it."""
    topic = state.topic(name)
    changed: dict[int, PartitionState] = {}
    for key in keys:
        old = state.partition(key)
        new = None if old is None or topic is None or topic.deleting else decide(key, old)
        if new is not None:
            changed[key[1]] = new
    if topic is None or not changed:
        return Decision([], [])
    partitions = dict(enumerate(topic.partitions)) | changed
    rest = dict(topic.rest)
    for key_of, lists in (
        ("adding_replicas", {str(n): list(p.adding) for n, p in partitions.items() if p.adding}),
        (
            "removing_replicas",
            {str(n): list(p.removing) for n, p in partitions.items() if p.removing},
        ),
    ):
        rest[key_of] = lists
    transaction = collect()
    assignment = {number: partition.replicas for number, partition in partitions.items()}
    document = paths.encode_topic(state.topic_ids.to_store(topic.topic_id), assignment, rest)
    transaction.set(paths.topic(name), document, topic.document_version)
    for number, new in changed.items():
        if not new.is_stored:
            continue
        data = paths.encode_partition_state(
            new.leader, new.leader_epoch, new.isr, state.controller_epoch
        )
        transaction.set(paths.partition_state(name, number), data, new.partition_epoch)
        changed[number] = new._replace(partition_epoch=new.partition_epoch + 1)
    change = Reassigned(name, changed, topic.document_version + 1, rest)
    return Decision(transaction.operations, [change])


def begin_deletion(names: Iterable[str]) -> Decision:
    """Mark topics for deletion. This cannot be undone."""
    transaction, changes = collect(), list[Change]()
    for name in names:
        transaction.create(paths.delete_topic(name))
        changes.append(DeletionBegun(name))
    return Decision(transaction.operations, changes)


def remove(state: ClusterState, names: Iterable[str], nodes: Mapping[str, list[Node]]) -> Decision:
    """Remove topics whose logs are deleted. nodes: each topic's ``nodes_to_delete``; the mark goes
    last, so that the next controller continues.
    """
    transaction, changes = collect(), list[Change]()
    for name in names:
        config = paths.topic_config(name)
        if config in state.configs.versions:
            transaction.delete(config, state.configs.versions[config])
        for node in reversed(nodes[name]):
            transaction.delete(node.path, node.stat.version)
        changes.append(TopicRemoved(name))
    return Decision(transaction.operations, changes)


def configure(configs: Configs, changed: ConfigsChanged, *, is_shared: bool) -> Decision:
    """Replace the configs of topics, brokers, groups and other entities.

    is_shared: notify the other brokers, and fail with NoNode if a topic no longer exists.
    """
    transaction = collect()
    documents = [(paths.topic_config(name), config) for name, config in changed.topics.items()]
    documents += [(paths.broker_config(name), config) for name, config in changed.brokers.items()]
    documents += [(paths.group_config(name), config) for name, config in changed.groups.items()]
    documents += [(entity_config(name), config) for name, config in changed.entities.items()]
    documents += [
        (paths.client_metrics_config(name), config)
        for name, config in changed.client_metrics.items()
    ]
    for path, config in documents:
        version = configs.versions.get(path)
        if version is None:
            transaction.create(path, paths.encode_config(config))
        elif not config and path.startswith(REMOVED_IF_EMPTY):
            transaction.delete(path, version)
        else:
            transaction.set(path, paths.encode_config(config), version)
        if is_shared and not path.startswith(UNKNOWN_TO_KAFKA):
            notice = paths.encode_config_change(path)
            transaction.create(paths.CONFIG_CHANGE, notice, sequential=True)
    if is_shared:
        for name in changed.topics:
            transaction.check(paths.topic(name), ANY_VERSION)
        # COMPAT: Kafka 2.7 stops processing notifications at one of an unknown entity type.
        transaction.operations += [
            StoreOperation("set", of_kind)
            for of_kind in UNKNOWN_TO_KAFKA
            if any(path.startswith(of_kind + "/") for path, _ in documents)
        ]
    return Decision(transaction.operations, [changed])
