"""A consumer's membership in its group, as the thread that polls sees it: partitions that come and
go, and whoever is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.consumer.assignors import assignors_of
from kbroker.client.consumer.classic_member import (
    ClassicMember,
    Complete,
    Fatal,
    Prepare,
)
from kbroker.client.consumer.commits import CommittingMember
from kbroker.client.consumer.consumer_member import ConsumerMember
from kbroker.client.consumer.consumer_settings import CONSUMER
from kbroker.client.consumer.lanes import LaneCall
from kbroker.client.consumer.partitions import TopicPartition

if TYPE_CHECKING:
    from kbroker.client.consumer.core import Core


# A listener has some of these.
LISTENED = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


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


class ConsumerMembership:
    """Runs in the thread that polls, except for ``identity`` and ``renewed``."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._clock = core.surroundings.clock
        self.listener: Any = None
        self._failure: BaseException | None = None
        self._step: _Step | None = None
        self._closed = False
        settings = core.settings
        self._member: ClassicMember | ConsumerMember
        if settings["group.protocol"] == CONSUMER:
            self._member = ConsumerMember(settings, self._clock())
        else:
            strategy = assignors_of(settings["partition.assignment.strategy"])
            self._member = ClassicMember(settings, strategy, self._clock())
        self._thread = core.surroundings.member_thread(
            settings["group.id"], core.cluster(), self._member
        )
        self._lock = self._thread.lock
        self._thread.on_change = core.inbox.wake
        self._thread.start()

    def subscribe(self, topics: frozenset[str]) -> None:
        """Share these topics with the group."""
        with self._lock:
            self._member.subscribe(topics)
            self._thread.poke()

    def topics_changed(self) -> None:
        """The metadata of subscribed topics has other partitions than before."""
        with self._lock:
            self._member.topics_changed()
            self._thread.poke()

    def rejoin(self, reason: str) -> None:
        """Let the group rebalance."""
        with self._lock:
            self._member.rejoin(reason)
            self._thread.poke()

    def identity(self) -> CommittingMember:
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

    def renewed(self, was: CommittingMember, keys: Collection[Key]) -> CommittingMember | None:
        """See ``commits.Committer``. Any thread."""
        with self._lock:
            return self._member.renewed(was, keys)

    # -- rebalances

    def poll(self, now: float) -> None:
        """Do what a rebalance needs, as far as that does not wait. Raises what forbids to be a
        member, and, once the rebalance is done, what the listener has raised.
        """
        with self._lock:
            self._member.polled(now)
        while not self._closed:
            if self._step is None:
                with self._lock:
                    event = self._member.event()
                if event is None:
                    break
                if isinstance(event, Fatal):
                    raise event.error
                self._step = self._begin(event, now)
            if not self._step.is_due(self._clock()):
                break
            step, self._step = self._step, None
            self._finish(step)
            with self._lock:
                self._thread.poke()
        if self._step is None:
            self._raise_failure()

    def due_in(self, now: float) -> float:
        """Seconds until ``poll`` has something to do by time alone."""
        return float("inf") if self._step is None else max(0.0, self._step.deadline - now)

    def _begin(self, event: Prepare | Complete, now: float) -> _Step:
        """Positions are committed, if that is automatic, before partitions are given up; no more of
        these is returned meanwhile.
        """
        core = self._core
        owned = list(core.fetcher.parts)
        if isinstance(event, Complete):
            wanted = {key for key in event.partitions if key[0] in core.topics}
            gone = [key for key in owned if key not in wanted]
        elif event.lost or not self._member.cooperative:
            gone = owned
        else:
            gone = [key for key in owned if key[0] not in core.topics]
        commit = None
        if gone and not (isinstance(event, Prepare) and event.lost):
            commit = core.begin_commit_before_loss()
        for key in gone:
            core.fetcher.parts[key].pending_revocation = True
        return _Step(event, gone, commit, now + core.request_s)

    def _finish(self, step: _Step) -> None:
        """The listener is told, and partitions come and go. It may end the membership."""
        event, core = step.event, self._core
        before = set(core.fetcher.parts)
        lost = isinstance(event, Prepare) and event.lost
        gone = [key for key in step.gone if key in before]
        if not self._tell("on_partitions_lost" if lost else "on_partitions_revoked", gone):
            return
        if isinstance(event, Prepare):
            owned = [key for key in core.fetcher.parts if key not in set(gone)]
            core.assign(owned)
            with self._lock:
                self._member.prepared(owned, lost)
            return
        wanted = [key for key in event.partitions if key[0] in core.topics]
        core.assign(wanted)
        added = [key for key in wanted if key not in before]
        if not self._tell("on_partitions_assigned", added, True):
            return
        with self._lock:
            self._member.completed(wanted, bool(gone) and self._member.cooperative)

    def _tell(self, what: str, keys: Iterable[Key], always: bool = False) -> bool:
        """Whether the membership goes on: a listener may call ``unsubscribe``.

        COMPAT: as in Java, of an assignment the listener is told even if nothing was added.
        """
        partitions = [TopicPartition(*key) for key in sorted(keys)]
        call: Callable[[Any], Any] | None = getattr(self.listener, what, None)
        if call is None and what == "on_partitions_lost":
            call = getattr(self.listener, "on_partitions_revoked", None)
        if call is None or not (partitions or always):
            return True
        try:
            call(partitions)
        except BaseException as error:
            # Also Ctrl-C and sys.exit: first the rebalance is done, for which the group waits.
            self._failure = self._failure or error
        return not self._closed

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self, timeout: float) -> None:
        """Commit, if that is automatic, give everything up, and leave the group."""
        if self._closed:
            return
        self._closed = True
        deadline = self._clock() + timeout
        core = self._core
        try:
            core.commit_before_loss(min(timeout, core.request_s))
            self._tell("on_partitions_revoked", core.fetcher.parts)
            core.assign(())
        finally:
            with self._lock:
                self._member.leave()
                self._thread.poke()
        self._thread.join(max(0.0, deadline - self._clock()))
        self._raise_failure()


class _Step:
    """An event that is being carried out, once its commit has ended or takes too long. gone: the
    partitions that are given up.
    """

    def __init__(
        self, event: Prepare | Complete, gone: list[Key], commit: LaneCall | None, deadline: float
    ) -> None:
        self.event = event
        self.gone = gone
        self.deadline = deadline
        self._commit = commit

    def is_due(self, now: float) -> bool:
        return self._commit is None or self._commit.done or now >= self.deadline
