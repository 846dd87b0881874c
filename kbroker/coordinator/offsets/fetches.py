"""OffsetFetch (9): a group's committed offsets; version 0 reads the metadata store instead.

COMPAT: a group or partition without an offset has offset -1 and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.offsets.failures import (
    FETCH_GROUPS_VERSION,
    NO_OFFSET,
    fetch_group_failure,
    single_fetch_failure,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.primitives import NO_UUID

if TYPE_CHECKING:
    from kbroker._ext.coordinator.offset_store import OffsetStore
    from kbroker.coordinator.offsets.offsets import Offsets

BY_ID_VERSION = 10
NOTHING = (NO_OFFSET, -1, "", None)
UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
UNKNOWN_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)


class Fetches:
    """The handler; it changes nothing."""

    def __init__(self, offsets: Offsets) -> None:
        self._store = offsets.store
        self._machine = offsets.machine
        self._host = offsets.host

    def handle(self, op: CoordinatorOperation, call: Call) -> OffsetFetchResponse:
        """Serve a whole request, for one group or several."""
        request: OffsetFetchRequest = call.request
        if call.version >= FETCH_GROUPS_VERSION:
            return OffsetFetchResponse(
                groups=[
                    self.fetch(
                        op,
                        group.group_id,
                        group.member_id,
                        group.member_epoch,
                        group.topics,
                        request.require_stable,
                        call.version >= BY_ID_VERSION,
                    )
                    for group in request.groups
                ]
            )
        try:
            self._check_member(request.group_id, None, -1)
        except WireError as error:
            return single_fetch_failure(request, call.version, error)
        find = _Finder(self._store, request.group_id, request.require_stable, in_groups=False)
        topic = OffsetFetchResponse.OffsetFetchResponseTopic
        if request.topics is None:
            offsets = find.everything()
        else:
            offsets = [
                (t.name, find.partitions(t.name, t.partition_indexes)) for t in request.topics
            ]
        return OffsetFetchResponse(
            topics=[topic(name=name, partitions=partitions) for name, partitions in offsets]
        )

    def fetch(
        self,
        op: CoordinatorOperation,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        topics: Sequence[Any] | None,
        require_stable: bool,
        by_topic_id: bool,
    ) -> Any:
        """The entry of one group in version 8 and later: OffsetFetchResponseGroup.

        topics: OffsetFetchRequestTopics; None: all the group has committed to.
        """
        try:
            self._check_member(group_id, member_id, member_epoch)
        except WireError as error:
            return fetch_group_failure(group_id, error)
        find = _Finder(self._store, group_id, require_stable, in_groups=True)
        entry = OffsetFetchResponse.OffsetFetchResponseTopics
        image = self._host.image
        entries = []
        if topics is None:
            for name, partitions in find.everything():
                known = image.topics.get(name)
                if known is not None:
                    entries.append(entry(name=name, topic_id=known.topic_id, partitions=partitions))
                elif not by_topic_id:
                    entries.append(entry(name=name, partitions=partitions))
        elif not by_topic_id:
            for topic in topics:
                partitions = find.partitions(topic.name, topic.partition_indexes)
                entries.append(entry(name=topic.name, partitions=partitions))
        else:
            for topic in topics:
                known = image.topics_by_id.get(topic.topic_id)
                if known is None:
                    partitions = find.unknown(topic.partition_indexes)
                else:
                    partitions = find.partitions(
                        known.name, topic.partition_indexes, topic.topic_id
                    )
                entries.append(entry(topic_id=topic.topic_id, partitions=partitions))
        return OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group_id, topics=entries)

    def _check_member(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        group = self._machine.groups.get(group_id)
        if group is None:
            return
        try:
            group.check_fetch(member_id, member_epoch)
        except WireError as error:
            # COMPAT: a deleted group has no offsets, which is not an error.
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


class _Finder:
    """Looks up the offsets of one group for one response."""

    __slots__ = ("_asked", "_entry", "_group_id", "_pending", "_store")

    def __init__(
        self, store: OffsetStore, group_id: str, require_stable: bool, *, in_groups: bool
    ) -> None:
        self._store = store
        self._group_id = group_id
        self._asked: dict[str, set[int]] = {}  # what was answered, by topic
        # WIRE: the same fields in two structs, one for each place in the response.
        self._entry: Any = (
            OffsetFetchResponse.OffsetFetchResponsePartitions
            if in_groups
            else OffsetFetchResponse.OffsetFetchResponsePartition
        )
        self._pending: set[tuple[str, int]] = set()
        if require_stable and store.has_pending(group_id):
            self._pending = store.pending_of(group_id)

    def partitions(
        self, topic: str, indexes: Sequence[int], topic_id: bytes = NO_UUID
    ) -> list[Any]:
        """The requested partitions without repetitions: metadata may be a thousand times as long as
        a number. topic_id: excludes offsets of another topic with the same name.
        """
        get, group_id = self._store.get, self._group_id
        asked = self._asked.setdefault(topic, set())
        rows = []
        for index in indexes:
            if index in asked:
                continue
            asked.add(index)
            known = get(group_id, topic, index)
            if known is not None and known[3] is not None and topic_id != NO_UUID:
                known = known if known[3] == topic_id else None
            rows.append(self._partition(topic, index, known or NOTHING))
        return rows

    def everything(self) -> list[tuple[str, list[Any]]]:
        topics: dict[str, list[Any]] = {}
        for topic, index, known in self._store.of_group(self._group_id):
            topics.setdefault(topic, []).append(self._partition(topic, index, known))
        return list(topics.items())

    def unknown(self, indexes: Sequence[int]) -> list[Any]:
        """The entries of an unknown topic id."""
        return [
            self._entry(
                partition_index=index,
                committed_offset=NO_OFFSET,
                metadata="",
                error_code=UNKNOWN_ID,
            )
            for index in indexes
        ]

    def _partition(self, topic: str, index: int, known: tuple[int, int, str, bytes | None]) -> Any:
        code = 0
        if self._pending and (topic, index) in self._pending:
            # A transaction will replace it, or not: the client asks again.
            known, code = NOTHING, UNSTABLE
        return self._entry(
            partition_index=index,
            committed_offset=known[0],
            committed_leader_epoch=known[1],
            metadata=known[2],
            error_code=code,
        )
