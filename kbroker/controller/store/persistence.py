"""The controller's reads from the metadata store, and writes that need no decision."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from kbroker.cluster.control_requests import LiveBroker, PartitionKey
from kbroker.controller.configs.configs import Configs, ConfigsChanged
from kbroker.controller.state.state import (
    Change,
    ClusterState,
    DeletionBegun,
    PartitionsChanged,
    PartitionState,
    RegisteredBroker,
    TopicCreated,
    TopicEnlarged,
    TopicState,
)
from kbroker.controller.store.topic_nodes import DAMAGED, StoredTopic, stored_topics
from kbroker.errors import InvariantError
from kbroker.ipc.calls import IsrState
from kbroker.ipc.pending import in_window
from kbroker.metastore import paths
from kbroker.metastore.entities import entity_config, parents_of
from kbroker.metastore.json_values import as_integer
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import BadVersion, Node, NoNode
from kbroker.storage.dirs.creation_note import creation_of

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000
# No cluster has given out so many.
UNUSED_PRODUCER_IDS = 1 << 48
# BOUND: reads of nodes that are under way.
READS_AT_ONCE = 500
# A shared store has other writers: their changes in between are read again.
ATTEMPTS = 3


async def load(store: SettledStore, state: ClusterState) -> None:
    """Load brokers and topics into ``state``, and clean up after unfinished deletions."""
    state.brokers.update(await registrations(store))
    if store.is_shared:
        nodes = await _nodes_of(store, await store.children(paths.BROKER_TOPICS))
        cluster = await store.exists(paths.CLUSTER_ID)
        state.store_id = 0 if cluster is None else cluster.created_id
    else:
        nodes = await store.subtree(paths.BROKER_TOPICS)
    for stored in stored_topics(nodes, ignore_damaged=store.is_shared):
        state.add_topic(await _topic_with_id(store, state, stored))
    marked = await store.children(paths.DELETE_TOPICS)
    unfinished = [name for name in marked if state.topic(name)]
    state.mark_deleting(unfinished)
    for name in set(marked) - set(unfinished):
        if await store.exists(paths.topic(name)) is None:  # else it cannot be read
            with suppress(NoNode):
                await store.multi().delete(paths.delete_topic(name)).commit()


async def _topic_with_id(
    store: SettledStore, state: ClusterState, stored: StoredTopic
) -> TopicState:
    """The topic; one without a topic id gets one, which is stored if the cluster has topic ids."""
    ids, topic_id, version = state.topic_ids, stored.topic_id, stored.document.stat.version
    if topic_id is None or ids.to_store(topic_id) is None:
        topic_id = ids.new(stored.name)
    if stored.topic_id is None and ids.to_store(topic_id) is not None:
        document = paths.encode_topic(topic_id, stored.assignment, stored.rest)
        await store.multi().set(stored.document.path, document, version).commit()
        version += 1
    topic = TopicState(stored.name, topic_id, stored.partitions(), version)
    topic.rest = stored.rest
    if state.store_id:
        topic.creation = creation_of(state.store_id, stored.document.stat.created_id)
    return topic


async def registrations(store: SettledStore) -> dict[int, RegisteredBroker]:
    """The registered brokers. Registrations that cannot be parsed are left out."""
    brokers = {}
    for node in await store.subtree(paths.BROKER_IDS):
        try:
            broker_id = as_integer(node.path.rpartition("/")[2])
            live = LiveBroker(*paths.decode_broker(node.data))
            if store.is_shared and not all(host for _, host, _, _ in live.endpoints):
                raise ValueError("an endpoint has no host")
            brokers[broker_id] = RegisteredBroker(
                node.stat.created_id,
                live,
                paths.is_suspect_broker(node.data),
                _features_of(node),
                paths.answers_peer_status(node.data),
                node.stat.owner_session,
            )
        except DAMAGED as error:
            logger.error("ignoring the registration %s: %r", node.path, error)
    return brokers


def _features_of(node: Node) -> dict[str, int] | None:
    """As ``decode_broker_features``; none that can be relied on if they cannot be parsed."""
    try:
        return paths.decode_broker_features(node.data)
    except DAMAGED as error:
        logger.error("ignoring the features in the registration %s: %r", node.path, error)
        return {}


# -- after somebody else has written --


async def reread_topics(
    store: SettledStore, state: ClusterState, names: Iterable[str]
) -> list[Change]:
    """Changes of these topics compared with ``state``. Updates the versions of their configs."""
    changes: list[Change] = []
    marked = set(await store.children(paths.DELETE_TOPICS))
    for name in names:
        known = state.topic(name)
        before = state.configs.topic(name)
        config = await reread_config(store, state.configs, paths.topic_config(name))
        if known is not None and before != config:
            changes.append(ConfigsChanged(topics={name: config}))
        nodes = await _nodes_of(store, [name])
        for stored in stored_topics(nodes, ignore_damaged=store.is_shared):
            topic = await _topic_with_id(store, state, stored)
            topic.deleting = name in marked
            created = [TopicCreated(topic, config)]
            changes += created if known is None else _differences(known, topic)
        if name in marked and known is not None and not known.deleting:
            changes.append(DeletionBegun(name))
    return changes


def _differences(known: TopicState, stored: TopicState) -> list[Change]:
    if stored.topic_id != known.topic_id:
        logger.error(
            "topic %s was deleted and recreated by another client of the store", known.name
        )
        return []
    changes: list[Change] = []
    count = len(known.partitions)
    changed = {}
    for number, partition in enumerate(stored.partitions[:count]):
        present = known.partitions[number]
        # As in Kafka: replicas only change by reassignment.
        partition = partition._replace(
            replicas=present.replicas, adding=present.adding, removing=present.removing
        )
        if partition != present and (partition.is_stored or not present.is_stored):
            changed[number] = partition
    if changed:
        changes.append(PartitionsChanged(known.name, changed))
    if stored.document_version != known.document_version:
        added = stored.partitions[count:]
        changes.append(TopicEnlarged(known.name, added, stored.document_version))
    return changes


def names_in(changes: Iterable[Change]) -> set[str]:
    """The topics in which anything but configs has changed."""
    return {
        change.topic.name if isinstance(change, TopicCreated) else change.name
        for change in changes
        if not isinstance(change, ConfigsChanged)
    }


async def reread_configs(
    store: SettledStore, configs: Configs, changed: ConfigsChanged
) -> ConfigsChanged:
    """The stored configs of the resources in ``changed``; updates their versions."""
    path_of = (
        paths.topic_config,
        paths.broker_config,
        paths.group_config,
        entity_config,
        paths.client_metrics_config,
    )
    rows: list[dict[str, dict[str, str]]] = [{} for _ in path_of]
    for row, path, names in zip(rows, path_of, changed, strict=True):
        for name in names:
            row[name] = await reread_config(store, configs, path(name))
    return ConfigsChanged(*rows)


async def reread_states(
    store: SettledStore, state: ClusterState, keys: Iterable[PartitionKey]
) -> list[Change]:
    """Changes of these partitions' leaders and ISRs compared with ``state``."""
    changed: dict[str, dict[int, PartitionState]] = {}
    wanted = {paths.partition_state(*key): key for key in keys if state.partition(key) is not None}
    for node in await _read(store, wanted):
        key = wanted[node.path]
        known = state.partition(key)
        if known is None:
            continue
        try:
            leader, leader_epoch, isr = paths.decode_partition_state(node.data)
        except DAMAGED as error:
            logger.error("ignoring the state of %s-%d: %r", *key, error)
            continue
        stored = known._replace(
            leader=leader, leader_epoch=leader_epoch, isr=isr, partition_epoch=node.stat.version
        )
        if stored != known:
            changed.setdefault(key[0], {})[key[1]] = stored
    return [PartitionsChanged(name, partitions) for name, partitions in changed.items()]


