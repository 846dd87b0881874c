"""The brokers that are registered in ZooKeeper: how tools and clients of Kafka 0.8 find them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kbroker.client.errors import ClientError, UnreachableError

if TYPE_CHECKING:
    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

CONNECT_TIMEOUT_S = 10.0
# BOUND: of a call; kazoo itself would wait for a connection forever.
CALL_TIMEOUT_S = 10.0
_PLAIN = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")


class NoBrokersRegistered(ClientError):
    """ZooKeeper has no broker at that place."""


def registered_brokers(
    connect: str, timeout: float = CONNECT_TIMEOUT_S, tls: ZooKeeperTls | None = None
) -> list[str]:
    """``host:port`` of each broker, by id.

    connect: ``host:port,host:port/chroot``. timeout: seconds until there is a session. Raises
    UnreachableError, NoBrokersRegistered, SettingRefused.
    """
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    from kbroker.client.zookeeper import zookeeper_link

    client = zookeeper_link.connected(connect, timeout, tls)
    try:
        ids = client.get_children_async("/brokers/ids").get(timeout=CALL_TIMEOUT_S)
        rows = [
            client.get_async(f"/brokers/ids/{node}").get(timeout=CALL_TIMEOUT_S)
            for node in sorted(ids, key=int)
        ]
    except NoNodeError:
        rows = []
    except (KazooTimeoutError, KazooException) as error:
        raise UnreachableError({connect: f"ZooKeeper does not respond: {error}"}) from error
    finally:
        client.stop()
        client.close()
    addresses = [address for data, _ in rows if (address := address_of(data))]
    if not addresses:
        raise NoBrokersRegistered(
            f"no broker is registered in ZooKeeper at {connect}: start one with "
            f"zookeeper.connect={connect}"
        )
    return addresses


def address_of(data: bytes, protocol: str | None = None) -> str | None:
    """Where the broker is whose registration this is, as ``host:port``; None if it does not say.

    protocol: that of the listener. None: what all versions register, or the first endpoint.
    """
    try:
        row: Any = json.loads(data)
        endpoints = [str(text).partition("://") for text in row.get("endpoints", ())]
        protocols = row.get("listener_security_protocol_map") or {}
        plain = None
        if row.get("host") and int(row.get("port", -1)) > 0:
            plain = f"{row['host']}:{row['port']}"
        if protocol is not None:
            for listener, _, address in endpoints:
                if address and protocols.get(listener, listener) == protocol:
                    return address
        if plain is not None:
            return plain
    except (ValueError, AttributeError, TypeError):
        return None
    for name in _PLAIN:
        for listener, _, address in endpoints:
            if listener == name and address:
                return address
    return endpoints[0][2] if endpoints else None
