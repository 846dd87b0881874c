"""The controller's reads and writes of the metadata store.

Every write is one transaction, and conditional: on the version that was read, or on the node's
absence. BadVersion, NodeExists and NoNode say that somebody else wrote in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.cluster.image import NO_SLOT
from kbroker.controller.state import ClusterState, PartitionState, TopicState
from kbroker.controller.topics import Assignment, NewTopic
from kbroker.errors import InvariantError
from kbroker.hosting.slots import SlotAssignments
from kbroker.metastore import paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, Node, NoNode, Transaction
from kbroker.uuids import new_uuid

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000
# Others write to a store that is shared: what they changed in between is looked at again.
ATTEMPTS = 3


class StoredState(NamedTuple):
    """A partition's state node. ``partition_epoch``: its version."""

    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int


async def load(store: SettledStore, state: ClusterState, slots: SlotAssignments) -> None:
    """Read topics and configs into ``state`` and give every replica hosted here its slot."""
    topic_configs = {
        node.path.rpartition("/")[2]: paths.decode_config(node.data)
        for node in await store.subtree(paths.TOPIC_CONFIGS)
    }
    for node in await store.subtree(paths.BROKER_CONFIGS):
        entity = node.path.rpartition("/")[2]
        name = "default" if entity == paths.DEFAULT_ENTITY else entity
        state.set_broker_config(name, paths.decode_config(node.data))
    for node in await store.subtree(paths.GROUP_CONFIGS):
        state.set_group_config(paths.group_of_config(node.path), paths.decode_config(node.data))
    documents: dict[str, Node] = {}
    partition_states: dict[str, dict[int, StoredState]] = {}
    for node in await store.subtree(paths.BROKER_TOPICS):
        parts = node.path.split("/")
        if len(parts) == 4:
            documents[parts[3]] = node
        elif len(parts) == 7 and parts[6] == "state":
            stored = StoredState(*paths.decode_partition_state(node.data), node.stat.version)
            partition_states.setdefault(parts[3], {})[int(parts[5])] = stored
    for name, node in documents.items():
        topic_id, assignment = paths.decode_topic(node.data)
        version = node.stat.version
        if topic_id is None:
            # Written by a Kafka that knew no topic ids: give it one, for good.
            topic_id = new_uuid()
            document = paths.encode_topic(topic_id, assignment)
            await store.multi().set(node.path, document, version).commit()
            version += 1
        leaders = partition_states.get(name, {})
        partitions = partition_list(state.broker_id, name, assignment, slots, leaders)
        topic = TopicState(name, topic_id, partitions, topic_configs.get(name, {}))
        topic.document_version = version
        state.add_topic(topic)
    for name in slots.topics():
        if name not in documents:
            slots.release(name)
    marked = await store.children(paths.DELETE_TOPICS)
    unfinished = [name for name in marked if state.topic(name)]
    state.mark_deleting(unfinished)
    for name in set(marked) - set(unfinished):
        await store.multi().delete(paths.delete_topic(name)).commit()


def partition_list(
    broker_id: int,
    topic: str,
    assignment: Assignment,
    slots: SlotAssignments,
    leaders: Mapping[int, StoredState] | None = None,
) -> list[PartitionState]:
    """The partitions of an assignment, in order of number, with slots for replicas hosted here.

    leaders: what is known of them; else the first replica leads and all are in sync. NoFreeSlot.
    """
    numbers = sorted(assignment)
    hosted = [number for number in numbers if broker_id in assignment[number]]
    given = slots.assign(topic, hosted)
    partitions = []
    for number in numbers:
        replicas = assignment[number]
        default = StoredState(replicas[0], 0, list(replicas), 0)
        leader, epoch, isr, partition_epoch = (leaders or {}).get(number, default)
        slot, incarnation = given.get(number, (NO_SLOT, 0))
        partitions.append(
            PartitionState(leader, epoch, isr, replicas, slot, incarnation, partition_epoch)
        )
    return partitions


async def write_topics(
    store: SettledStore, topics: Iterable[NewTopic], controller_epoch: int
) -> None:
    """Create topics with their config and the first state of every partition."""
    transaction = store.multi()
    for topic in topics:
        config = await store.exists(paths.topic_config(topic.name))
        version = None if config is None else config.version
        create_topic(transaction, topic, version, controller_epoch, {})
    await transaction.commit()


def create_topic(
    transaction: Transaction[Any],
    topic: NewTopic,
    config_version: int | None,
    controller_epoch: int,
    leader_epochs: Mapping[int, int],
) -> None:
    """Add a topic's nodes. config_version: of the settings that a topic of that name left."""
    path, config = paths.topic_config(topic.name), paths.encode_config(topic.config)
    if config_version is None:
        transaction.create(path, config)
    else:
        transaction.set(path, config, config_version)
    document = paths.encode_topic(topic.topic_id, topic.assignment)
    transaction.create(paths.topic(topic.name), document)
    transaction.create(paths.topic_partitions(topic.name))
    create_partitions(transaction, topic.name, topic.assignment, controller_epoch, leader_epochs)


