"""Finds the cluster id of a ZooKeeper, and generates a broker id that is unique in the cluster.

Both are needed before the broker forks, and kazoo has threads; so this runs in a process of its
own, and only at the first start: later ones find both in meta.properties. Synchronous throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.metastore import paths
from kbroker.metastore.store import foreign_cluster
from kbroker.metastore.zookeeper_client import acl_of, make_chroot, new_client
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings
from kbroker.uuids import new_uuid, uuid_text

A = TypeVar("A")


class ClusterIdentity(NamedTuple):
    """A broker's identity. Before it is settled, a ``broker_id`` of -1 asks for a generated
    one, and an empty ``cluster_id`` for that of the cluster.
    """

    broker_id: int
    cluster_id: str

    @property
    def is_settled(self) -> bool:
        return self.broker_id >= 0 and self.cluster_id != ""


class NotAsked(Exception):
    """ZooKeeper was unreachable or rejected the client."""


def settle_identity(
    client: Any, settings: ZooKeeperSettings, known: ClusterIdentity, reserved_broker_max_id: int
) -> ClusterIdentity:
    """Fill in what is missing. ``client``: a started kazoo client.

    Raises WrongCluster, KazooException.
    """
    for path in (paths.CLUSTER, paths.BROKERS, paths.BROKER_SEQUENCE):
        client.ensure_path(path, acl_of(path, settings))
    cluster_id = _cluster_id(client, settings, known.cluster_id)
    if known.broker_id >= 0:
        return ClusterIdentity(known.broker_id, cluster_id)
    # As in Kafka: each write has a version that no other broker gets.
    version = client.set(paths.BROKER_SEQUENCE, b"").version
    return ClusterIdentity(reserved_broker_max_id + version, cluster_id)


def _cluster_id(client: Any, settings: ZooKeeperSettings, expected: str) -> str:
    """The cluster id, generated here if this is the cluster's first broker."""
    while True:
        try:
            data, _ = client.get(paths.CLUSTER_ID)
        except NoNodeError:
            if expected:
                raise foreign_cluster(None, expected) from None
            document = paths.encode_cluster_id(uuid_text(new_uuid()))
            with suppress(NodeExistsError):  # another broker was first
                client.create(paths.CLUSTER_ID, document, acl_of(paths.CLUSTER_ID, settings))
            continue
        cluster_id = paths.decode_cluster_id(data)
        if expected and cluster_id != expected:
            raise foreign_cluster(cluster_id, expected)
        return cluster_id


def ask_zookeeper(
    settings: ZooKeeperSettings, known: ClusterIdentity, reserved_broker_max_id: int
) -> ClusterIdentity:
    """Like ``settle_identity``, over its own connection. Blocks; must not be called before a fork.

    Raises WrongCluster, NotAsked after ``connection_timeout_ms`` without a connection.
    """
    make = partial(
        settle_identity,
        settings=settings,
        known=known,
        reserved_broker_max_id=reserved_broker_max_id,
    )
    return _asked(settings, make)


def nodes_in_zookeeper(settings: ZooKeeperSettings, wanted: Collection[str]) -> dict[str, bytes]:
    """The data of those nodes that are there. Likewise. Raises NotAsked."""

    def read(client: Any) -> dict[str, bytes]:
        nodes = {}
        for path in wanted:
            with suppress(NoNodeError):
                nodes[path] = client.get(path)[0]
        return nodes

    return _asked(settings, read)


def registered_brokers(settings: ZooKeeperSettings) -> dict[str, bytes]:
    """The documents of all registrations, by broker id. Likewise. Raises NotAsked."""

    def read(client: Any) -> dict[str, bytes]:
        brokers = {}
        with suppress(NoNodeError):
            for name in client.get_children(paths.BROKER_IDS):
                with suppress(NoNodeError):
                    brokers[name] = client.get(f"{paths.BROKER_IDS}/{name}")[0]
        return brokers

    return _asked(settings, read)


def _asked(settings: ZooKeeperSettings, use: Callable[[Any], A]) -> A:
    """What a function of a started client returns. Raises NotAsked."""
    try:
        make_chroot(settings)
        client = new_client(settings)
        client.start(settings.connection_timeout_ms / 1000)
        try:
            return use(client)
        finally:
            client.stop()
            client.close()
    except KazooTimeoutError as error:
        text = f"no connection within {settings.connection_timeout_ms} ms"
        raise NotAsked(text) from error
    except KazooException as error:
        raise NotAsked(f"{type(error).__name__}: {error}".rstrip(": ")) from error
