"""Deletes offsets: by OffsetDelete (47), with their group, or with their topic.

A group or topic may have more offsets than one operation can write tombstones for. A timer deletes
the rest, but only what was committed before the deletion began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker._ext.coordinator.offset_records import encode_key
from kbroker.coordinator.group.group import CLASSIC, Group
from kbroker.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE
from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.offsets.batches import Tombstones, fits
from kbroker.coordinator.offsets.failures import delete_failure
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.coordinator.offsets.offsets import Offsets

TIMER = "offsets.deletion"
# After a step that could not be written.
RETRY_MS = 1_000
# BOUND: offsets looked up for one step; their tombstones need not all fit.
STEP_MAX = 4_096


class _Job:
    """The offsets of a group or a topic below ``log_end`` have to be deleted."""

    __slots__ = ("is_group", "log_end", "name", "start")

    def __init__(self, name: str, log_end: Offset, *, is_group: bool) -> None:
        self.name = name
        self.log_end = log_end
        self.is_group = is_group
        self.start = 0


class OffsetDeletion:
    """The handler, and the unfinished jobs."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._store = offsets.store
        self._machine = offsets.machine
        self._host = offsets.host
        self._jobs: deque[_Job] = deque()

    # -- OffsetDelete ----------------------------------------------------------------------------

    def handle(self, op: CoordinatorOperation, call: Call) -> OffsetDeleteResponse:
        """Delete single offsets of a group; not those of topics it is subscribed to."""
        request: OffsetDeleteRequest = call.request
        group_id = request.group_id
        group = self._machine.groups.get(group_id)
        if group is None and not self._store.has_group(group_id):
            return delete_failure(WireError(ErrorCode.GROUP_ID_NOT_FOUND))
        if group is not None and not allows_deletion(group):
            return delete_failure(WireError(ErrorCode.NON_EMPTY_GROUP))
        pending = self._store.pending_of(group_id)
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                code = self._rejection(group, topic.name, index)
                partitions.append(
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=index, error_code=int(code)
                    )
                )
                if code == ErrorCode.NONE and (
                    self._store.get(group_id, topic.name, index) is not None
                    or (topic.name, index) in pending
                ):
                    op.append_encoded(encode_key(group_id, topic.name, index), None)
            topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(
                    name=topic.name, partitions=partitions
                )
            )
        if not fits(self._host, op):
            op.records.clear()
            return delete_failure(WireError(ErrorCode.MESSAGE_TOO_LARGE))
        return OffsetDeleteResponse(topics=topics)

    def _rejection(self, group: Group | None, topic: str, partition: int) -> ErrorCode:
        known = self._host.image.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if group is not None and group.subscribes_to(topic):
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE

    # -- groups and topics -----------------------------------------------------------------------

    def delete_group(self, op: CoordinatorOperation, group_id: str) -> None:
        """Delete all offsets of the group; those that do not fit into this operation follow."""
        job = _Job(group_id, self._offsets.log_end, is_group=True)
        tombstones = Tombstones(op)
        self._run(op, tombstones, job)
        if tombstones.is_full:
            self._put_off([job])

    def delete_topics(self, op: CoordinatorOperation, topics: list[str]) -> None:
        """Delete the topics' offsets of every group, beginning with this operation.

        BOUND: one topic at a time, since all offsets are searched for it. If the tombstones cannot
        be written, the search is repeated, as there is no client to retry.
        """
        jobs = [_Job(topic, self._offsets.log_end, is_group=False) for topic in topics]
        if op.refusal is not None:
            self._put_off(jobs)
            return
        was_any = self._run(op, Tombstones(op), jobs[0])
        self._put_off(jobs if was_any else jobs[1:])

    def _put_off(self, jobs: list[_Job]) -> None:
        self._jobs.extend(jobs)
        if self._jobs:
            self._host.set_timer(TIMER, 0, self._step)

    def _step(self, op: CoordinatorOperation) -> None:
        """Continue the oldest job. It stays until nothing is left to delete: offsets whose
        tombstones could not be written are still in the store.
        """
        tombstones = Tombstones(op)
        while self._jobs and not self._run(op, tombstones, self._jobs[0]):
            self._jobs.popleft()
        if self._jobs:
            self._host.set_timer(TIMER, RETRY_MS, self._step)
            op.then(lambda: self._host.set_timer(TIMER, 0, self._step))

    def _run(self, op: CoordinatorOperation, tombstones: Tombstones, job: _Job) -> bool:
        """Append tombstones as far as they fit; returns whether there was anything to delete."""
        if job.is_group:
            keys = self._store.keys_of(job.name, job.log_end, STEP_MAX)
            self._append(tombstones, ((job.name, topic, index) for topic, index in keys))
            return bool(keys)
        committed, following = self._store.of_topic(job.name, job.log_end, job.start, STEP_MAX)
        self._append(tombstones, ((group_id, job.name, index) for group_id, index in committed))
        if not committed and job.start:
            job.start = 0  # start over, for tombstones that could not be written
            return True
        if not tombstones.is_full and following:

            def go_on() -> None:
                job.start = following

            op.then(go_on)
        return bool(committed)

    @staticmethod
    def _append(tombstones: Tombstones, keys: Iterable[tuple[str, str, int]]) -> None:
        # An offset that is committed and also pending in transactions is found several times.
        for key in dict.fromkeys(keys):
            if not tombstones.add(*key):
                return


def allows_deletion(group: Group) -> bool:
    """Whether offsets may be deleted: always in groups of consumers, whose topics are known."""
    return group.is_empty or group.kind != CLASSIC or group.protocol_type == CONSUMER_PROTOCOL_TYPE
