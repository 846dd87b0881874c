"""A metadata store for tests: an ensemble with its own clock, and stores connected to it.

A seed determines a run. Requests of one store arrive and complete in order, after delays; requests
of different stores overtake each other. A connection may be lost: the store reports SUSPENDED, and
a prefix of the requests in flight took effect, which their ConnectionLoss does not reveal. A
session that is disconnected for longer than its timeout expires, whether its owner knows or not.

Nothing happens by itself: ``step`` runs the next event.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from kbroker.ipc.pending import Pending
from kbroker.metastore.node_tree import NodeTree
from kbroker.metastore.store import (
    ConnectionLoss,
    Node,
    NodeStat,
    SessionCallback,
    SessionState,
    Store,
    StoreError,
    StoreOperation,
    TooLarge,
    WatchCallback,
    WatchEvent,
)
from kbroker.metastore.watches import Watches

T = TypeVar("T")

SESSION_TIMEOUT_MS = 6_000


class Faults(NamedTuple):
    """Probabilities and durations of faults in a run."""

    delay_max_ms: int = 20
    loss_per_request: float = 0.0  # how probably a request has its connection lost
    outage_max_ms: int = 9_000


class SimulatedEnsemble:
    """The servers: the tree, the sessions, and all messages in flight."""

    def __init__(self, seed: int, faults: Faults = Faults()) -> None:
        self.now_ms = 0
        self.tree = NodeTree()
        self.faults = faults
        self.random = random.Random(seed)
        self.request_bytes_max: int | None = None
        self.stores: list[SimulatedStore] = []
        self._sessions: set[int] = set()
        self._numbers = count(1)
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def connect(self, session_id: int = 0) -> SimulatedStore:
        """A new client, which will soon have a session, or continue this one of a dead client."""
        for store in self.stores:
            if session_id and store.session_id == session_id:
                store.hand_over_session()
        store = SimulatedStore(self, session_id)
        self.stores.append(store)
        return store

    def after(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Schedule a callback."""
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._numbers), callback))

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves after this time."""
        pending: Pending[None] = Pending()
        self.after(delay_ms, pending.resolve)
        return pending

    def delay_ms(self) -> int:
        """The delay of the next message."""
        # A third of the cost of randint, and half of all that a run asks for.
        return int(self.random.random() * (self.faults.delay_max_ms + 1))

    def step(self) -> bool:
        """Run the next event; returns whether there was one."""
        if not self._due:
            return False
        self.now_ms, _, callback = heapq.heappop(self._due)
        callback()
        return True

    def run_until(self, condition: Callable[[], bool], within_ms: int = 600_000) -> None:
        """Run events until the condition holds; AssertionError if it does not in time."""
        until_ms = self.now_ms + within_ms
        while not condition():
            if self.now_ms > until_ms or not self.step():
                raise AssertionError(f"the condition was not met by {self.now_ms} ms")

    # -- what stores ask of the servers --

    def begin_session(self) -> int:
        session_id = next(self._numbers)
        self._sessions.add(session_id)
        return session_id

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session_id: int) -> None:
        if session_id in self._sessions:
            self._sessions.remove(session_id)
            self.report(self.tree.end_session(session_id, self.now_ms))

    def apply(self, operations: list[StoreOperation], session_id: int) -> list[str]:
        size, limit = sum(operation.bytes for operation in operations), self.request_bytes_max
        if limit is not None and size > limit:
            raise TooLarge(operations[0].path, size, limit)
        made, events = self.tree.apply(operations, session_id, self.now_ms)
        self.report(events)
        return made

    def report(self, events: list[WatchEvent]) -> None:
        for store in self.stores:
            for event in events:
                store.notify(event)


class SimulatedRequest(NamedTuple):
    """A request in flight."""

    serve: Callable[[], Any]
    pending: Pending[Any]
    connection: int


class SimulatedStore(Store):
    """A client of the ensemble."""

    def __init__(self, ensemble: SimulatedEnsemble, session_id: int = 0) -> None:
        self._ensemble = ensemble
        self._session_id = session_id
        self._state = SessionState.SUSPENDED
        self._callbacks: list[SessionCallback] = []
        self._watches = Watches()
        self._connection = 0  # counts connections; messages of earlier ones are dropped
        self._arriving: list[SimulatedRequest] = []
        self._replying: list[SimulatedRequest] = []
        self._last_arrival_ms = self._last_reply_ms = 0
        self._is_dead = self._has_heir = False
        ensemble.after(ensemble.delay_ms(), self._reconnect)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def request_bytes_max(self) -> int | None:
        return self._ensemble.request_bytes_max

    # -- requests --

    def get(self, path: str) -> Pending[Node]:
        return self._ask(lambda: self._ensemble.tree.get(path))

    def exists(self, path: str) -> Pending[NodeStat | None]:
        return self._ask(lambda: self._ensemble.tree.exists(path))

    def sync(self, path: str) -> Pending[None]:
        return self._ask(lambda: None)

    def children(self, path: str) -> Pending[list[str]]:
        return self._ask(lambda: self._ensemble.tree.children(path))

    def subtree(self, path: str) -> Pending[list[Node]]:
        return self._ask(lambda: self._ensemble.tree.subtree(path))

    def apply(self, operations: list[StoreOperation]) -> Pending[list[str]]:
        asked = list(operations)
        return self._ask(lambda: self._ensemble.apply(asked, self._session_id))

    def watch(self, path: str, callback: WatchCallback) -> Pending[Callable[[], None]]:
        return self._ask(lambda: self._watches.add(path, callback))

    def watch_session(self, callback: SessionCallback) -> None:
        self._callbacks.append(callback)
        callback(self._state)

    def close(self) -> Pending[None]:
        closed = self._ask(lambda: self._ensemble.end_session(self._session_id))
        self._callbacks.clear()
        return closed

    def _ask(self, serve: Callable[[], T]) -> Pending[T]:
        ensemble = self._ensemble
        pending: Pending[T] = Pending()
        if self._is_dead:
            return pending
        if self._state != SessionState.CONNECTED:
            # Later: a callback that retries at once must not stop the clock.
            ensemble.after(1, partial(pending.resolve, None, ConnectionLoss()))
            return pending
        request = SimulatedRequest(serve, pending, self._connection)
        self._arriving.append(request)
        arrival_ms = max(self._last_arrival_ms, ensemble.now_ms + ensemble.delay_ms())
        self._last_arrival_ms = arrival_ms
        ensemble.after(arrival_ms - ensemble.now_ms, lambda: self._arrive(request))
        if ensemble.random.random() < ensemble.faults.loss_per_request:
            outage_ms = ensemble.random.randint(1, ensemble.faults.outage_max_ms)
            ensemble.after(ensemble.delay_ms(), lambda: self.lose(outage_ms))
        return pending

    def _arrive(self, request: SimulatedRequest) -> None:
        """The request has arrived at a server."""
        if request not in self._arriving:
            return  # lost with its connection
        self._arriving.remove(request)
        if not self._ensemble.is_alive(self._session_id):
            return  # the connection ends, too
        value, error = None, None
        try:
            value = request.serve()
        except (StoreError, ValueError) as rejected:
            error = rejected
        if request.connection != self._connection or self._state != SessionState.CONNECTED:
            return
        self._replying.append(request)

        def reply() -> None:
            if request in self._replying:
                self._replying.remove(request)
                request.pending.resolve(value, error)

        self._send(reply)

    def _send(self, callback: Callable[[], None]) -> None:
        """Send to this client, in order after earlier messages."""
        ensemble = self._ensemble
        reply_ms = max(self._last_reply_ms, ensemble.now_ms + ensemble.delay_ms())
        self._last_reply_ms = reply_ms
        ensemble.after(reply_ms - ensemble.now_ms, callback)

    def notify(self, event: WatchEvent) -> None:
        """A server reports a change to this client, if it is connected."""
        connection = self._connection

        def report() -> None:
            if connection == self._connection and self._state == SessionState.CONNECTED:
                self._watches.report(event)

        if self._state == SessionState.CONNECTED:
            self._send(report)

    # -- what befalls it --

    def lose(self, outage_ms: int) -> None:
        """Lose the connection for some time."""
        if self._state != SessionState.CONNECTED:
            return
        ensemble, session_id = self._ensemble, self._session_id
        lost = self._replying + self._arriving
        self._replying = []
        del self._arriving[ensemble.random.randint(0, len(self._arriving)) :]
        ensemble.after(SESSION_TIMEOUT_MS, partial(self._time_out, session_id, self._connection))
        # Whatever is in flight has arrived by then.
        wait_ms = max(outage_ms, self._last_arrival_ms - ensemble.now_ms + 1)
        ensemble.after(wait_ms, self._reconnect)
        self._become(SessionState.SUSPENDED)
        for request in lost:
            request.pending.resolve(error=ConnectionLoss())

    def expire(self) -> None:
        """Expire the session; the client learns of it when it reconnects."""
        self._ensemble.end_session(self._session_id)
        self.lose(self._ensemble.delay_ms())

    def crash(self) -> None:
        """The process has died: it gets no more events, and its session expires in time."""
        ensemble = self._ensemble
        self._is_dead = True
        self._state = SessionState.SUSPENDED
        self._callbacks.clear()
        self._replying = []
        del self._arriving[ensemble.random.randint(0, len(self._arriving)) :]

        def end() -> None:
            if not self._has_heir:
                ensemble.end_session(self._session_id)

        ensemble.after(SESSION_TIMEOUT_MS, end)

    def hand_over_session(self) -> None:
        """Another client continues the session of this one, which has died."""
        assert self._is_dead
        self._has_heir = True

    def _time_out(self, session_id: int, connection: int) -> None:
        """Expire the session if it has been disconnected since that connection."""
        is_back = self._connection > connection or self._state == SessionState.CONNECTED
        is_back = is_back or self._has_heir
        if session_id == self._session_id and not is_back:
            self._ensemble.end_session(session_id)

    def _reconnect(self) -> None:
        if self._is_dead:
            return
        ensemble = self._ensemble
        if not ensemble.is_alive(self._session_id):
            if self._session_id:
                self._become(SessionState.EXPIRED)
            self._session_id = ensemble.begin_session()
        self._connection += 1
        self._become(SessionState.CONNECTED)

    def _become(self, state: SessionState) -> None:
        self._state = state
        for callback in list(self._callbacks):
            callback(state)
