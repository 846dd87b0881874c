"""What consumer groups of Kafka 0.8 have in ZooKeeper: offsets, and the owners of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import UnreachableError
from kbroker.client.zookeeper.registered_brokers import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S


class GroupNodes(NamedTuple):
    """topics: those that the group reads. offsets, owners: of the partitions that have one."""

    topics: list[str]
    offsets: dict[TopicPartition, int]
    owners: dict[TopicPartition, str]


def group_nodes(connect: str, group: str, topics: Iterable[str] | None = None) -> GroupNodes:
    """connect: ``host:port,host:port/chroot``. topics: None: all that the group reads. Raises
    UnreachableError, SettingRefused.
    """
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    from kbroker.client.zookeeper import zookeeper_link

    client = zookeeper_link.connected(connect, CONNECT_TIMEOUT_S)
    home = f"/consumers/{group}"
    try:
        nodes = GroupNodes(
            _children(client, f"{home}/owners") if topics is None else list(topics), {}, {}
        )
        for topic in nodes.topics:
            nodes.owners.update(_partitions(client, topic, f"{home}/owners/{topic}"))
            texts = _partitions(client, topic, f"{home}/offsets/{topic}")
            nodes.offsets.update(
                {key: int(text) for key, text in texts.items() if text.lstrip("-").isdecimal()}
            )
        return nodes
    except (KazooTimeoutError, KazooException) as error:
        raise UnreachableError({connect: f"ZooKeeper does not respond: {error}"}) from error
    finally:
        client.stop()
        client.close()


def _children(client: Any, path: str) -> list[str]:
    from kazoo.exceptions import NoNodeError

    try:
        return sorted(client.get_children_async(path).get(timeout=CALL_TIMEOUT_S))
    except NoNodeError:
        return []


def _partitions(client: Any, topic: str, path: str) -> dict[TopicPartition, str]:
    """The contents of the nodes that are named by the number of a partition."""
    from kazoo.exceptions import NoNodeError

    owners = {}
    for name in _children(client, path):
        if not name.isdecimal():
            continue
        try:
            data, _ = client.get_async(f"{path}/{name}").get(timeout=CALL_TIMEOUT_S)
        except NoNodeError:
            continue
        owners[topic, int(name)] = data.decode(errors="replace")
    return owners
