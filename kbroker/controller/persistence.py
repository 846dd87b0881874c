"""The controller's reads and writes of the metadata store. Every write is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.cluster.image import NO_SLOT
from kbroker.controller.slots import SlotBook
from kbroker.controller.state import ClusterState, PartitionState, TopicState
from kbroker.controller.topics import Assignment, NewTopic
from kbroker.errors import InvariantError
from kbroker.metastore import paths
from kbroker.metastore.store import NoNode, Store, Transaction
from kbroker.uuids import new_uuid

log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000
# More than could be given in the seconds between two copies of the store: a block costs a sync.
PRODUCER_IDS_SKIPPED = 100_000_000


class Adopted(NamedTuple):
    """A topic found on disk. ``leader_epochs``: of partitions whose logs have any."""

    topic: NewTopic
    leader_epochs: dict[int, int]


class StoredState(NamedTuple):
    """A partition's state node. ``partition_epoch``: its version."""

    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int


class WrongCluster(Exception):
    """The store belongs to another cluster than the log directories."""


def is_empty(store: Store) -> bool:
    """Whether no broker has ever registered here."""
    return store.exists(paths.BROKERS) is None


def register(
    store: Store,
    state: ClusterState,
    endpoints: list[list[Any]],
    rack: str | None,
    now_ms: int,
    adopted: Iterable[Adopted] = (),
    first_producer_id: int = 0,
) -> None:
    """Make the store ready and enter this broker as member and controller.

    adopted: topics found on disk that the store lacks. first_producer_id: of a new store, above all
    that are in use.
    """
    transaction = store.multi()
    is_new = is_empty(store)
    for path in paths.PERSISTENT_PATHS:
        if is_new or store.exists(path) is None:
            transaction.create(path)
    if is_new and first_producer_id:
        block = paths.encode_producer_id_block(state.broker_id, 0, first_producer_id - 1)
        transaction.set(paths.PRODUCER_ID_BLOCK, block)
    if is_new or store.exists(paths.CLUSTER_ID) is None:
        transaction.create(paths.CLUSTER_ID, paths.encode_cluster_id(state.cluster_id))
    else:
        stored = paths.decode_cluster_id(store.get(paths.CLUSTER_ID).data)
        if stored != state.cluster_id:
            raise WrongCluster(
                f"the metadata store belongs to cluster {stored}, but meta.properties of the log "
                f"directories to cluster {state.cluster_id}; check log.dirs"
            )
    epoch_stat = store.exists(paths.CONTROLLER_EPOCH)
    if epoch_stat is None:
        state.controller_epoch = 1
        transaction.create(paths.CONTROLLER_EPOCH, b"1")
    else:
        state.controller_epoch = int(store.get(paths.CONTROLLER_EPOCH).data) + 1
        epoch_text = str(state.controller_epoch).encode()
        transaction.set(paths.CONTROLLER_EPOCH, epoch_text, epoch_stat.version)
    registration = paths.encode_broker(endpoints, rack, now_ms)
    transaction.create(paths.broker(state.broker_id), registration, ephemeral=True)
    controller = paths.encode_controller(state.broker_id, now_ms)
    transaction.create(paths.CONTROLLER, controller, ephemeral=True)
    for topic, leader_epochs in adopted:
        _create_topic(store, transaction, topic, state.controller_epoch, leader_epochs)
    transaction.commit()
    # Versions grow from one controller process to the next, too.
    state.version = state.controller_epoch << 32
    state.set_broker(state.broker_id, endpoints, rack)


def load(store: Store, state: ClusterState, slots: SlotBook) -> None:
    """Read topics and configs into ``state`` and give every replica hosted here its slot."""
    topic_configs = {
        node.path.rpartition("/")[2]: paths.decode_config(node.data)
        for node in store.subtree(paths.TOPIC_CONFIGS)
    }
    for node in store.subtree(paths.BROKER_CONFIGS):
        entity = node.path.rpartition("/")[2]
        name = "default" if entity == paths.DEFAULT_ENTITY else entity
        state.set_broker_config(name, paths.decode_config(node.data))
    for node in store.subtree(paths.GROUP_CONFIGS):
        state.set_group_config(paths.group_of_config(node.path), paths.decode_config(node.data))
    documents: dict[str, bytes] = {}
    partition_states: dict[str, dict[int, StoredState]] = {}
    for node in store.subtree(paths.BROKER_TOPICS):
        parts = node.path.split("/")
        if len(parts) == 4:
            documents[parts[3]] = node.data
        elif len(parts) == 7 and parts[6] == "state":
            stored = StoredState(*paths.decode_partition_state(node.data), node.stat.version)
            partition_states.setdefault(parts[3], {})[int(parts[5])] = stored
    for name, data in documents.items():
        topic_id, assignment = paths.decode_topic(data)
        if topic_id is None:
            # Written by a Kafka that knew no topic ids: give it one, for good.
            topic_id = new_uuid()
            store.set(paths.topic(name), paths.encode_topic(topic_id, assignment))
        leaders = partition_states.get(name, {})
        partitions = partition_list(state.broker_id, name, assignment, slots, leaders)
        state.add_topic(TopicState(name, topic_id, partitions, topic_configs.get(name, {})))
    for name in slots.topics():
        if name not in documents:
            slots.release(name)
    unfinished = [name for name in store.children(paths.DELETE_TOPICS) if state.topic(name)]
    state.mark_deleting(unfinished)
    for name in set(store.children(paths.DELETE_TOPICS)) - set(unfinished):
        store.delete(paths.delete_topic(name))


