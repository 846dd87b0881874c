"""OffsetCommit (8) and TxnOffsetCommit (28), except for version 0 of the first.

COMPAT: the offsets of version 0 are in the metadata store, and network processes handle it
(``handlers.support.stored_offsets``). A request of version 0 that comes here is treated like
version 1 without a member.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbroker._ext.coordinator.offset_records import encode_key, encode_value
from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.offsets.batches import fits
from kbroker.coordinator.offsets.failures import commit_failure, txn_commit_failure
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import OFFSET_COMMITS
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from kbroker.cluster.image import TopicImage
    from kbroker.coordinator.offsets.offsets import Offsets

NO_TIMESTAMP = -1
TIMESTAMP_MAX = 2**63 - 1

NONE = int(ErrorCode.NONE)
TOO_LARGE = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
UNKNOWN_ID = int(ErrorCode.UNKNOWN_TOPIC_ID)


class Commits:
    """The handlers; a commit only produces records."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._machine = offsets.machine
        self._host = offsets.host
        self._topic = OffsetCommitResponse.OffsetCommitResponseTopic
        self._partition = OffsetCommitResponse.OffsetCommitResponsePartition

    def handle(self, op: CoordinatorOperation, call: Call) -> OffsetCommitResponse:
        """OffsetCommit. Most take the fast path instead (``_ext/coordinator/commit_path``)."""
        request: OffsetCommitRequest = call.request
        version = call.version
        try:
            self._check_member(request, version)
            op.ensure_writable()
        except WireError as error:
            return self._rejected(request, version, error)
        host = self._host
        now_ms = host.wall_ms()
        expires_ms = NO_TIMESTAMP
        if request.retention_time_ms != -1:
            # COMPAT: an explicit expiry starts now, whatever the broker's retention.
            expires_ms = min(now_ms + request.retention_time_ms, TIMESTAMP_MAX)
        topics = []
        for topic in request.topics:
            name = topic.name
            unknown = UNKNOWN_PARTITION
            if version >= 10:
                known = host.image.topics_by_id.get(topic.topic_id)
                if known is None:
                    unknown = UNKNOWN_ID
                else:
                    name = known.name
            else:
                known = host.image.topics.get(name)
            count = 0 if known is None else len(known.partitions)
            partitions = []
            for partition in topic.partitions:
                code = unknown
                if 0 <= partition.partition_index < count:
                    stamp = partition.commit_timestamp
                    code = self._append(
                        op,
                        request.group_id,
                        name,
                        partition,
                        now_ms if stamp == NO_TIMESTAMP else stamp,
                        expires_ms,
                    )
                partitions.append(
                    self._partition(partition_index=partition.partition_index, error_code=code)
                )
            topics.append(
                self._topic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
        if not self._fits(op):
            return commit_failure(request, WireError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
        return OffsetCommitResponse(topics=topics)

    def handle_transactional(self, op: CoordinatorOperation, call: Call) -> TxnOffsetCommitResponse:
        """TxnOffsetCommit: the offsets become valid with the transaction's marker."""
        request: TxnOffsetCommitRequest = call.request
        try:
            self._check_producer(request, call.version)
            op.ensure_writable()
        except WireError as error:
            return self.reject_transactional(request, call.version, error)
        op.producer = (request.producer_id, request.producer_epoch)
        now_ms = self._host.wall_ms()
        topics = []
        for topic in request.topics:
            known = self._host.image.topics.get(topic.name)
            count = 0 if known is None else len(known.partitions)
            partitions = []
            for partition in topic.partitions:
                code = UNKNOWN_PARTITION
                if 0 <= partition.partition_index < count:
                    code = self._append(
                        op, request.group_id, topic.name, partition, now_ms, NO_TIMESTAMP
                    )
                partitions.append(
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                )
            topics.append(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name=topic.name, partitions=partitions
                )
            )
        if not self._fits(op):
            too_large = WireError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
            return txn_commit_failure(request, call.version, too_large)
        return TxnOffsetCommitResponse(topics=topics)

    def _append(
        self,
        op: CoordinatorOperation,
        group_id: str,
        topic: str,
        partition: Any,
        timestamp_ms: int,
        expires_ms: int,
    ) -> int:
        metadata = partition.committed_metadata or ""
        if len(metadata) > self._host.config["offset.metadata.max.bytes"]:
            return TOO_LARGE
        op.append_encoded(
            encode_key(group_id, topic, partition.partition_index),
            encode_value(
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                timestamp_ms,
                expires_ms,
            ),
        )
        return NONE

    def _fits(self, op: CoordinatorOperation) -> bool:
        """Count the committed offsets; False, with nothing committed, if they do not fit in a
        batch.
        """
        if not fits(self._host, op):
            op.records.clear()
            return False
        self._host.count(OFFSET_COMMITS, len(op.records))
        return True

    # -- who may commit --------------------------------------------------------------------------

    def _rejected(
        self, request: OffsetCommitRequest, version: int, error: WireError
    ) -> OffsetCommitResponse:
        """The response with the error for every partition; unknown partitions have their own.

        COMPAT: Kafka looks at them before it asks the group.
        """
        response = commit_failure(request, error)
        image = self._host.image
        for topic in response.topics:
            if version < 10:
                _mark_unknown(topic, image.topics.get(topic.name), UNKNOWN_PARTITION)
            else:
                known = image.topics_by_id.get(topic.topic_id)
                _mark_unknown(topic, known, UNKNOWN_PARTITION if known else UNKNOWN_ID)
        return response

    def reject_transactional(
        self, request: TxnOffsetCommitRequest, version: int, error: WireError
    ) -> TxnOffsetCommitResponse:
        """Like the rejection of an OffsetCommit."""
        response = txn_commit_failure(request, version, error)
        for topic in response.topics:
            _mark_unknown(topic, self._host.image.topics.get(topic.name), UNKNOWN_PARTITION)
        return response

    def _check_member(self, request: OffsetCommitRequest, version: int) -> None:
        group = self._machine.groups.get(request.group_id)
        epoch = request.generation_id_or_member_epoch
        if group is not None:
            group.check_commit(
                request.member_id,
                request.group_instance_id,
                epoch,
                version=version,
                partitions=self._partitions(request, version >= 10),
            )
        elif epoch >= 0:
            # Without a member id, any client may commit to a group without members of its own type.
            if self._offsets.store.has_group(request.group_id):
                raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
            # COMPAT: version 9 introduced the specific error code.
            raise WireError(
                ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
            )

    def _partitions(self, request: Any, by_id: bool) -> Iterator[tuple[bytes | None, int]]:
        """The committed partitions by topic id; needed only for a member with an old epoch."""
        for topic in request.topics:
            topic_id = topic.topic_id if by_id else None
            if not by_id and topic.name in self._host.image.topics:
                topic_id = self._host.image.topics[topic.name].topic_id
            for partition in topic.partitions:
                yield topic_id, partition.partition_index

    def _check_producer(self, request: TxnOffsetCommitRequest, version: int) -> None:
        if request.producer_id < 0 or request.producer_epoch < 0:
            raise WireError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        group = self._machine.groups.get(request.group_id)
        epoch = request.generation_id
        if group is not None:
            group.check_commit(
                request.member_id,
                request.group_instance_id,
                epoch,
                version=version,
                transactional=True,
                partitions=self._partitions(request, False),
            )
        elif epoch >= 0:
            if self._offsets.store.has_group(request.group_id):
                raise WireError(ErrorCode.UNKNOWN_MEMBER_ID)
            raise WireError(ErrorCode.ILLEGAL_GENERATION)


def _mark_unknown(topic: Any, known: TopicImage | None, code: int) -> None:
    """Set the code of partitions in a response that the topic does not have."""
    count = 0 if known is None else len(known.partitions)
    for partition in topic.partitions:
        if not 0 <= partition.partition_index < count:
            partition.error_code = code
