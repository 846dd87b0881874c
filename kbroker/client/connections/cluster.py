"""The brokers of a cluster: addresses, leaders, coordinators, and connections to them.

One thread at a time. A ``Cluster`` pickles as its settings, so it travels to executors, and starts
without connections there and after a fork.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from kbroker.client.connections.addresses import parse_addresses
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.ending import Ending
from kbroker.client.connections.metadata import NO_TOPIC_ID as NO_TOPIC_ID
from kbroker.client.connections.metadata import ClusterMetadata, read_metadata
from kbroker.client.connections.metadata import Partition as Partition
from kbroker.client.connections.metadata import Topic as Topic
from kbroker.client.connections.retry import Retry, milliseconds
from kbroker.client.connections.security import Security
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    RejectedError,
    SettingRefused,
    Timeout,
    UnreachableError,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest

GROUP, TRANSACTION = 0, 1
_FIRST_NOT_TO_CREATE = 4  # version of Metadata
# BOUND: idle connections are closed by brokers after ten minutes; ours before that.
_IDLE_S = 240.0
# BOUND: idle connections kept for reuse, per node.
_IDLE_MAX = 4
# Metadata of a topic is refreshed after this time, to find added partitions.
_METADATA_AGE_S = 300.0
# The time that a topic may take to be created before a write.
_CREATION_S = 5.0
_NOT_THERE = frozenset({3, 17})  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION
_MOVED = frozenset({15, 16})  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR


class Cluster:
    """bootstrap: ``host:port,host:port``.

    request_timeout: seconds one request may take. connect_timeout: the same of a connection, with
    its login. deadline: seconds a call may take with all its retries; each call can be given
    another. Nothing is connected before the first call.

    INVARIANT: what was learnt about a broker (that it leads or coordinates) is forgotten when a
    connection to it fails, and it is asked last of all by whoever may ask any broker, until it has
    answered again (``docs/decisions/0032-clients-under-faults.md``).
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        security: Security | None = None,
        *,
        client_id: str = "kbroker",
        request_timeout: float = 30.0,
        deadline: float = 60.0,
        connect_timeout: float = 10.0,
    ) -> None:
        self.bootstrap = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
        self.security = security or Security({})
        self.client_id = client_id
        self.request_timeout = request_timeout
        self.deadline = deadline
        self.connect_timeout = connect_timeout
        # Told of each new connection, by the thread that made it.
        self.on_connected: Callable[[Connection], None] | None = None
        self._seeds = parse_addresses(self.bootstrap)
        self._until: float | None = None  # see ``within``
        self._ending = Ending()
        self._forget()

    @classmethod
    def from_options(cls, options: Mapping[str, object], **settings: Any) -> Cluster:
        """Create it from client configs, without the prefix ``kafka.``: bootstrap.servers,
        client.id, request.timeout.ms, default.api.timeout.ms, socket.connection.setup.timeout.ms,
        and those of security.

        settings: arguments of the constructor, which come first.
        """
        bootstrap = str(options.get("bootstrap.servers") or "")
        if not bootstrap:
            raise SettingRefused("bootstrap.servers", "write host:port,host:port")
        settings.setdefault("client_id", str(options.get("client.id") or "kbroker"))
        for name, argument in (
            ("request.timeout.ms", "request_timeout"),
            ("default.api.timeout.ms", "deadline"),
            ("socket.connection.setup.timeout.ms", "connect_timeout"),
        ):
            if options.get(name):
                settings.setdefault(argument, milliseconds(name, options[name]))
        return cls(bootstrap, Security.from_options(options), **settings)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self.asked = ""  # the address of whom was asked last, for errors; read by any thread
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._idle: dict[int, list[Connection]] = {}
        self._topics: dict[str, Topic] = {}
        self._heard_at: dict[str, float] = {}
        self._coordinators: dict[tuple[str, int], int] = {}
        self._failed_at: dict[tuple[str, int], float] = {}  # addresses, until they answer

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (
            self.bootstrap,
            self.security,
            self.client_id,
            self.request_timeout,
            self.deadline,
            self.connect_timeout,
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()

    def interrupt(self) -> None:
        """Let the call under way, and those that follow, raise ClientClosed. Any thread."""
        self._ending.begin()
        for connection in list(self._connections.values()):
            connection.interrupt()

    def retry(self, what: str, deadline: float | None = None) -> Retry:
        """deadline: in seconds, None for the cluster's own. Raises Timeout after that of a block of
        ``within``.
        """
        seconds = self.deadline if deadline is None else deadline
        if self._until is not None:
            left = self._until - Retry.clock()
            if left <= 0:
                raise Timeout(what, 0.0, "the requests before it took all the time of the call")
            seconds = min(seconds, left)
        return Retry(what, seconds, self._ending.sleep)

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """What is done in the block takes so long at most, with all of its requests; None: the
        cluster's own deadline.
        """
        before = self._until
        until = Retry.clock() + (self.deadline if seconds is None else seconds)
        self._until = until if before is None else min(before, until)
        try:
            yield
        finally:
            self._until = before

    # -- connections

    def connection(self, node: int | None, retry: Retry) -> Connection:
        """The shared connection to a node, None for any node. One attempt.

        Raises ConnectionLost, UnreachableError (no node at all), AuthenticationFailed, ...
        """
        if self._pid != os.getpid():
            self._forget()  # connections of another process: its requests are on them
        self._ending.check()
        self._note_failures()
        made = self._any_connection(retry) if node is None else self._shared_connection(node, retry)
        self._ending.check()  # ``interrupt`` may have missed one that was made meanwhile
        retry.asked = self.asked = made.address
        return made

    def _shared_connection(self, node: int, retry: Retry) -> Connection:
        made = self._connections.get(node)
        if made is None or not self._usable(made):
            made = self._connections[node] = self.connect(node, retry)
        return made

    def attempt(self, retry: Retry) -> float:
        """The deadline of one request that any broker answers at once, or another one does."""
        return min(retry.attempt(self.connect_timeout / 3), retry.step(self.request_timeout))

    # -- failures

    def _note_failures(self) -> None:
        """Forget what is known of brokers whose connections have failed since."""
        failed = {node: made for node, made in self._connections.items() if made.failed}
        for node, made in failed.items():
            self._connections.pop(node, None)  # a bootstrap address may be that of a node
            self._failed((made.host, made.port))

    def _failed(self, address: tuple[str, int]) -> None:
        self._failed_at[address] = time.monotonic()
        for node, made in list(self._connections.items()):
            if (made.host, made.port) == address and not made.in_flight:
                self._connections.pop(node).close()
        nodes = {node for node, known in self._addresses.items() if known == address}
        for key in [key for key, node in self._coordinators.items() if node in nodes]:
            del self._coordinators[key]
        for name in [name for name, topic in self._topics.items() if _is_led_by(topic, nodes)]:
            del self._topics[name]

    @staticmethod
    def _usable(connection: Connection) -> bool:
        if connection.closed:
            return False
        idle = not connection.in_flight
        if idle and (connection.expired or time.monotonic() - connection.used_at > _IDLE_S):
            connection.close()
            return False
        return True

    def connect(self, node: int, retry: Retry) -> Connection:
        """A new connection, owned by the caller. One attempt."""
        if node not in self._addresses:
            self.refresh(None, retry)
        address = self._addresses.get(node)
        if address is None:
            raise ConnectionLost(f"node {node}", f"{self.asked} says that no broker has that id")
        return self._connect(address, retry)

    def borrow(self, node: int, retry: Retry) -> Connection:
        """A connection for the caller alone, until ``give_back``. One attempt."""
        if self._pid != os.getpid():
            self._forget()
        idle = self._idle.get(node, [])
        while idle:
            made = idle.pop()
            if self._usable(made):
                return made
        return self.connect(node, retry)

    def give_back(self, node: int, connection: Connection) -> None:
        """Give back a borrowed connection; it is kept for reuse unless it is closed."""
        idle = self._idle.setdefault(node, [])
        if connection.failed:
            self._failed((connection.host, connection.port))
        if connection.closed:
            return
        if len(idle) < _IDLE_MAX and not connection.in_flight and self._pid == os.getpid():
            idle.append(connection)
        else:
            connection.close()

    def _connect(self, address: tuple[str, int], retry: Retry) -> Connection:
        deadline = min(retry.attempt(self.connect_timeout), retry.step(self.request_timeout))
        self.asked = f"{address[0]}:{address[1]}"
        try:
            made = Connection(
                *address,
                self.security,
                client_id=self.client_id,
                deadline=deadline,
                ending=self._ending,
            )
        except (ConnectionLost, Timeout):
            self._failed(address)
            raise
        self._failed_at.pop(address, None)
        if self.on_connected is not None:
            self.on_connected(made)
        return made

    def _any_connection(self, retry: Retry) -> Connection:
        busy = set()
        for node, made in self._connections.items():
            if self._usable(made):
                if not made.in_flight:
                    return made
                busy.add(node)
        tried = {}
        nodes = [row for row in self._addresses.items() if row[0] not in busy]
        random.shuffle(nodes)
        known = set(self._addresses.values())
        nodes += [(-1 - n, seed) for n, seed in enumerate(self._seeds) if seed not in known]
        nodes.sort(key=lambda row: self._failed_at.get(row[1], 0.0))
        for node, address in nodes:
            try:
                made = self._connections[node] = self._connect(address, retry)
                return made
            except (ConnectionLost, Timeout) as error:
                tried[f"{address[0]}:{address[1]}"] = getattr(error, "why", str(error))
        raise UnreachableError(tried)

    # -- metadata

    def refresh(self, names: Iterable[str] | None, retry: Retry) -> dict[str, Topic]:
        """Ask any broker for metadata. One attempt.

        names: None asks for no topic, only for the brokers.
        """
        return self._ask_metadata(names or (), retry)

    def refresh_unknown(self, names: Iterable[str], retry: Retry) -> None:
        """Ask for all topics of which nothing is known at once, before ``leader`` asks for each.
        One attempt.
        """
        unknown = [name for name in dict.fromkeys(names) if self.known(name) is None]
        if len(unknown) > 1:
            self.refresh(unknown, retry)

    def ask_metadata(
        self, names: Iterable[str] | None, retry: Retry, *, create: bool = False
    ) -> ClusterMetadata:
        """The same, with all that the response says; what is known of topics here stays.

        names: None: all topics. create: let brokers create those that are missing, if they do so.
        """
        wanted = None
        if names is not None:
            wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        connection = self.connection(None, retry)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        response = connection.call(request, self.attempt(retry))
        if response.error_code:
            raise RejectedError(response.error_code, "metadata")
        self.adopt_brokers(response.brokers)
        return read_metadata(response)

    def _ask_metadata(
        self, names: Iterable[str] | None, retry: Retry, create: bool = False
    ) -> dict[str, Topic]:
        version = self.connection(None, retry).version_of(ApiKey.METADATA)
        if names is None and version == 0:
            names = []
        # COMPAT: a Metadata request to brokers before 0.11 cannot disable auto-creation.
        response = self.ask_metadata(names, retry, create=create or version < _FIRST_NOT_TO_CREATE)
        for name, code in response.errors.items():
            if code == ErrorCode.INVALID_TOPIC_EXCEPTION and create:
                raise RejectedError(code, f"topic {name}")
            if code not in _NOT_THERE:
                raise RejectedError(code, f"metadata of topic {name}")
            self._topics.pop(name, None)
        self._topics.update(response.topics)
        self._heard_at.update(dict.fromkeys(response.topics, time.monotonic()))
        return response.topics

    def adopt_brokers(self, rows: Iterable[Any]) -> None:
        """The brokers of a Metadata response, unless it names none."""
        if addresses := {row.node_id: (row.host, row.port) for row in rows}:
            self._adopt(addresses)

    def learn(self, rows: Iterable[Any]) -> None:
        """Addresses of some brokers, which another response named."""
        for row in rows:
            if row.host:
                self._addresses[row.node_id] = (row.host, row.port)

    def know(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Addresses of brokers, from metadata that somebody else has asked for."""
        self._adopt({**self._addresses, **addresses})

    def address(self, node: int) -> tuple[str, int] | None:
        """Where a broker is, from the latest metadata."""
        return self._addresses.get(node)

    def _adopt(self, addresses: dict[int, tuple[str, int]]) -> None:
        for node, address in self._addresses.items():
            if addresses.get(node) != address and node in self._connections:
                self._connections.pop(node).close()
        self._failed_at = {
            address: at
            for address, at in self._failed_at.items()
            if address in addresses.values() or address in self._seeds
        }
        self._addresses = addresses

    def nodes(self, *, deadline: float | None = None) -> list[int]:
        """The present brokers."""
        retry = self.retry("brokers", deadline)
        while True:
            try:
                self.refresh(None, retry)
                return sorted(self._addresses)
            except ClientError as error:
                retry.pause(error)

    def topics(
        self, names: Iterable[str] | None = None, *, deadline: float | None = None
    ) -> dict[str, Topic]:
        """Fresh metadata of topics, of all topics without ``names``; topics that do not exist are
        left out.

        Never creates a topic.
        """
        retry = self.retry("metadata", deadline)
        wanted = None if names is None else list(names)
        if wanted == []:
            return {}
        while True:
            try:
                return self._ask_metadata(wanted, retry)
            except ClientError as error:
                retry.pause(error)

    def topic(self, name: str, *, deadline: float | None = None) -> Topic:
        """One topic, from the latest metadata. Raises RejectedError if it does not exist."""
        known = self.known(name)
        if known is None:
            known = self.topics([name], deadline=deadline).get(name)
        if known is None:
            raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        return known

    def topic_to_write(self, name: str) -> Topic:
        """The same for a producer: brokers with auto.create.topics.enable create a missing topic,
        which is awaited briefly once a broker has responded.
        """
        known = self.known(name)
        if known is not None and known.partitions:
            return known
        retry, creation = self.retry(f"topic {name}"), None
        while True:
            try:
                known = self._ask_metadata([name], retry, create=True).get(name)
            except (ConnectionLost, Timeout, UnreachableError) as trouble:
                retry.pause(trouble)
                continue
            if known is not None and known.partitions:
                return known
            creation = creation or self.retry(f"topic {name}", min(self.deadline, _CREATION_S))
            error = RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
            try:
                creation.pause(error)
            except Timeout:
                raise error from None

    def known(self, name: str) -> Topic | None:
        """A topic from the latest metadata; None if that is too old."""
        if time.monotonic() - self._heard_at.get(name, 0.0) > _METADATA_AGE_S:
            return None
        return self._topics.get(name)

    def forget_topic(self, name: str) -> None:
        """The metadata of this topic is wrong: refresh it before it is used again."""
        self._topics.pop(name, None)

    def leader(self, topic: str, partition: int, retry: Retry) -> tuple[Topic, int]:
        """The topic and the node that leads the partition. One attempt.

        Raises RejectedError: no such topic or partition, no leader (both may change).
        """
        self._note_failures()
        known = self.known(topic)
        if known is None or known.partitions.get(partition, _NOBODY).leader is None:
            known = self.refresh([topic], retry).get(topic)
        what = f"{topic}-{partition}"
        if known is None or partition not in known.partitions:
            raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        leader = known.partitions[partition].leader
        if leader is None:
            raise RejectedError(ErrorCode.LEADER_NOT_AVAILABLE, what)
        return known, leader

    # -- calls

    def call(
        self,
        node: int | None,
        request: Message,
        *,
        what: str = "",
        deadline: float | None = None,
        at_most: int | None = None,
    ) -> Any:
        """Send a request to a node (None: any) and return its response. It is sent again when a
        connection fails, so only for requests that may be executed twice. The caller handles errors
        inside the response.
        """
        retry = self.retry(what or type(request).__name__, deadline)
        while True:
            try:
                connection = self.connection(node, retry)
                step = retry.step(self.request_timeout)
                if node is None:
                    step = min(step, retry.attempt(self.request_timeout))
                return connection.call(request, step, at_most=at_most)
            except ClientError as error:
                retry.pause(error)

    # -- coordinators

    def coordinator(self, key: str, kind: int, retry: Retry) -> int:
        """The node that coordinates a group (GROUP) or a transactional id (TRANSACTION), found
        once and remembered. One attempt."""
        self._note_failures()
        known = self._coordinators.get((key, kind))
        return known if known is not None else self.find_coordinator(key, kind, retry)

    def find_coordinator(self, key: str, kind: int, retry: Retry) -> int:
        """The same, asked again. One attempt."""
        connection = self.connection(None, retry)
        request = FindCoordinatorRequest(key=key, key_type=kind)
        response = connection.call(request, self.attempt(retry), at_most=3)
        what = f"the coordinator of {'group' if kind == GROUP else 'transactional id'} {key}"
        if response.error_code:
            raise RejectedError(response.error_code, what, response.error_message)
        node: int = response.node_id
        self._adopt({**self._addresses, node: (response.host, response.port)})
        self._coordinators[key, kind] = node
        return node

    def forget_coordinator(self, key: str, kind: int) -> None:
        """It has moved, or does not respond: look it up before it is used again."""
        self._coordinators.pop((key, kind), None)

    def call_coordinator(
        self,
        key: str,
        kind: int,
        request: Message | Callable[[Connection, int], Message],
        error_of: Callable[[Any], int],
        *,
        what: str,
        deadline: float | None = None,
        at_most: int | None = None,
        once: bool = False,
    ) -> Any:
        """Ask a coordinator until it responds without a retriable error.

        once: make one attempt, which takes ``connect_timeout`` at most, and raise its error.

        request: or what makes it, for a connection, whose versions may decide, and its node.
        error_of: the first error code of the response, 0 if there is none. Raises RejectedError for
        errors that stay.
        """
        retry = self.retry(what, deadline)
        while True:
            try:
                node = self.coordinator(key, kind, retry)
                connection = self.connection(node, retry)
                made = request if isinstance(request, Message) else request(connection, node)
                step = retry.attempt(self.connect_timeout) if once else self.attempt(retry)
                response = connection.call(made, step, at_most=at_most)
                code = error_of(response)
                if not code:
                    return response
                raise RejectedError(code, what)
            except ClientError as error:
                if error.code in _MOVED or isinstance(error, ConnectionLost | Timeout):
                    self._coordinators.pop((key, kind), None)
                if once:
                    raise
                retry.pause(error)


_NOBODY = Partition(None, -1)


def _made(
    bootstrap: str,
    security: Security,
    client_id: str,
    request_timeout: float,
    deadline: float,
    connect_timeout: float,
) -> Cluster:
    return Cluster(
        bootstrap,
        security,
        client_id=client_id,
        request_timeout=request_timeout,
        deadline=deadline,
        connect_timeout=connect_timeout,
    )


def _is_led_by(topic: Topic, nodes: Collection[int]) -> bool:
    return any(row.leader in nodes for row in topic.partitions.values())
