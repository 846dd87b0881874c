"""To the ZooKeeper of Apache Kafka 2.7, or of a cluster of kbrokers, which have the same nodes.

kbroker's own store has the same nodes with the same documents. Nodes that exist already, from
before the move or from an interrupted run, are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kbroker.adopt import older_records
from kbroker.adopt.errors import Refusal
from kbroker.adopt.holdings import HeldTopic, Holdings
from kbroker.adopt.to_kraft import set_metadata_log_aside
from kbroker.adopt.zookeeper import Nodes, check, check_alone, connected
from kbroker.controller.store.persistence import PRODUCER_ID_BLOCK_SIZE
from kbroker.metastore import paths
from kbroker.storage.dirs.creation_note import remove_creation
from kbroker.storage.dirs.log_dir import scan_partitions
from kbroker.storage.files import replace_file
from kbroker.storage.formats import META_NAME, partition_dir_name
from kbroker.storage.owner import give_to_owner
from kbroker.wording import counted

CHANGES = "/config/changes"

Say = Callable[[str], None]


def give_back(holdings: Holdings, connect: str, say: Say, *, dry_run: bool) -> list[str]:
    """Write what Kafka needs; returns the next steps. Raises Refusal, OSError."""
    strays = holdings.strays()
    if strays:
        raise Refusal(
            f"{strays[0]}: Kafka 2.7 does not start with a directory of that name; move it out of "
            "the data directory, or remove it"
        )
    with connected(connect) as client:
        check(client, connect, holdings.cluster_id, holdings.broker_id)
        check_alone(client, connect)
        changes = older_records.find(holdings)
        for path, count in changes.items():
            say(f"{path}: {counted(count, 'record')} of coordinators rewritten for Kafka 2.7.")
        if not dry_run:
            holdings.is_begun = True
            older_records.rewrite(changes, say)
            for log_dir in holdings.log_dirs:
                set_metadata_log_aside(log_dir, say)
                _forget_creations(log_dir)
                _write_meta(holdings, log_dir)
            _tell(client, holdings)
            say(f"Written to ZooKeeper {connect}: {counted(len(holdings.topics), 'topic')}.")
    return [
        "Start Kafka, or kbroker as the first of a cluster, with these settings:",
        f"  broker.id={holdings.broker_id}",
        f"  zookeeper.connect={connect}",
        f"  log.dirs={','.join(holdings.log_dirs)}",
    ]


def _forget_creations(log_dir: str) -> None:
    """Topics get new nodes; what directories say of older ones would make them another topic's."""
    for key in scan_partitions(log_dir):
        remove_creation(os.path.join(log_dir, partition_dir_name(*key)))


def _tell(client: Nodes, holdings: Holdings) -> None:
    for path in paths.PERSISTENT_PATHS:
        client.ensure_path(path)
    client.ensure_path(CHANGES)
    _put(client, paths.CLUSTER_ID, paths.encode_cluster_id(holdings.cluster_id))
    known = paths.decode_producer_id_block(client.get(paths.PRODUCER_ID_BLOCK)[0])
    last = max(holdings.next_producer_id - 1, -1 if known is None else known)
    if last >= 0:
        first = max(0, last - PRODUCER_ID_BLOCK_SIZE + 1)
        block = paths.encode_producer_id_block(holdings.broker_id, first, last)
        client.set(paths.PRODUCER_ID_BLOCK, block)
    for entity, config in holdings.broker_configs.items():
        _put(client, paths.broker_config(entity or "default"), paths.encode_config(config))
    for name in set(client.get_children(paths.BROKER_TOPICS)) - {
        topic.name for topic in holdings.topics
    }:
        if not _is_of(client, name, holdings.broker_id):
            continue
        # Deleted while kbroker ran.
        client.delete(paths.topic(name), recursive=True)
        if client.exists(paths.topic_config(name)):
            client.delete(paths.topic_config(name))
    for topic in holdings.topics:
        _tell_topic(client, topic, holdings.broker_id)
    for path, offset in holdings.stored_offsets.items():
        _put(client, path, offset)


def _is_of(client: Nodes, topic: str, broker_id: int) -> bool:
    """Whether the broker has a replica of a topic."""
    assignment = paths.decode_topic(client.get(paths.topic(topic))[0])[1]
    return any(broker_id in replicas for replicas in assignment.values())


def _tell_topic(client: Nodes, topic: HeldTopic, broker_id: int) -> None:
    assignment = {number: [broker_id] for number in topic.epochs}
    if client.exists(paths.topic(topic.name)):
        client.delete(paths.topic(topic.name), recursive=True)
    if client.exists(paths.delete_topic(topic.name)):
        # Belongs to an earlier topic of this name: Kafka would delete the new one when it starts.
        client.delete(paths.delete_topic(topic.name))
    _put(client, paths.topic_config(topic.name), paths.encode_config(topic.config))
    client.create(paths.topic(topic.name), paths.encode_topic(topic.topic_id, assignment))
    client.create(paths.topic_partitions(topic.name))
    for number, epoch in topic.epochs.items():
        state = paths.encode_partition_state(broker_id, epoch, [broker_id], 0)
        client.create(paths.partition(topic.name, number))
        client.create(paths.partition_state(topic.name, number), state)


def _put(client: Nodes, path: str, data: bytes) -> None:
    if client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data, makepath=True)


def _write_meta(holdings: Holdings, log_dir: str) -> None:
    fields = {
        "version": "0",
        "broker.id": str(holdings.broker_id),
        "cluster.id": holdings.cluster_id,
    }
    text = "".join(f"{key}={value}\n" for key, value in fields.items())
    path = os.path.join(log_dir, META_NAME)
    replace_file(path, text.encode())
    give_to_owner(path)
