"""A consumer's membership in its group, as the thread that polls sees it: partitions that come and
go, and whoever is told of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kbroker.client.consumer.assignors import assignors_of
from kbroker.client.consumer.classic_member import (
    ClassicMember,
    Complete,
    Fatal,
    Prepare,
)
from kbroker.client.consumer.commits import Identity
from kbroker.client.consumer.consumer_member import ConsumerMember
from kbroker.client.consumer.consumer_settings import CONSUMER
from kbroker.client.consumer.member_thread import MemberThread
from kbroker.client.consumer.partitions import TopicPartition
from kbroker.client.offsets import TopicPartition as Key

if TYPE_CHECKING:
    from kbroker.client.consumer.core import Core


class RebalanceListener:
    """Told, by the thread that calls ``poll``, of partitions that come and go.

    Any object with some of these methods will do. Each gets a list of ``TopicPartition``. What one
    raises is raised by ``poll``, once the rebalance is done.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These were added. Where reading begins may be set by ``seek``."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These are given up now; offsets may still be committed."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """These are lost: others may have them by now, and offsets cannot be committed."""
        self.on_partitions_revoked(partitions)


class Membership:
    """Runs in the thread that polls, except for ``identity``."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.listener: Any = None
        self._failure: Exception | None = None
        settings = core.settings
        self._member: ClassicMember | ConsumerMember
        if settings["group.protocol"] == CONSUMER:
            self._member = ConsumerMember(settings, time.monotonic())
        else:
            strategy = assignors_of(settings["partition.assignment.strategy"])
            self._member = ClassicMember(settings, strategy, time.monotonic())
        self._thread = MemberThread(settings["group.id"], core.cluster(), self._member)
        self._lock = self._thread.lock
        self._thread.on_change = core.inbox.wake
        self._thread.start()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Share these topics with the group."""
        with self._lock:
            self._member.subscribe(topics)
            self._thread.poke()

    def rejoin(self, reason: str) -> None:
        """Let the group rebalance."""
        with self._lock:
            self._member.rejoin(reason)
            self._thread.poke()

    def identity(self) -> Identity:
        """Who commits. Any thread. Raises CommitFailed."""
        with self._lock:
            return self._member.identity()

    @property
    def heartbeats(self) -> int:
        """Sent so far."""
        return self._member.heartbeats

    @property
    def rebalances(self) -> int:
        """Taken part in so far."""
        return self._member.rebalances

    def poll(self, now: float) -> None:
        """Do what a rebalance needs. Raises what forbids to be a member, and what the listener has
        raised.
        """
        with self._lock:
            self._member.polled(now)
            event = self._member.event()
        while event is not None:
            if isinstance(event, Fatal):
                raise event.error
            if isinstance(event, Prepare):
                self._prepare(event.lost)
            else:
                self._complete(event)
            with self._lock:
                self._thread.poke()
                event = self._member.event()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _prepare(self, lost: bool) -> None:
        core = self._core
        owned = list(core.fetcher.parts)
        if lost:
            self._tell("on_partitions_lost", owned)
            owned = []
        else:
            core.commit_before_loss(core.request_s)
            gone = owned
            if self._member.cooperative:
                gone = [key for key in owned if key[0] not in core.topics]
            self._tell("on_partitions_revoked", gone)
            owned = [key for key in owned if key not in set(gone)]
        core.assign(owned)
        with self._lock:
            self._member.prepared(owned, lost)

    def _complete(self, event: Complete) -> None:
        core = self._core
        owned = set(core.fetcher.parts)
        wanted = [key for key in event.partitions if key[0] in core.topics]
        gone = [key for key in core.fetcher.parts if key not in set(wanted)]
        if gone:
            core.commit_before_loss(core.request_s)
            self._tell("on_partitions_revoked", gone)
        core.assign(wanted)
        self._tell("on_partitions_assigned", [key for key in wanted if key not in owned], True)
        with self._lock:
            self._member.completed(wanted, bool(gone) and self._member.cooperative)

    def _tell(self, what: str, keys: Iterable[Key], always: bool = False) -> None:
        """COMPAT: as in Java, of an assignment the listener is told even if nothing was added."""
        partitions = [TopicPartition(*key) for key in sorted(keys)]
        call: Callable[[Any], Any] | None = getattr(self.listener, what, None)
        if call is None and what == "on_partitions_lost":
            call = getattr(self.listener, "on_partitions_revoked", None)
        if call is None or not (partitions or always):
            return
        try:
            call(partitions)
        except Exception as error:
            self._failure = self._failure or error

    def close(self, timeout: float) -> None:
        """Commit, if that is automatic, give everything up, and leave the group."""
        deadline = time.monotonic() + timeout
        core = self._core
        core.commit_before_loss(min(timeout, core.request_s))
        self._tell("on_partitions_revoked", core.fetcher.parts)
        core.assign(())
        with self._lock:
            self._member.leave()
            self._thread.poke()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
