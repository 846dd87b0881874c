"""Consumers in groups, of any client, behind one interface.

A member polls all the time, in a thread or process of its own, and notes what it is given: which
partitions when, and which records. Times are of the monotonic clock, which all processes of a
machine share, so that the notes of several members can be compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from support.drivers import WAIT_S, ClientError
from support.drivers.access import Access, access_to

Partition = tuple[str, int]
CLOSE_MARGIN_S = 10
POLL_S = 0.05
CLOSE_COMMITS = 50


@dataclass(frozen=True, slots=True)
class Taken:
    """A record that a member got."""

    at: float
    topic: str
    partition: int
    offset: int
    value: str

    @property
    def where(self) -> Partition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Move:
    """A change of what a member owns: ``assigned``, ``revoked``, ``lost`` or ``closed``.

    began: when what is to be committed before a partition is given up was settled (0: at ``at``).
    """

    at: float
    kind: str
    partitions: frozenset[Partition]
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """How a member joins its group.

    pattern: a regular expression instead of topics, matched by the client, or by the broker where
    the protocol is ``consumer``. commit_on_revoke: what is given up is committed before.
    """

    group: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    protocol: str = "classic"
    assignor: str = "range"
    instance: str = ""
    session_ms: int = 10_000
    heartbeat_ms: int = 200
    isolation: str = "read_uncommitted"
    commit_on_revoke: bool = True
    config: tuple[tuple[str, Any], ...] = field(default=())


class Member(Protocol):
    """A consumer that polls from its creation until it is closed."""

    name: str

    @property
    def owned(self) -> frozenset[Partition]: ...

    @property
    def moves(self) -> list[Move]: ...

    @property
    def taken(self) -> list[Taken]: ...

    def commit(self) -> None:
        """Commit its position, and wait for the response."""

    def close(self) -> None:
        """Leave the group (a static member stays in it) and end. Raises the client's error."""


class ThreadMember:
    """A member whose client is polled by a thread here. Subclasses provide the client."""

    name = ""

    def __init__(self, where: str | Access, subscription: Subscription) -> None:
        # Operations that need a generation may have to wait for the sessions of others to expire.
        self.join_timeout_s = WAIT_S + 2 * subscription.session_ms / 1000
        self.access = access_to(where)
        self.subscription = subscription
        self._owned: set[Partition] = set()
        self._moves: list[Move] = []
        self._taken: list[Taken] = []
        self._next: dict[Partition, int] = {}
        self._asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    # -- what a subclass does, all in the member's thread

    def _open(self) -> None:
        raise NotImplementedError

    def _poll(self, timeout_s: float) -> None:
        raise NotImplementedError

    def _commit(self, offsets: dict[Partition, int]) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _assigned(self, partitions: Iterable[Partition]) -> None:
        given = frozenset(partitions)
        self._owned |= given
        self._moves.append(Move(time.monotonic(), "assigned", given))

    def _revoked(self, partitions: Iterable[Partition]) -> None:
        gone = frozenset(partitions)
        offsets, began = self._settle(gone)
        if offsets:
            self._commit(offsets)
        self._gone("revoked", gone, began)

    def _lost(self, partitions: Iterable[Partition]) -> None:
        self._gone("lost", frozenset(partitions))

    def _gone(self, kind: str, gone: frozenset[Partition], began: float = 0.0) -> None:
        self._owned -= gone
        for where in gone:
            self._next.pop(where, None)
        self._moves.append(Move(time.monotonic(), kind, gone, began))

    def _take(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        """A client may return a record of a partition that it has just revoked: it must not be
        committed, and with some clients it would fail the commit of all others.
        """
        with self._lock:
            if (topic, partition) in self._owned:
                self._next[topic, partition] = offset + 1
            self._taken.append(Taken(time.monotonic(), topic, partition, offset, value.decode()))

    def _settle(self, gone: Iterable[Partition]) -> tuple[dict[Partition, int], float]:
        """The offsets to commit before these partitions are revoked, and the time of the callback.

        A client that calls back in a thread of its own may hand out a record right behind.
        """
        with self._lock:
            now = time.monotonic()
            if not self.subscription.commit_on_revoke:
                return {}, now
            return {where: self._next[where] for where in gone if where in self._next}, now

    def _commit_all(self) -> None:
        if self._next:
            self._commit(dict(self._next))

    def _commit_before_close(self) -> None:
        """A commit is rejected during a rebalance; polling completes that. Partitions revoked by
        the close itself are committed already: some clients leave before they call back.
        """
        if not self.subscription.commit_on_revoke:
            return
        for _ in range(CLOSE_COMMITS):
            try:
                self._commit_all()
            except ClientError:
                self._poll(POLL_S)
            else:
                self._next.clear()
                return

    def _run(self) -> None:
        try:
            self._open()
            try:
                while not self._stopping.is_set():
                    self._serve()
                    self._poll(POLL_S)
                self._commit_before_close()
            finally:
                self._close()
        except BaseException as error:
            self._error = error
        self._gone("closed", frozenset(self._owned))

    def _serve(self) -> None:
        with suppress(Empty):
            while True:
                work, done = self._asked.get_nowait()
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)

    # -- what a test asks

    @property
    def owned(self) -> frozenset[Partition]:
        self._check()
        return frozenset(self._owned)

    @property
    def moves(self) -> list[Move]:
        return list(self._moves)

    @property
    def taken(self) -> list[Taken]:
        self._check()
        return list(self._taken)

    def ask(self, work: Callable[[], Any]) -> Any:
        """Run something in the member's thread, between two polls."""
        self._check()
        done: Future[Any] = Future()
        self._asked.put((work, done))
        return done.result(WAIT_S)

    def commit(self) -> None:
        self.ask(self._commit_all)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(self.join_timeout_s + CLOSE_MARGIN_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def overlaps(members: Iterable[Member]) -> list[str]:
    """Partitions that two members owned at the same time."""
    held: dict[Partition, list[tuple[float, float, str]]] = {}
    for index, member in enumerate(members):
        since: dict[Partition, float] = {}
        name = f"{member.name} #{index}"
        for move in member.moves:
            for where in move.partitions:
                if move.kind == "assigned":
                    since.setdefault(where, move.at)
                elif where in since:
                    held.setdefault(where, []).append((since.pop(where), move.at, name))
        for where, began in since.items():
            held.setdefault(where, []).append((began, float("inf"), name))
    found = []
    for where, spans in held.items():
        spans.sort()
        for (_, end, first), (began, _, second) in pairwise(spans):
            if began < end:
                found.append(f"{where}: {first} until {end:.3f}, {second} from {began:.3f}")
    return found


def while_owned(member: Member) -> list[Taken]:
    """The records that a member got from partitions it owned and was not revoking."""
    spans: dict[Partition, list[tuple[float, float]]] = {}
    since: dict[Partition, float] = {}
    for move in member.moves:
        for where in move.partitions:
            if move.kind == "assigned":
                since.setdefault(where, move.at)
            elif where in since:
                spans.setdefault(where, []).append((since.pop(where), move.began or move.at))
    for where, began in since.items():
        spans.setdefault(where, []).append((began, float("inf")))
    return [
        record
        for record in member.taken
        if any(began <= record.at < end for began, end in spans.get(record.where, ()))
    ]