async def read_isr(store: SettledStore, keys: Iterable[PartitionKey]) -> list[IsrState | None]:
    """The stored state of each partition; None if there is none that can be parsed."""
    isrs: list[IsrState | None] = []
    for key in keys:
        try:
            node = await store.get(paths.partition_state(*key))
            isrs.append(IsrState(*paths.decode_partition_state(node.data), node.stat.version))
        except NoNode:
            isrs.append(None)
        except DAMAGED as error:
            logger.error("ignoring the state of %s-%d: %r", *key, error)
            isrs.append(None)
    return isrs


async def ensure_partition_nodes(
    store: SettledStore, state: ClusterState, keys: Iterable[PartitionKey]
) -> None:
    """The parents of the states of partitions that have none: who created the topic may not have
    written any, or an earlier controller some.
    """
    for key in keys:
        partition = state.partition(key)
        if partition is None or partition.is_stored:
            continue
        await store.ensure((paths.topic_partitions(key[0]), paths.partition(*key)))


async def ensure_entity_nodes(store: SettledStore, names: Iterable[str]) -> None:
    """The parents of these entities' config nodes."""
    await store.ensure(dict.fromkeys(p for name in names for p in parents_of(name)))


async def reread_config(store: SettledStore, configs: Configs, path: str) -> dict[str, str]:
    """The stored config at ``path``; updates its version. One that cannot be parsed stays as it is
    known.
    """
    try:
        node = await store.get(path)
    except NoNode:
        configs.versions.pop(path, None)
        return {}
    configs.versions[path] = node.stat.version
    try:
        return paths.decode_config(node.data)
    except DAMAGED as error:
        if not store.is_shared:
            raise
        logger.error("ignoring the configs %s: %r", path, error)
        return configs.known(path)


