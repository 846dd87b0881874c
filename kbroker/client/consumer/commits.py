"""Commits of offsets, one after the other, and what is committed."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.client.cluster import GROUP, Cluster
from kbroker.client.connection import Connection
from kbroker.client.consumer.lanes import Call, Lane
from kbroker.client.consumer.partitions import OffsetAndMetadata, TopicPartition
from kbroker.client.errors import CommitFailed, RejectedError
from kbroker.client.offsets import TopicPartition as Key
from kbroker.client.offsets import committed, named_error
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


class Identity(NamedTuple):
    """Of a member in commits. generation: or the member's epoch; NO_GENERATION without a group's
    assignment.
    """

    generation: int = NO_GENERATION
    member: str = ""
    instance: str | None = None


class Commits:
    """identity: who commits, asked in the lane's thread before each attempt; raises ClientError
    while the member has none. Everything else is of the thread that polls.
    """

    def __init__(self, group: str, lane: Lane, identity: Callable[[], Identity]) -> None:
        self.group = group
        self._lane = lane
        self._identity = identity
        self._ended: deque[tuple[Callback, Offsets, Exception | None]] = deque()
        self.interceptors: Iterable[Any] = ()
        self.counts = {"commits": 0, "latency_us": 0}

    def commit(self, offsets: Offsets, deadline: float, callback: Callback | None = None) -> Call:
        """Begin a commit. callback: called by ``run_callbacks``."""
        began = time.monotonic()

        def ended(result: Any, error: Exception | None) -> None:
            self.counts["commits"] += 1
            self.counts["latency_us"] += int((time.monotonic() - began) * 1e6)
            if error is None:
                self._tell_interceptors(offsets)
            if callback is not None:
                self._ended.append((callback, offsets, error))
            elif error is not None:
                logger.debug("commit of group %s: %s", self.group, error)

        return self._lane.run(
            lambda cluster: commit(cluster, self.group, offsets, self._identity, deadline), ended
        )

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
    ) -> Call:
        """Begin to look up committed offsets, behind the commits before. then: as ``Lane.run`` has
        it, for a caller who asks again by himself; so others do not wait for that.
        """
        wanted, once = list(keys), then is not None
        return self._lane.run(
            lambda cluster: committed(cluster, self.group, wanted, deadline=deadline, once=once),
            then,
        )


def commit(
    cluster: Cluster,
    group: str,
    offsets: Offsets,
    identity: Callable[[], Identity],
    deadline: float,
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
        who = identity()
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=who.generation,
            member_id=who.member,
            group_instance_id=who.instance,
            topics=topics,
        )

    cluster.call_coordinator(
        group, GROUP, request, lambda response: _error(what, response), what=what, deadline=deadline
    )


def _error(what: str, response: Any) -> int:
    for topic in response.topics:
        for row in topic.partitions:
            code = row.error_code
            if code in _LOST:
                raise CommitFailed(code, what, LOST_WORDS)
            if code == ErrorCode.STALE_MEMBER_EPOCH:
                stale = RejectedError(code, what)
                stale.retriable = True  # with the next epoch, which a heartbeat brings
                raise stale
            if code:
                return named_error(what, code, (topic.name, row.partition_index))
    return 0


def as_committed(given: Mapping[Any, Any]) -> dict[Key, OffsetAndMetadata]:
    """Offsets as users give them: (topic, partition) -> offset, (offset, metadata), or
    OffsetAndMetadata. Raises TypeError, ValueError.
    """
    found = {}
    for key, value in given.items():
        topic, partition = key
        row = OffsetAndMetadata(value) if isinstance(value, int) else OffsetAndMetadata(*value)
        if row.offset < 0:
            raise ValueError(f"{topic}-{partition}: offset {row.offset} is negative")
        found[str(topic), int(partition)] = row
    return found
