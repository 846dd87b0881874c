"""The ZooKeeper of an Apache Kafka 2.x: a connection, and the topics in its znodes.

``kazoo`` is imported here and nowhere else in this package.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kbroker.adopt import metadata_records as records
from kbroker.adopt.directories import DirectoryIdentity
from kbroker.adopt.errors import Refusal
from kbroker.adopt.metadata_image import MetadataImage
from kbroker.metastore import paths
from kbroker.uuids import new_uuid

CONNECT_TIMEOUT_S = 10.0
# BOUND: timeout of one call. kazoo itself would wait for a connection forever.
CALL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 1.0
ACLS = "/kafka-acl"
USERS, CLIENTS = "/config/users", "/config/clients"


class Nodes:
    """The calls of a kazoo client that are used here, each with a deadline.

    Raises KazooTimeoutError, KazooException.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def exists(self, path: str) -> bool:
        return _result(self._client.exists_async(path)) is not None

    def get(self, path: str) -> tuple[bytes, Any]:
        data, stat = _result(self._client.get_async(path))
        return data, stat

    def get_children(self, path: str) -> list[str]:
        return list(_result(self._client.get_children_async(path)))

    def ensure_path(self, path: str) -> None:
        _result(self._client.ensure_path_async(path))

    def create(self, path: str, data: bytes = b"", makepath: bool = False) -> None:
        _result(self._client.create_async(path, data, makepath=makepath))

    def set(self, path: str, data: bytes) -> None:
        _result(self._client.set_async(path, data))

    def delete(self, path: str, recursive: bool = False) -> None:
        for name in self.get_children(path) if recursive else ():
            self.delete(f"{path}/{name}", recursive=True)
        _result(self._client.delete_async(path))


def _result(pending: Any) -> Any:
    return pending.get(timeout=CALL_TIMEOUT_S)


@contextmanager
def connected(connect: str) -> Iterator[Nodes]:
    """The nodes of ``connect`` (HOST:PORT[,...][/PATH]). Raises Refusal."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=connect)

    def leave() -> None:
        with suppress(KazooException):  # the connection is lost already
            client.stop()
            client.close()

    timeout_s = CONNECT_TIMEOUT_S
    try:
        with warnings.catch_warnings():
            # The path may be for the command to create.
            warnings.filterwarnings("ignore", message="No chroot path exists")
            client.start(timeout_s)
        timeout_s = CALL_TIMEOUT_S
        yield Nodes(client)
    except KazooTimeoutError as error:
        raise Refusal(
            f"ZooKeeper {connect} does not respond within {timeout_s:g} s; is it running?"
        ) from error
    except KazooException as error:
        raise Refusal(f"ZooKeeper {connect}: {type(error).__name__} {error}") from error
    finally:
        # Otherwise it would wait for an unresponsive server until the session has ended.
        stop = threading.Thread(target=leave, daemon=True)
        stop.start()
        stop.join(STOP_TIMEOUT_S)


def check(client: Nodes, connect: str, cluster_id: str, broker_id: int) -> None:
    """Check that ZooKeeper has no other cluster and no live broker. Raises Refusal."""
    if client.exists(paths.CLUSTER_ID):
        actual = paths.decode_cluster_id(client.get(paths.CLUSTER_ID)[0])
        if actual != cluster_id:
            raise Refusal(
                f"ZooKeeper {connect} belongs to cluster {actual}, these directories to "
                f"{cluster_id}; use the ZooKeeper that the data came from, an empty one, or a "
                "separate path (HOST:PORT/PATH)"
            )
    if client.exists(paths.broker(broker_id)):
        raise Refusal(
            f"ZooKeeper {connect}: broker {broker_id} is registered; stop it, or wait until its"
            " session has ended"
        )


def check_alone(client: Nodes, connect: str) -> None:
    """Raises Refusal if a broker is running there: kbroker's topics would replace its state."""
    running = sorted(_children(client, paths.BROKER_IDS))
    if running:
        raise Refusal(
            f"ZooKeeper {connect}: brokers {', '.join(running)} are registered, but kbroker hands "
            "its data to a single Kafka broker; stop them, or use a separate path "
            "(HOST:PORT/PATH)"
        )


def read_metadata(connect: str, identity: DirectoryIdentity) -> MetadataImage:
    """The content of the znodes as a KRaft metadata image. Changes nothing. Raises Refusal.

    A topic without an id in its node (Kafka before 2.8) gets a new one; that of its directories
    counts, if they have one.
    """
    image = MetadataImage()
    with connected(connect) as client:
        check(client, connect, identity.cluster_id, identity.broker_id)
        if not client.exists(paths.CLUSTER_ID):
            raise Refusal(
                f"ZooKeeper {connect} holds no cluster; use the value of zookeeper.connect in "
                "Kafka's server.properties, including its path"
            )
        try:
            for name in sorted(client.get_children(paths.BROKER_TOPICS)):
                _read_topic(client, image, name)
            for name in client.get_children(paths.TOPIC_CONFIGS):
                config = paths.decode_config(client.get(paths.topic_config(name))[0])
                image.configs[records.TOPIC_RESOURCE, name] = config
            for entity in client.get_children(paths.BROKER_CONFIGS):
                config = paths.decode_config(client.get(f"{paths.BROKER_CONFIGS}/{entity}")[0])
                name = "" if entity == paths.DEFAULT_ENTITY else entity
                image.configs[records.BROKER_RESOURCE, name] = config
            if client.exists(paths.PRODUCER_ID_BLOCK):
                last = paths.decode_producer_id_block(client.get(paths.PRODUCER_ID_BLOCK)[0])
                image.next_producer_id = None if last is None else last + 1
            _count_security(client, image)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refusal(
                f"ZooKeeper {connect}: a node is not in the form that Kafka writes: {error}"
            ) from (error)
    return image


def _read_topic(client: Nodes, image: MetadataImage, name: str) -> None:
    if client.exists(paths.delete_topic(name)):
        return
    topic_id, assignment = paths.decode_topic(client.get(paths.topic(name))[0])
    made_up = topic_id is None
    topic_id = topic_id or new_uuid()
    image.apply(records.TopicRecord(name=name, topic_id=topic_id))
    image.topics[topic_id].id_is_made_up = made_up
    for number, replicas in assignment.items():
        leader, epoch, isr = -1, 0, replicas
        if client.exists(paths.partition_state(name, number)):
            data = client.get(paths.partition_state(name, number))[0]
            leader, epoch, isr = paths.decode_partition_state(data)
        image.apply(
            records.PartitionRecord(
                partition_id=number, topic_id=topic_id, replicas=replicas, isr=isr, leader=leader,
                leader_epoch=epoch, partition_epoch=0,
            )
        )  # fmt: skip


def _count_security(client: Nodes, image: MetadataImage) -> None:
    """Access rules, credentials and quotas, which are only counted."""
    for kind in _children(client, ACLS):
        for name in _children(client, f"{ACLS}/{kind}"):
            acls = json.loads(client.get(f"{ACLS}/{kind}/{name}")[0] or b"{}").get("acls", [])
            image.acls |= {f"{kind}/{name}/{n}".encode() for n in range(len(acls))}
    for place in (USERS, CLIENTS):
        for name in _children(client, place):
            for key in paths.decode_config(client.get(f"{place}/{name}")[0]):
                if key.startswith("SCRAM-"):
                    image.scram.add((name, hash(key)))
                else:
                    image.quotas.add((((place, name),), key))


def _children(client: Nodes, path: str) -> list[str]:
    return list(client.get_children(path)) if client.exists(path) else []