async def _read(store: SettledStore, wanted: Iterable[str]) -> list[Node]:
    """Those of these nodes that exist, in order."""

    async def read(path: str) -> Node | None:
        try:
            return await store.get(path)
        except NoNode:
            return None

    nodes = await in_window(map(read, wanted), READS_AT_ONCE)
    return [node for node in nodes if node is not None]


async def _nodes_of(store: SettledStore, names: Iterable[str]) -> list[Node]:
    """The nodes of these topics, as far as they exist, and of their partitions' states.

    The topics' documents say which there are. A walk from node to node would take three requests
    for each partition instead of one.
    """
    nodes = await _read(store, map(paths.topic, names))
    wanted: list[str] = []
    for node in nodes:
        name = node.path.rpartition("/")[2]
        with suppress(*DAMAGED):  # whoever parses the topics says so
            _, assignment = paths.decode_topic(node.data)
            wanted += [paths.partition_state(name, number) for number in assignment]
    return nodes + await _read(store, wanted)


async def _topic_tree(store: SettledStore, name: str) -> list[Node]:
    """A topic's node and all nodes below it, parents first; empty if there is no such topic."""
    path = paths.topic(name)
    if await store.exists(path) is None:
        return []
    return [await store.get(path), *await store.subtree(path)]


# -- deletions --


async def nodes_to_delete(store: SettledStore, name: str) -> list[Node]:
    """All nodes of a deleted topic except its configs: the mark of the deletion, then the topic's,
    parents first.
    """
    mark = paths.delete_topic(name)
    marked = [] if await store.exists(mark) is None else [await store.get(mark)]
    return marked + await _topic_tree(store, name)


async def remember_gone(store: SettledStore, topics: Mapping[str, bytes]) -> None:
    """Record deleted topics of which an offline log directory may still have logs."""
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


# -- what any broker writes, whoever is the controller --


async def allocate_producer_ids(store: SettledStore, broker_id: int) -> int:
    """Allocate a block of PRODUCER_ID_BLOCK_SIZE producer ids; returns the first.

    One allocation at a time in a process: two at once would write the same document.
    """
    for attempt in range(ATTEMPTS):
        try:
            node = await store.get(paths.PRODUCER_ID_BLOCK)
        except NoNode as error:
            raise InvariantError(f"{paths.PRODUCER_ID_BLOCK} is missing from the store") from error
        try:
            last = paths.decode_producer_id_block(node.data)
            first = 0 if last is None else last + 1
        except DAMAGED as error:
            # Each block so far was one write, so all of them are below this.
            first = UNUSED_PRODUCER_IDS + (node.stat.version + 1) * PRODUCER_ID_BLOCK_SIZE
            text = "cannot read %s: %r; producer ids continue at %d, above all that are in use"
            logger.error(text, node.path, error, first)
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


async def report_isr_changes(store: SettledStore, keys: Iterable[PartitionKey]) -> None:
    """Tell the controller which partition states this broker has written. A notification that is
    written twice does no harm.
    """
    document = paths.encode_isr_change(keys)
    await store.multi().create(paths.isr_change(), document, sequential=True).commit()


async def report_log_dir_failure(store: SettledStore, broker_id: int) -> None:
    """Tell the controller that replicas of this broker are offline. It then asks which."""
    document = paths.encode_log_dir_event(broker_id)
    await store.multi().create(paths.log_dir_event(), document, sequential=True).commit()
