"""What a consumer reads and writes in ZooKeeper, in one session.

    /consumers/GROUP/ids/CONSUMER               ephemeral: its subscription
    /consumers/GROUP/owners/TOPIC/PARTITION     ephemeral: the stream that reads it
    /consumers/GROUP/offsets/TOPIC/PARTITION    the offset of the next message

Whatever is read of members, brokers and topics is watched until it changes.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientError, SettingRefused, UnreachableError
from kbroker.client.zookeeper.registered_brokers import address_of
from kbroker.legacy.zookeeper_consumer.partition_assignors import order
from kbroker.legacy.zookeeper_consumer.topic_filters import StreamSubscription

logger = logging.getLogger("kbroker.client.legacy.zookeeper_consumer.group_session")

# BOUND: requests that wait for ZooKeeper at the same time; one may be a megabyte.
_WINDOW = 500
# The longest pause before ZooKeeper is connected to again.
_RECONNECT_MAX_S = 1.0


class GroupSnapshot(NamedTuple):
    """What partitions are assigned by. members: consumer -> what it has registered. brokers: id ->
    address. topics: of all members, with their partitions.
    """

    members: dict[str, bytes]
    brokers: dict[str, str]
    topics: dict[str, tuple[int, ...]]
    streams: dict[str, dict[str, int]]


class GroupSession:
    """on_change: called by a thread of kazoo's when something that was read has changed, or the
    session has ended or begun. Methods raise UnreachableError.
    """

    def __init__(
        self,
        connect: str,
        group: str,
        *,
        session_s: float,
        connection_s: float,
        protocol: str,
        on_change: Callable[[], None],
    ) -> None:
        from kazoo.client import KazooClient

        from kbroker.client.zookeeper import zookeeper_link

        zookeeper_link.hosts_of(connect)
        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        self._connect = connect
        self._home = f"/consumers/{group}"
        self._protocol = protocol
        self._on_change = on_change
        self._connection_s = connection_s
        self._session_s = session_s
        # BOUND: of a call, in which a session may end and another one begin.
        self._call_s = session_s + connection_s
        self._lost = threading.Event()
        self._client = KazooClient(
            hosts=connect,
            timeout=session_s,
            # kazoo's own pauses grow to an hour.
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": _RECONNECT_MAX_S},
        )
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        """Raises UnreachableError, and SettingRefused for a path that does not exist; ``close`` it,
        all the same.
        """
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # kazoo warns of a path that is an error below
                self._client.start(timeout=self._connection_s)
        except KazooTimeoutError as error:
            why = f"ZooKeeper does not respond within {self._connection_s:.3g} s"
            raise UnreachableError({self._connect: why}) from error
        _, slash, chroot = self._connect.partition("/")
        with self._asking():
            exists = self._result(self._client.exists_async("/"))
        if slash and exists is None:
            raise SettingRefused(
                "zookeeper.connect",
                f"there is no /{chroot} in ZooKeeper: the path must be that of the brokers'",
            )

    def close(self) -> None:
        """End the session: what is ephemeral vanishes."""
        self._client.remove_listener(self._on_state)
        self._client.stop()
        self._client.close()

    def _on_state(self, state: str) -> None:
        from kazoo.client import KazooState

        if state == KazooState.LOST:
            self._lost.set()
        if state != KazooState.SUSPENDED:
            self._on_change()

    @property
    def id(self) -> int | None:
        """Of the session; None while there is no connection."""
        session_id = self._client.client_id
        return int(session_id[0]) if session_id and self._client.connected else None

    def take_lost(self) -> bool:
        """Whether a session has ended since the last call."""
        lost = self._lost.is_set()
        self._lost.clear()
        return lost

    @property
    def lost(self) -> bool:
        """A session has ended, which ``take_lost`` has not told."""
        return self._lost.is_set()

    # -- calls

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            yield
        except (KazooException, KazooTimeoutError) as error:
            raise UnreachableError(
                {self._connect: f"ZooKeeper: {type(error).__name__} {error}".rstrip()}
            ) from error

    def _result(self, asked: Any) -> Any:
        return asked.get(timeout=self._call_s)

    def _changed(self, _: Any) -> None:
        self._on_change()

    # -- members

    def register(self, consumer: str, data: bytes) -> None:
        """Make this consumer a member; waits until its node of an earlier session is gone."""
        from kazoo.exceptions import NodeExistsError

        path = f"{self._home}/ids/{consumer}"
        deadline = time.monotonic() + 2 * self._session_s
        with self._asking():
            while True:
                try:
                    self._result(
                        self._client.create_async(path, data, ephemeral=True, makepath=True)
                    )
                    return
                except NodeExistsError:
                    if self._is_mine(path):
                        return
                if not self._wait_gone(path, deadline - time.monotonic()):
                    raise ClientError(
                        f"another consumer {consumer} is registered: set another consumer.id"
                    )

    def _wait_gone(self, path: str, seconds: float) -> bool:
        gone = threading.Event()
        if self._result(self._client.exists_async(path, lambda _: gone.set())) is None:
            return True
        return gone.wait(max(0.0, seconds))

    def _is_mine(self, path: str) -> bool:
        """A request whose response was lost has created it."""
        stat = self._result(self._client.exists_async(path))
        return stat is not None and stat.ephemeralOwner == self.id

    def see(self, me: str, exclude_internal: bool) -> GroupSnapshot:
        """Members, brokers, and the topics of the member ``me``. Raises ClientError if a member has
        registered what cannot be read.
        """
        with self._asking():
            names = self._children(f"{self._home}/ids")
            nodes = self._read([f"{self._home}/ids/{name}" for name in names])
            members = {name: data for name, data in zip(names, nodes, strict=True) if data}
            subscriptions = {name: _subscription(name, data) for name, data in members.items()}
            known: list[str] = []
            if any(one.filter is not None for one in subscriptions.values()):
                known = self._children("/brokers/topics")
            streams = {
                name: one.topics(known, exclude_internal) for name, one in subscriptions.items()
            }
            topics = sorted(streams.get(me, ()), key=order)
            rows = self._read([f"/brokers/topics/{topic}" for topic in topics], watched=True)
            partitions = {
                topic: _partitions(topic, data) for topic, data in zip(topics, rows, strict=True)
            }
            return GroupSnapshot(members, self._brokers(), partitions, streams)

    def _brokers(self) -> dict[str, str]:
        ids = self._children("/brokers/ids")
        rows = self._read([f"/brokers/ids/{node}" for node in ids])
        return {
            node: address
            for node, data in zip(ids, rows, strict=True)
            if data and (address := address_of(data, self._protocol))
        }

    def brokers(self) -> dict[str, str]:
        """Id -> ``host:port`` of those that are registered."""
        with self._asking():
            return self._brokers()

    def _children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        while True:
            try:
                names = self._result(self._client.get_children_async(path, self._changed))
                return sorted(names, key=order)
            except NoNodeError:
                if self._result(self._client.exists_async(path, self._changed)) is None:
                    return []

    def _read(self, paths: list[str], watched: bool = False) -> list[bytes | None]:
        """The content of nodes, None of one that does not exist."""
        from kazoo.exceptions import NoNodeError

        watch = self._changed if watched else None
        out: list[bytes | None] = []
        for first in range(0, len(paths), _WINDOW):
            some = paths[first : first + _WINDOW]
            for path, asked in [(path, self._client.get_async(path, watch)) for path in some]:
                try:
                    out.append(self._result(asked)[0])
                except NoNodeError:
                    out.append(None)
                    if watched and self._result(self._client.exists_async(path, watch)):
                        self._on_change()
        return out

    # -- owners

    def _owner(self, key: TopicPartition) -> str:
        return f"{self._home}/owners/{key[0]}/{key[1]}"

    def claim(self, wanted: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Register streams as owners. Returns the partitions that have another owner."""
        from kazoo.exceptions import NodeExistsError

        taken = []
        with self._asking():
            for some in _windows(wanted):
                asked = [
                    (
                        key,
                        self._client.create_async(
                            self._owner(key), wanted[key].encode(), ephemeral=True, makepath=True
                        ),
                    )
                    for key in some
                ]
                for key, one in asked:
                    try:
                        self._result(one)
                    except NodeExistsError:
                        if not self._is_mine(self._owner(key)):
                            taken.append(key)
        return taken

    def release(self, keys: Iterable[TopicPartition]) -> None:
        """Remove this session's nodes of owners, if they are."""
        from kazoo.exceptions import NoNodeError

        with self._asking():
            for some in _windows(keys):
                seen = [(key, self._client.exists_async(self._owner(key))) for key in some]
                gone = [
                    self._client.delete_async(self._owner(key), stat.version)
                    for key, asked in seen
                    if (stat := self._result(asked)) is not None and stat.ephemeralOwner == self.id
                ]
                for one in gone:
                    try:
                        self._result(one)
                    except NoNodeError:
                        pass  # the session has ended meanwhile

    def watch_owners(self, keys: Iterable[TopicPartition], then: Callable[[], None]) -> None:
        """Call ``then`` for each of these partitions when its owner has released it."""

        def gone(_: Any) -> None:
            then()

        with self._asking():
            for key in keys:
                if self._result(self._client.exists_async(self._owner(key), gone)) is None:
                    then()

    # -- offsets

    def offsets(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Those that the group has committed here."""
        wanted = list(keys)
        with self._asking():
            rows = self._read([self._offset(key) for key in wanted])
        offsets = {}
        for key, data in zip(wanted, rows, strict=True):
            text = (data or b"").decode(errors="replace").strip()
            if text.isdecimal():
                offsets[key] = int(text)
            elif text and not text.lstrip("-").isdecimal():
                logger.warning("ignoring %s: %r is no offset", self._offset(key), text)
        return offsets

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write offsets."""
        from kazoo.exceptions import NodeExistsError, NoNodeError

        with self._asking():
            for some in _windows(offsets):
                asked = [
                    (key, self._client.set_async(self._offset(key), b"%d" % offsets[key]))
                    for key in some
                ]
                for key, one in asked:
                    try:
                        self._result(one)
                        continue
                    except NoNodeError:
                        path, data = self._offset(key), b"%d" % offsets[key]
                    try:
                        self._result(self._client.create_async(path, data, makepath=True))
                    except NodeExistsError:
                        self._result(self._client.set_async(path, data))

    def _offset(self, key: TopicPartition) -> str:
        return f"{self._home}/offsets/{key[0]}/{key[1]}"


def _windows(keys: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    wanted = list(keys)
    for first in range(0, len(wanted), _WINDOW):
        yield wanted[first : first + _WINDOW]


def _subscription(consumer: str, data: bytes) -> StreamSubscription:
    try:
        return StreamSubscription.of_node(data)
    except (ValueError, SettingRefused) as error:
        raise ClientError(f"consumer {consumer} has registered {data!r}: {error}") from error


def _partitions(topic: str, data: bytes | None) -> tuple[int, ...]:
    """Of a topic's node; none while it does not exist."""
    if data is None:
        return ()
    try:
        return tuple(sorted(int(number) for number in json.loads(data)["partitions"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClientError(f"cannot read the node of topic {topic}: {data[:200]!r}") from error
