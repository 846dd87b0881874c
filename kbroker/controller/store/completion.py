"""Completes the embedded store before a controller uses it.

A new store begins with the nodes that every cluster has, and with the topics found on disk; a store
that lost topics gets them back. All of it is done on the file, before anybody else has the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store.persistence import PRODUCER_ID_BLOCK_SIZE
from kbroker.controller.store.topic_nodes import all_in_sync, create_partitions, create_topic
from kbroker.metastore import paths
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store import WrongCluster

# More ids than can be allocated in the seconds between two copies of the store: a block costs a
# sync.
PRODUCER_IDS_SKIPPED = 100_000_000
# For states that no controller has written.
NO_CONTROLLER_EPOCH = 0


class Adopted(NamedTuple):
    """A topic found on disk. ``leader_epochs``: only for partitions whose logs have one."""

    topic: PlannedTopic
    leader_epochs: dict[int, int]


def is_empty(file: NodeFile) -> bool:
    """Whether no broker has ever registered in this store."""
    return file.exists(paths.BROKERS) is None


def complete(
    file: NodeFile,
    cluster_id: str,
    broker_id: int,
    adopted: Iterable[Adopted] = (),
    first_producer_id: int = 0,
) -> None:
    """Create missing nodes in one transaction. Raises WrongCluster.

    adopted: topics found on disk that the store lacks. first_producer_id: of a new store, above all
    that are in use.
    """
    transaction = file.multi()
    is_new = is_empty(file)
    for path in paths.PERSISTENT_PATHS:
        if is_new or file.exists(path) is None:
            transaction.create(path)
    if is_new and first_producer_id:
        block = paths.encode_producer_id_block(broker_id, 0, first_producer_id - 1)
        transaction.set(paths.PRODUCER_ID_BLOCK, block)
    if is_new or file.exists(paths.CLUSTER_ID) is None:
        transaction.create(paths.CLUSTER_ID, paths.encode_cluster_id(cluster_id))
    else:
        stored = paths.decode_cluster_id(file.get(paths.CLUSTER_ID).data)
        if stored != cluster_id:
            raise WrongCluster(
                f"the metadata store belongs to cluster {stored}, but meta.properties of the log "
                f"directories to cluster {cluster_id}; check log.dirs"
            )
    for topic, leader_epochs in adopted:
        config = file.exists(paths.topic_config(topic.name))
        version = None if config is None else config.version
        states = all_in_sync(topic.assignment, leader_epochs)
        create_topic(transaction, topic, version, states, NO_CONTROLLER_EPOCH, topic.topic_id)
    if transaction.operations:
        transaction.commit()


def write_grown(file: NodeFile, broker_id: int, grown: Mapping[str, Mapping[int, int]]) -> None:
    """Add partitions to topics in the store. grown: their leader epochs, by topic and number."""
    for name, partitions in grown.items():
        topic_id, assignment = paths.decode_topic(file.get(paths.topic(name)).data)
        added = {number: [broker_id] for number in partitions}
        assert topic_id is not None, name
        transaction = file.multi()
        transaction.set(paths.topic(name), paths.encode_topic(topic_id, assignment | added))
        states = all_in_sync(added, partitions)
        create_partitions(transaction, name, states, NO_CONTROLLER_EPOCH)
        transaction.commit()


def skip_producer_ids(file: NodeFile, broker_id: int) -> None:
    """Skip producer ids that may have been allocated since the state that a damaged store fell back
    to.
    """
    last = paths.decode_producer_id_block(file.get(paths.PRODUCER_ID_BLOCK).data)
    end = (-1 if last is None else last) + PRODUCER_IDS_SKIPPED
    block = paths.encode_producer_id_block(broker_id, max(0, end - PRODUCER_ID_BLOCK_SIZE + 1), end)
    file.set(paths.PRODUCER_ID_BLOCK, block)
