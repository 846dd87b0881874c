"""The parts of a consumer together, and the waiting of all of its calls.

Everything here runs in the thread that has entered; others may only ``wake``.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.consumer.collector import FetchCollector, Kind
from kbroker.client.consumer.commits import CommittingMember, ConsumerCommits, Offsets
from kbroker.client.consumer.consumer_metadata import ConsumerMetadata
from kbroker.client.consumer.fetcher import Fetcher
from kbroker.client.consumer.lanes import Lane, LaneCall, NodeLanes
from kbroker.client.consumer.membership import ConsumerMembership
from kbroker.client.consumer.partitions import OffsetAndMetadata, ReadPartition, key_of
from kbroker.client.consumer.positions import Positions
from kbroker.client.consumer.surroundings import Surroundings
from kbroker.client.errors import (
    ClientClosed,
    ClientError,
    ConsumerState,
    OffsetOutOfRange,
    Timeout,
    UnreachableError,
    WakeupError,
)
from kbroker.client.settings.client_settings import ClientSettings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_numbers = itertools.count(1)
# A call's own deadline is told by the call, which knows why; this is for one that is queued.
_GRACE_S = 0.5
_CLOSE_LANES_S = 2.0
# What is interrupted ends at once, unless it looks a name up.
_INTERRUPTED_S = 0.3


class Core:
    """``with core:`` enters it, as ``acquire`` of Java's consumer does."""

    def __init__(self, settings: ClientSettings, surroundings: Surroundings | None = None) -> None:
        self.settings = settings
        around = self.surroundings = surroundings or Surroundings()
        self._clock = around.clock
        group: str | None = settings["group.id"]
        self.client_id: str = settings["client.id"] or _client_id(group)
        self.default_s: float = settings["default.api.timeout.ms"] / 1000
        self.request_s: float = settings["request.timeout.ms"] / 1000
        # Told of new connections, by the threads that make them.
        self.on_connected: Callable[[Connection], None] | None = None
        self.inbox = around.inbox()
        # What may wait for a broker waits only behind its like: metadata, questions to each leader,
        # calls of the program, and commits.
        metadata_lane = around.lane("kafka-consumer-metadata", self.cluster(), self.inbox)
        leaders = around.node_lanes("kafka-consumer-leader", self.cluster, self.inbox)
        self.lane = around.lane("kafka-consumer-calls", self.cluster(), self.inbox)
        self._lanes: list[Lane | NodeLanes] = [metadata_lane, leaders, self.lane]
        self.metadata = ConsumerMetadata(metadata_lane, settings, self._on_metadata, self._clock)
        self.fetcher = Fetcher(
            settings,
            self.client_id,
            self.inbox,
            self.metadata,
            self._out_of_range,
            self._on_leaders,
            around,
        )
        self.commits: ConsumerCommits | None = None
        self.coordinator_lane: Lane | None = None
        if group is not None:
            self.coordinator_lane = around.lane(
                "kafka-consumer-commits", self.cluster(), self.inbox
            )
            self.commits = ConsumerCommits(group, self.coordinator_lane, self, self._clock)
            self.commits.interceptors = settings["interceptor.classes"]
        self.positions = Positions(
            settings,
            leaders,
            self.metadata,
            self.fetcher,
            self._look_up_committed if self.commits is not None else None,
            self._clock,
        )
        self.collector = FetchCollector(settings, self.fetcher)
        self.membership: ConsumerMembership | None = None
        self.pattern: re.Pattern[str] | None = None
        self.topics: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}  # partitions of these topics, as last heard
        self._auto_commit: bool = settings["enable.auto.commit"]
        self._commit_s: float = settings["auto.commit.interval.ms"] / 1000
        self._commit_at = self._clock() + self._commit_s
        self._committing: LaneCall | None = None
        self._committed: dict[Key, int] = {}
        self._woken = self._hurried = False
        self.closed = False
        self._owner: int | None = None
        self._depth = 0
        self._lock = threading.Lock()
        self.pid = os.getpid()

    def cluster(self) -> Cluster:
        """A cluster for one thread."""
        settings = self.settings
        made = self.surroundings.cluster(
            ",".join(settings["bootstrap.servers"]),
            settings.security,
            client_id=self.client_id,
            request_timeout=min(
                settings["request.timeout.ms"], settings["socket.connection.setup.timeout.ms"] * 3
            )
            / 1000,
            deadline=max(self.default_s, 0.001),
            connect_timeout=settings["socket.connection.setup.timeout.ms"] / 1000,
        )
        made.on_connected = self._connected
        return made

    def _connected(self, connection: Connection) -> None:
        if self.on_connected is not None:
            self.on_connected(connection)

    # -- one thread at a time

    def __enter__(self) -> Core:
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                raise ConsumerState(
                    "another thread is using this consumer: it serves one at a time"
                )
            self._owner = me
        self._depth += 1
        if self.closed:
            self.__exit__()
            raise ClientClosed("the consumer is closed")
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def wake(self) -> None:
        """The call that waits, or the next that would, raises WakeupError. Any thread."""
        if not self.closed:
            self._woken = True
            self.inbox.wake()

    def hurry(self) -> None:
        """The ``poll`` that waits, or the next one, returns what is there. Any thread."""
        if not self.closed:
            self._hurried = True
            self.inbox.wake()

    def forget_wake(self) -> None:
        """Whoever was to be woken, or to hurry, has returned."""
        self._woken = self._hurried = False

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup was called")

    # -- waiting

    def poll(self, timeout: float, kind: Kind, collect: Callable[[], list[Any]]) -> list[Any]:
        """What ``collect`` finds within ``timeout`` seconds; meanwhile everything is kept going.

        kind: of what it finds.
        """
        now = self._clock()
        deadline = now + timeout
        kept = self.collector.begin(kind)
        if kept:
            return kept
        if timeout <= 0:
            self.fetcher.receive()  # it waits for nothing, so what has arrived is taken first
        while True:
            self._check_woken()
            self.maintain(now)
            collected = self._collected(collect, now)
            if collected:
                return collected
            trouble = self.metadata.trouble
            if isinstance(trouble, ClientError) and not trouble.retriable:
                raise trouble  # such as a wrong password
            now = self._clock()
            if now >= deadline or self._hurried:
                self._tell_unreachable(now)
                return collected
            due = min(self._due_in(now), max(self.fetcher.due_in(now), 0.001))
            self.fetcher.wait(min(deadline - now, due))
            self.inbox.take()
            now = self._clock()

    def _collected(self, collect: Callable[[], list[Any]], now: float) -> list[Any]:
        """What is there; and more is asked for, whatever is wrong with one partition."""
        try:
            return collect()
        except ClientError:
            self.positions.look()  # what was wrong may be tried again
            raise
        except BaseException:
            self.collector.undo()
            raise
        finally:
            self.fetcher.send(now)

    def maintain(self, now: float, group: bool = True) -> None:
        """What is due: group, commits, metadata, positions. group: listeners may be called."""
        if not self.inbox.is_empty:
            self.inbox.take()
        if self.membership is not None and group:
            self.membership.poll(now)
        if self._auto_commit and now >= self._commit_at:
            self.commit_all(now)
        if self.commits is not None:
            self.commits.run_callbacks()
        self.metadata.maintain(now)
        self.positions.update(now)

    def _due_in(self, now: float) -> float:
        due = min(self.metadata.due_in(now), self.positions.due_in(now), 3600.0)
        due = min(due, self.fetcher.sets.due_in(now))
        if self.membership is not None:
            due = min(due, self.membership.due_in(now))
        if self._auto_commit and not self._is_committing:
            due = min(due, max(0.0, self._commit_at - now))
        # Something that cannot be done yet is not asked for without a pause.
        return max(due, 0.001)

    def until(
        self, done: Callable[[], bool], what: str, timeout: float, part: ReadPartition
    ) -> None:
        """Keep everything going until something of a partition is so. Raises what is wrong with it,
        Timeout, UnreachableError.
        """
        deadline = self._clock() + timeout
        while True:
            self._check_woken()
            now = self._clock()
            self.maintain(now, group=False)
            if done():
                return
            fault = self.fetcher.sets.fault(part)
            if fault is not None:
                self.positions.look()
                raise fault
            trouble = self.metadata.trouble
            if isinstance(trouble, ClientError) and not trouble.retriable:
                raise trouble
            if now >= deadline:
                if part.fault is not None:
                    raise part.fault  # it was said a moment ago
                if isinstance(self.metadata.trouble, UnreachableError):
                    raise UnreachableError(self.metadata.trouble.tried, timeout)
                raise Timeout(what, timeout, str(self.metadata.trouble or ""))
            self.inbox.wait(min(deadline - now, self._due_in(now)))
            self.inbox.take()

    def result(self, call: LaneCall, what: str, timeout: float) -> Any:
        """The result of a call in a lane, whose own deadline is in ``timeout`` seconds."""
        deadline = self._clock() + timeout + _GRACE_S
        while not call.done:
            self._check_woken()
            left = deadline - self._clock()
            if left <= 0:
                raise Timeout(what, timeout, call.doing())
            self.inbox.wait(left)
            self.inbox.take()
        if call.error is not None:
            raise call.error
        return call.result

    def ask(self, call: Callable[[Cluster, float], Result], what: str, timeout: float) -> Result:
        """The result of what may wait for brokers. call: gets a cluster and seconds."""
        made = self.lane.run(call, what, timeout)
        result: Result = self.result(made, what, timeout)
        return result

    def _tell_unreachable(self, now: float) -> None:
        """COMPAT: Java's ``poll`` waits for brokers for ever; this one waits for those that it has
        seen, for ``default.api.timeout.ms``.
        """
        trouble = self.metadata.trouble
        heard_at = self.metadata.heard_at
        if isinstance(trouble, UnreachableError) and (
            heard_at is None or now - heard_at >= self.default_s
        ):
            raise UnreachableError(trouble.tried)
        for topic, error in list(self.metadata.errors.items()):
            if not error.retriable and topic in self._topics_wanted():
                del self.metadata.errors[topic]
                self.metadata.want()
                raise error

    # -- metadata

    def _topics_wanted(self) -> set[str]:
        return set(self.topics) | {topic for topic, _ in self.fetcher.parts}

    def track(self) -> None:
        """Ask for the metadata of what is read."""
        self.metadata.track(None if self.pattern is not None else self._topics_wanted())

    def _on_metadata(self) -> None:
        self._on_leaders()
        if self.pattern is not None:
            self.match_pattern()
        counts = {
            name: len(topic.partitions)
            for name, topic in self.metadata.topics.items()
            if name in self.topics
        }
        if counts != self._counts:
            self._counts = counts
            if self.membership is not None:
                self.membership.topics_changed()

    def match_pattern(self) -> None:
        """The topics that the pattern stands for now."""
        assert self.pattern is not None
        excluded = self.settings["exclude.internal.topics"]
        topics = frozenset(
            name
            for name, topic in self.metadata.topics.items()
            if self.pattern.fullmatch(name) and not (excluded and topic.internal)
        )
        if self.metadata.heard_at is not None and topics != self.topics:
            self.topics = topics
            if self.membership is not None:
                self.membership.subscribe(topics)

    def _on_leaders(self) -> None:
        doubtful, replaced = self.fetcher.adopt_metadata()
        self.positions.leave(replaced)
        self.positions.compare(doubtful)
        self.positions.look()

    def _out_of_range(self, part: ReadPartition, error: OffsetOutOfRange) -> None:
        self.positions.out_of_range(part, error)

    # -- partitions

    def assign(self, keys: Iterable[Key]) -> None:
        """Read these partitions and no others; those that were read before keep their position."""
        wanted = dict.fromkeys(keys)
        self.fetcher.retain(wanted)
        for key in wanted:
            if key not in self.fetcher.parts:
                self.fetcher.parts[key] = ReadPartition(
                    key, self.settings["max.partition.fetch.bytes"], self.fetcher.sets.faults
                )
        self._committed = {key: at for key, at in self._committed.items() if key in wanted}
        self.positions.look()
        self.track()
        self._on_leaders()

    def part(self, partition: Any) -> ReadPartition:
        """Raises ConsumerState, TypeError."""
        topic, number = key_of(partition)
        part = self.fetcher.parts.get((topic, number))
        if part is None:
            raise ConsumerState(f"{topic}-{number} is not assigned to this consumer")
        return part

    # -- commits

    def identity(self) -> CommittingMember:
        """Who commits. Any thread."""
        membership = self.membership
        return CommittingMember() if membership is None else membership.identity()

    def renewed(self, was: CommittingMember, keys: Collection[Key]) -> CommittingMember | None:
        """See ``commits.Committer``. Any thread."""
        membership = self.membership
        return None if membership is None else membership.renewed(was, keys)

    def _look_up_committed(
        self, keys: Iterable[Key], then: Callable[[Any, Exception | None], None]
    ) -> None:
        assert self.commits is not None
        self.commits.look_up(keys, self.request_s, then)

    def consumed(self, keys: Iterable[Key] | None = None) -> dict[Key, OffsetAndMetadata]:
        """Positions to commit."""
        parts = self.fetcher.parts
        return {
            key: OffsetAndMetadata(part.position, "", part.epoch)
            for key, part in parts.items()
            if part.position is not None and (keys is None or key in set(keys))
        }

    def commit_all(self, now: float) -> None:
        """Begin to commit the positions that have moved, unless a commit is on its way."""
        if self._is_committing:
            return
        self._commit_at = now + self._commit_s
        offsets = self._moved()
        if offsets:
            assert self.commits is not None
            self._committing = self.commits.commit(
                offsets, self.request_s, self._noted, patient=False
            )

    @property
    def _is_committing(self) -> bool:
        """An automatic commit is on its way, whose end wakes."""
        return self._committing is not None and not self._committing.done

    def commit_soon(self) -> None:
        """The same, if that is automatic, before other partitions are assigned by hand."""
        if self._auto_commit:
            self.commit_all(self._clock())

    def stop_auto_commit(self) -> None:
        """Nothing is committed by itself any more."""
        self._auto_commit = False

    def _moved(self) -> dict[Key, OffsetAndMetadata]:
        return {
            key: row
            for key, row in self.consumed().items()
            if self._committed.get(key) != row.offset
        }

    def _noted(self, offsets: Mapping[Any, OffsetAndMetadata], error: Exception | None) -> None:
        if error is not None:
            logger.warning("cannot commit automatically: %s", error)
            return
        rows = {tuple(key): row.offset for key, row in offsets.items()}
        self._committed.update({key: at for key, at in rows.items() if key in self.fetcher.parts})

    def begin_commit_before_loss(self, timeout: float | None = None) -> LaneCall | None:
        """Commit positions, if that is automatic, before partitions are given up."""
        if not self._auto_commit or self.commits is None:
            return None
        offsets = self._moved()
        if not offsets:
            return None
        seconds = self.request_s if timeout is None else timeout
        return self.commits.commit(offsets, seconds, self._noted, patient=False)

    def commit_before_loss(self, timeout: float) -> None:
        """The same, and wait for it."""
        call = self.begin_commit_before_loss(timeout)
        if call is None:
            return
        try:
            self.result(call, "a commit", timeout)
        except WakeupError:
            self._woken = True
        except ClientError:
            pass  # `_noted` logs it

    def commit(self, offsets: Offsets, timeout: float) -> None:
        """Raises CommitFailed, Timeout, ..."""
        commits = self.grouped()
        try:
            call = commits.commit(offsets, timeout)
            self.result(call, f"a commit of group {commits.group}", timeout)
        finally:
            commits.run_callbacks()
        self._committed.update({key: row.offset for key, row in offsets.items()})

    def grouped(self) -> ConsumerCommits:
        """Raises ConsumerState without ``group.id``."""
        if self.commits is None:
            raise ConsumerState("group.id is not set: there is no group to commit for")
        return self.commits

    # -- the end

    def close(self, timeout: float) -> None:
        """Leave the group, end what runs, and close connections."""
        deadline = self._clock() + timeout
        with self:
            try:
                if self.membership is not None:
                    self.membership.close(max(0.0, deadline - self._clock()))
                else:
                    self.commit_before_loss(max(0.0, deadline - self._clock()))
            finally:
                self.closed = True
                self.fetcher.close(self._clock())
                if self.coordinator_lane is not None:
                    self.coordinator_lane.close(min(_CLOSE_LANES_S, timeout))
                for lane in self._lanes:
                    lane.close(0.0)
                interrupted = self._clock() + _INTERRUPTED_S
                for lane in self._lanes:
                    lane.join(max(0.0, interrupted - self._clock()))
                self.inbox.take()
                if self.commits is not None:
                    self.commits.run_callbacks()
                self.inbox.close()


def _client_id(group: str | None) -> str:
    number = next(_numbers)
    return f"consumer-{group}-{number}" if group else f"consumer-{number}"