async def write_partitions(
    store: SettledStore, topic: TopicState, added: Assignment, controller_epoch: int
) -> None:
    """Enlarge a topic that nobody has changed since it was read."""
    assignment = {number: p.replicas for number, p in enumerate(topic.partitions)} | added
    transaction = store.multi()
    document = paths.encode_topic(topic.topic_id, assignment)
    transaction.set(paths.topic(topic.name), document, topic.document_version)
    create_partitions(transaction, topic.name, added, controller_epoch, {})
    await transaction.commit()


def create_partitions(
    transaction: Transaction[Any],
    name: str,
    assignment: Assignment,
    controller_epoch: int,
    leader_epochs: Mapping[int, int],
) -> None:
    """Add the nodes of partitions. leader_epochs: where they do not begin with 0."""
    for number, replicas in assignment.items():
        transaction.create(paths.partition(name, number))
        transaction.create(
            paths.partition_state(name, number),
            paths.encode_partition_state(
                replicas[0], leader_epochs.get(number, 0), replicas, controller_epoch
            ),
        )


async def write_deletion_marks(store: SettledStore, names: Iterable[str]) -> None:
    """Record that topics are to be deleted: from here on they will be, come what may."""
    transaction = store.multi()
    for name in names:
        transaction.create(paths.delete_topic(name))
    await transaction.commit()


async def write_deletion(store: SettledStore, names: Iterable[str]) -> None:
    """Remove deleted topics and their marks."""
    transaction = store.multi()
    for name in names:
        for node in reversed(await store.subtree(paths.topic(name))):
            transaction.delete(node.path, node.stat.version)
        for path in (paths.topic(name), paths.topic_config(name), paths.delete_topic(name)):
            stat = await store.exists(path)
            if stat is not None:
                transaction.delete(path, stat.version)
    await transaction.commit()


async def remember_gone(store: SettledStore, topics: Mapping[str, bytes]) -> None:
    """Note deleted topics, of which a directory that cannot be reached may have something."""
    transaction = store.multi()
    if await store.exists(paths.GONE_TOPICS) is None:
        transaction.create(paths.GONE_TOPICS)
    for name, topic_id in topics.items():
        path = paths.gone_topic(name)
        try:
            node = await store.get(path)
        except NoNode:
            transaction.create(path, paths.encode_gone_topic([topic_id]))
            continue
        known = paths.decode_gone_topic(node.data)
        document = paths.encode_gone_topic({*known, topic_id})
        transaction.set(path, document, node.stat.version)
    await transaction.commit()


async def write_configs(
    store: SettledStore,
    topics: Mapping[str, dict[str, str]],
    brokers: Mapping[str, dict[str, str]],
    groups: Mapping[str, dict[str, str]],
) -> None:
    """Replace the configs of topics, brokers (by id, or ``default``) and groups."""
    transaction = store.multi()
    documents = [(paths.topic_config(name), config) for name, config in topics.items()]
    documents += [(paths.broker_config(entity), config) for entity, config in brokers.items()]
    documents += [(paths.group_config(group), config) for group, config in groups.items()]
    for path, config in documents:
        stat = await store.exists(path)
        if stat is None:
            transaction.create(path, paths.encode_config(config))
        elif not config and path.startswith(paths.GROUP_CONFIGS):
            transaction.delete(path, stat.version)
        else:
            transaction.set(path, paths.encode_config(config), stat.version)
    await transaction.commit()


async def allocate_producer_ids(store: SettledStore, broker_id: int) -> int:
    """The first of PRODUCER_ID_BLOCK_SIZE producer ids nobody else will get.

    One allocation at a time in a process: two at once would write the same document.
    """
    for attempt in range(ATTEMPTS):
        try:
            node = await store.get(paths.PRODUCER_ID_BLOCK)
        except NoNode as error:
            raise InvariantError(f"{paths.PRODUCER_ID_BLOCK} is missing from the store") from error
        last = paths.decode_producer_id_block(node.data)
        first = 0 if last is None else last + 1
        end = first + PRODUCER_ID_BLOCK_SIZE
        if end > 2**63 - 1:
            raise InvariantError("all producer ids are used up")
        block = paths.encode_producer_id_block(broker_id, first, end - 1)
        try:
            await store.multi().set(node.path, block, node.stat.version).commit()
        except BadVersion:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return first
    raise AssertionError("unreachable")