def partition_list(
    broker_id: int,
    topic: str,
    assignment: Assignment,
    slots: SlotBook,
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


def write_topics(store: Store, topics: Iterable[NewTopic], controller_epoch: int) -> None:
    """Create topics with their config and the first state of every partition."""
    transaction = store.multi()
    for topic in topics:
        _create_topic(store, transaction, topic, controller_epoch, {})
    transaction.commit()


def _create_topic(
    store: Store,
    transaction: Transaction,
    topic: NewTopic,
    controller_epoch: int,
    leader_epochs: Mapping[int, int],
) -> None:
    path = paths.topic_config(topic.name)
    if store.exists(path) is None:
        transaction.create(path, paths.encode_config(topic.config))
    else:
        transaction.set(path, paths.encode_config(topic.config))
    document = paths.encode_topic(topic.topic_id, topic.assignment)
    transaction.create(paths.topic(topic.name), document)
    transaction.create(paths.topic_partitions(topic.name))
    _create_partitions(transaction, topic.name, topic.assignment, controller_epoch, leader_epochs)


def write_partitions(
    store: Store, topic: TopicState, added: Assignment, controller_epoch: int
) -> None:
    """Enlarge a topic."""
    assignment = {number: p.replicas for number, p in enumerate(topic.partitions)} | added
    transaction = store.multi()
    transaction.set(paths.topic(topic.name), paths.encode_topic(topic.topic_id, assignment))
    _create_partitions(transaction, topic.name, added, controller_epoch, {})
    transaction.commit()


def write_grown(store: Store, state: ClusterState, grown: Mapping[str, Mapping[int, int]]) -> None:
    """Enter partitions of topics in the store. grown: their leader epochs, by topic and number."""
    for name, partitions in grown.items():
        topic_id, assignment = paths.decode_topic(store.get(paths.topic(name)).data)
        added = {number: [state.broker_id] for number in partitions}
        assert topic_id is not None, name
        transaction = store.multi()
        transaction.set(paths.topic(name), paths.encode_topic(topic_id, assignment | added))
        _create_partitions(transaction, name, added, state.controller_epoch, partitions)
        transaction.commit()


def _create_partitions(
    transaction: Transaction,
    name: str,
    assignment: Assignment,
    controller_epoch: int,
    leader_epochs: Mapping[int, int],
) -> None:
    for number, replicas in assignment.items():
        transaction.create(paths.partition(name, number))
        transaction.create(
            paths.partition_state(name, number),
            paths.encode_partition_state(
                replicas[0], leader_epochs.get(number, 0), replicas, controller_epoch
            ),
        )


def write_deletion_marks(store: Store, names: Iterable[str]) -> None:
    """Record that topics are to be deleted: from here on they will be, come what may."""
    transaction = store.multi()
    for name in names:
        transaction.create(paths.delete_topic(name))
    transaction.commit()


def write_deletion(store: Store, names: Iterable[str]) -> None:
    """Remove deleted topics and their marks."""
    transaction = store.multi()
    for name in names:
        for node in reversed(list(store.subtree(paths.topic(name)))):
            transaction.delete(node.path)
        transaction.delete(paths.topic(name))
        if store.exists(paths.topic_config(name)) is not None:
            transaction.delete(paths.topic_config(name))
        transaction.delete(paths.delete_topic(name))
    transaction.commit()


def remember_gone(store: Store, topics: Mapping[str, bytes]) -> None:
    """Note deleted topics, of which a directory that cannot be reached may have something."""
    transaction = store.multi()
    if store.exists(paths.GONE_TOPICS) is None:
        transaction.create(paths.GONE_TOPICS)
    for name, topic_id in topics.items():
        path = paths.gone_topic(name)
        if store.exists(path) is None:
            transaction.create(path, paths.encode_gone_topic([topic_id]))
        else:
            known = paths.decode_gone_topic(store.get(path).data)
            transaction.set(path, paths.encode_gone_topic({*known, topic_id}))
    transaction.commit()


def write_configs(
    store: Store,
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
        if store.exists(path) is None:
            transaction.create(path, paths.encode_config(config))
        elif not config and path.startswith(paths.GROUP_CONFIGS):
            transaction.delete(path)
        else:
            transaction.set(path, paths.encode_config(config))
    transaction.commit()


def skip_producer_ids(store: Store, broker_id: int) -> None:
    """Leave out what may have been given since the state that a damaged store fell back to."""
    last = paths.decode_producer_id_block(store.get(paths.PRODUCER_ID_BLOCK).data)
    end = (-1 if last is None else last) + PRODUCER_IDS_SKIPPED
    block = paths.encode_producer_id_block(broker_id, max(0, end - PRODUCER_ID_BLOCK_SIZE + 1), end)
    store.set(paths.PRODUCER_ID_BLOCK, block)


def allocate_producer_ids(store: Store, broker_id: int) -> int:
    """The first of PRODUCER_ID_BLOCK_SIZE producer ids nobody else will get."""
    try:
        node = store.get(paths.PRODUCER_ID_BLOCK)
    except NoNode as error:
        raise InvariantError(f"{paths.PRODUCER_ID_BLOCK} is missing from the store") from error
    last = paths.decode_producer_id_block(node.data)
    first = 0 if last is None else last + 1
    end = first + PRODUCER_ID_BLOCK_SIZE
    if end > 2**63 - 1:
        raise InvariantError("all producer ids are used up")
    block = paths.encode_producer_id_block(broker_id, first, end - 1)
    store.set(paths.PRODUCER_ID_BLOCK, block, node.stat.version)
    return first
