"""Changes of Kafka's nodes by tools themselves, as those before 4.0 made them: no broker need run,
and none is asked whether it allows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.running import ToolFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kbroker.client.zookeeper.znodes import Put, Znodes
    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

# How often a change is tried that others come in between of, and the pause.
_ATTEMPTS, _PAUSE_S = 11, 0.1


@contextmanager
def opened(connect: str, tls: ZooKeeperTls | None) -> Iterator[Znodes]:
    """A session with ZooKeeper. Raises ToolFailed, ClientError."""
    from kbroker.client.errors import SettingRefused
    from kbroker.client.zookeeper.znodes import Znodes

    try:
        nodes = Znodes(connect, tls)
    except SettingRefused as error:
        raise ToolFailed(str(error)) from error
    with nodes:
        yield nodes


def acl_for(nodes: Znodes) -> Callable[[str], Any]:
    """The ACL of each new node, by its path. As Kafka's tools, one that ZooKeeper knows protects
    what it creates.
    """
    from kbroker.metastore.zookeeper_client import acl_at

    return lambda path: acl_at(path, nodes.is_known)


def read(nodes: Znodes, path: str) -> tuple[bytes, int] | None:
    """What is in a node, and its version; None if there is none."""
    from kbroker.client.zookeeper.znodes import ZnodeError

    try:
        data, stat = nodes.get(path)
    except ZnodeError as error:
        if str(error).startswith("Node does not exist"):
            return None
        raise
    return data, stat.version


def names_below(nodes: Znodes, path: str) -> list[str]:
    """The names below a node; none if there is no such node."""
    from kbroker.client.zookeeper.znodes import ZnodeError

    try:
        return nodes.children(path)[0]
    except ZnodeError as error:
        if str(error).startswith("Node does not exist"):
            return []
        raise


def change(
    nodes: Znodes,
    path: str,
    changed: Callable[[bytes | None], bytes | None],
    notice: tuple[str, bytes],
) -> None:
    """Write a node, with the notification of brokers in the same transaction.

    changed: what is to be in the node, None for no node, by what is in it now; it is called again
    if another client has written meanwhile. notice: the path, without its number, and the content.
    """
    from kbroker.client.zookeeper.znodes import NO_NODE, Put, ZnodeChanged

    acl_of = acl_for(nodes)
    for parent in (path.rpartition("/")[0], notice[0].rpartition("/")[0]):
        nodes.ensure(parent, acl_of)
    for attempt in range(_ATTEMPTS):
        present = read(nodes, path)
        before, version = (None, NO_NODE) if present is None else present
        after = changed(before)
        if after == before:
            return
        writes: list[Put] = [
            Put(path, after, version, acl_of(path)),
            Put(notice[0], notice[1], NO_NODE, acl_of(notice[0]), sequence=True),
        ]
        try:
            nodes.put(writes)
            return
        except ZnodeChanged:
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S)


def shown(configs: Mapping[str, str]) -> str:
    """As Kafka's tools print them."""
    return ",".join(f"{name}={text}" for name, text in sorted(configs.items()))
