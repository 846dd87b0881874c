"""Commits of offsets, one after the other, and what is committed."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.batches.offsets import committed, named_error
from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.consumer.lanes import Lane, LaneCall
from kbroker.client.consumer.partitions import OffsetAndMetadata, TopicPartition
from kbroker.client.consumer.surroundings import Clock
from kbroker.client.errors import ClientError, CommitFailed, RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest

logger = logging.getLogger(__name__)

NO_GENERATION = -1
# The member is no longer one, or not in that generation: others may read its partitions.
_LOST = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
LOST_WORDS = (
    "the group has rebalanced meanwhile, and gives the partitions to others; poll more often, "
    "raise max.poll.interval.ms, or lower max.poll.records"
)

Offsets = Mapping[Key, OffsetAndMetadata]
Callback = Callable[[dict[TopicPartition, OffsetAndMetadata], Exception | None], Any]


class CommittingMember(NamedTuple):
    """Of a member in commits. generation: or the member's epoch; NO_GENERATION without a group's
    assignment.
    """

    generation: int = NO_GENERATION
    member: str = ""
    instance: str | None = None


class Committer(Protocol):
    """Who commits: a member of the group, or nobody in particular."""

    def identity(self) -> CommittingMember:
        """Who it is now. Raises ClientError while it is no member."""

    def renewed(self, was: CommittingMember, keys: Collection[Key]) -> CommittingMember | None:
        """Who it is now, if that may commit what it has read of these partitions as ``was``; None
        if others may have had one of them since. Any thread.
        """


class ConsumerCommits:
    """In the thread that polls. INVARIANT: a commit is of whom it was made by, whenever it is sent.

    committer: who makes it.
    """

    def __init__(
        self, group: str, lane: Lane, committer: Committer, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self.group = group
        self._lane = lane
        self._committer = committer
        self._ended: deque[tuple[Callback, Offsets, Exception | None]] = deque()
        self.interceptors: Iterable[Any] = ()
        self.counts = {"commits": 0, "latency_us": 0}

    def commit(
        self,
        offsets: Offsets,
        deadline: float,
        callback: Callback | None = None,
        patient: bool = True,
    ) -> LaneCall:
        """Begin a commit, which takes at most ``deadline`` seconds. callback: called by
        ``run_callbacks``. patient: False does not wait for topics that are not there (any more).
        """
        began = self._clock()
        sender: _Sender | ClientError
        try:
            sender = _Sender(self._committer.identity(), self._committer, offsets.keys())
        except ClientError as error:
            sender = error

        def ended(result: Any, error: Exception | None) -> None:
            self.counts["commits"] += 1
            self.counts["latency_us"] += int((self._clock() - began) * 1e6)
            if error is None:
                self._tell_interceptors(offsets)
            if callback is not None:
                self._ended.append((callback, offsets, error))
            elif error is not None:
                logger.debug("commit of group %s: %s", self.group, error)

        def send(cluster: Cluster, seconds: float) -> None:
            if isinstance(sender, ClientError):
                raise sender
            commit(cluster, self.group, offsets, sender, seconds, patient)

        return self._lane.run(send, f"a commit of group {self.group}", deadline, ended)

    def _tell_interceptors(self, offsets: Offsets) -> None:
        told = {TopicPartition(*key): row for key, row in offsets.items()}
        for one in self.interceptors:
            try:
                if hasattr(one, "on_commit"):
                    one.on_commit(told)
            except Exception:
                logger.exception("on_commit of %r raised an error", one)

    def run_callbacks(self) -> None:
        """Those of commits that have ended."""
        while self._ended:
            callback, offsets, error = self._ended.popleft()
            try:
                callback({TopicPartition(*key): row for key, row in offsets.items()}, error)
            except Exception:
                logger.exception("a callback of a commit raised an error")

    def look_up(
        self,
        keys: Iterable[Key],
        deadline: float,
        then: Callable[[Any, Exception | None], Any] | None = None,
    ) -> LaneCall:
        """Begin to look up committed offsets, behind the commits before. then: as ``Lane.run`` has
        it, for a caller who asks again by himself; so others do not wait for that.
        """
        wanted, once = list(keys), then is not None
        return self._lane.run(
            lambda cluster, seconds: committed(
                cluster, self.group, wanted, deadline=seconds, once=once
            ),
            f"committed offsets of group {self.group}",
            deadline,
            then,
        )


class _Sender:
    """Of one commit, over all of its attempts."""

    def __init__(self, who: CommittingMember, committer: Committer, keys: Collection[Key]) -> None:
        self.who = who
        self._committer = committer
        self._keys = keys

    def renew(self) -> bool:
        """The coordinator says that there is a newer epoch: whether the commit still holds in it.

        A heartbeat brings that epoch, perhaps only later.
        """
        renewed = self._committer.renewed(self.who, self._keys)
        self.who = renewed or self.who
        return renewed is not None


def commit(
    cluster: Cluster,
    group: str,
    offsets: Offsets,
    sender: _Sender,
    deadline: float,
    patient: bool,
) -> None:
    """Commit until it is done. Raises CommitFailed, RejectedError, Timeout, ..."""
    if not offsets:
        return
    what = f"commit offsets of group {group}"
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), row in offsets.items():
        by_topic[topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=row.offset,
                committed_leader_epoch=row.leader_epoch,
                committed_metadata=row.metadata,
            )
        )
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=rows)
        for name, rows in by_topic.items()
    ]

    def request(connection: Connection, node: int) -> OffsetCommitRequest:
        who = sender.who
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=who.generation,
            member_id=who.member,
            group_instance_id=who.instance,
            topics=topics,
        )

    def error_of(response: Any) -> int:
        return _error(what, response, sender, patient)

    cluster.call_coordinator(group, GROUP, request, error_of, what=what, deadline=deadline)


def _error(what: str, response: Any, sender: _Sender, patient: bool) -> int:
    for topic in response.topics:
        for row in topic.partitions:
            code = row.error_code
            if code in _LOST:
                raise CommitFailed(code, what, LOST_WORDS)
            if code == ErrorCode.STALE_MEMBER_EPOCH:
                if not sender.renew():
                    raise CommitFailed(code, what, LOST_WORDS)
                stale = RejectedError(code, what)
                stale.retriable = True
                raise stale
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not patient:
                gone = RejectedError(code, f"{what}: {topic.name}-{row.partition_index}")
                gone.retriable = False  # the others of the request are committed
                raise gone
            if code:
                return named_error(what, code, (topic.name, row.partition_index))
    return 0
