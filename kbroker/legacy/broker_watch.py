"""What a producer with ``zk.connect`` watches in ZooKeeper: brokers that come and go, and topics
that are created or get other partitions.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from kbroker.client.errors import UnreachableError
from kbroker.client.zookeeper.registered_brokers import (
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    NoBrokersRegistered,
    address_of,
)

_IDS, _TOPICS = "/brokers/ids", "/brokers/topics"


class BrokerWatch:
    """A session with ZooKeeper, from the first ``addresses`` to ``close``, or to the end of its
    owner. ``changed`` is set by a thread of kazoo's; all else is for one thread at a time.
    """

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._client: Any = None
        self._end: Any = None
        self._changed = threading.Event()

    @property
    def changed(self) -> bool:
        """Whether something that ``addresses`` has looked at is not as it was."""
        return self._changed.is_set()

    def close(self) -> None:
        """End the session."""
        if self._end is not None:
            self._end()
        self._client = self._end = None

    def addresses(self, topics: Iterable[str]) -> list[str]:
        """``host:port`` of each registered broker, by id. From now on they are watched, the list of
        topics and these topics. Raises UnreachableError, NoBrokersRegistered, SettingRefused.
        """
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError

        client = self._connected()
        changed = self._changed
        # Before it is read: what changes meanwhile counts.
        changed.clear()

        def note(_: Any) -> None:
            changed.set()

        def result(asked: Any) -> Any:
            return asked.get(timeout=CALL_TIMEOUT_S)

        try:
            ids = result(client.get_children_async(_IDS, note))
            rows = [client.get_async(f"{_IDS}/{node}", note) for node in sorted(ids, key=int)]
            result(client.get_children_async(_TOPICS, note))
            for asked in [client.exists_async(f"{_TOPICS}/{name}", note) for name in topics]:
                result(asked)
            addresses = [address for row in rows if (address := address_of(result(row)[0]))]
        except NoNodeError:
            addresses = []
        except (KazooException, KazooTimeoutError) as error:
            changed.set()
            why = f"ZooKeeper does not respond: {type(error).__name__} {error}".rstrip()
            raise UnreachableError({self._connect: why}) from error
        if not addresses:
            changed.set()
            raise NoBrokersRegistered(f"no broker is registered in ZooKeeper at {self._connect}")
        return addresses

    def _connected(self) -> Any:
        from kbroker.client.zookeeper import zookeeper_link

        if self._client is None:
            client = zookeeper_link.connected(self._connect, CONNECT_TIMEOUT_S)
            changed = self._changed
            client.add_listener(lambda state: changed.set())
            self._client = client
            self._end = weakref.finalize(self, _closed, client)
        if not self._client.connected:
            self._changed.set()
            raise UnreachableError({self._connect: "ZooKeeper: the connection is lost"})
        return self._client


def _closed(client: Any) -> None:
    client.stop()
    client.close()
