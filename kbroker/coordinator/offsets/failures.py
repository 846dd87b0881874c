"""Responses in which every part of the request has failed with the same error.

Used by the handlers here, and by network processes for errors on the way to the coordinator.
"""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from kbroker.protocol.messages.offset_delete import OffsetDeleteResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

NO_OFFSET = -1
# OffsetFetch: from here on the response, or each group in it, has its own error code.
FETCH_ERROR_VERSION, FETCH_GROUPS_VERSION = 2, 8


def commit_failure(request: OffsetCommitRequest, error: WireError) -> OffsetCommitResponse:
    """The error for every partition: OffsetCommit has no other place for it."""
    code = int(error.code)
    topic, partition = (
        OffsetCommitResponse.OffsetCommitResponseTopic,
        OffsetCommitResponse.OffsetCommitResponsePartition,
    )
    return OffsetCommitResponse(
        topics=[
            topic(
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[
                    partition(partition_index=p.partition_index, error_code=code)
                    for p in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


def txn_commit_failure(
    request: TxnOffsetCommitRequest, version: int, error: WireError
) -> TxnOffsetCommitResponse:
    """Like ``commit_failure``, with an error code that clients of this version know."""
    code = txn_commit_code(error.code, version)
    topic, partition = (
        TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
    )
    return TxnOffsetCommitResponse(
        topics=[
            topic(
                name=asked.name,
                partitions=[
                    partition(partition_index=p.partition_index, error_code=code)
                    for p in asked.partitions
                ],
            )
            for asked in request.topics
        ]
    )


def txn_commit_code(code: ErrorCode, version: int) -> int:
    """The code of an error in a response to TxnOffsetCommit of this version."""
    # COMPAT: clients before 2.0 fail permanently on the first; the others were added in later
    # versions.
    if version < 2 and code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if version < 3 and code == ErrorCode.PRODUCER_FENCED:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if version < 4 and code == ErrorCode.TRANSACTION_ABORTABLE:
        return int(ErrorCode.INVALID_TXN_STATE)
    if code == ErrorCode.STALE_MEMBER_EPOCH:
        return int(ErrorCode.ILLEGAL_GENERATION)
    return int(code)


def fetch_failure(
    request: OffsetFetchRequest, version: int, error: WireError
) -> OffsetFetchResponse:
    """The error for every group of the request."""
    if version >= FETCH_GROUPS_VERSION:
        return OffsetFetchResponse(
            groups=[fetch_group_failure(group.group_id, error) for group in request.groups]
        )
    return single_fetch_failure(request, version, error)


def fetch_group_failure(group_id: str, error: WireError) -> Any:
    """The entry of one group, version 8 on."""
    return OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group_id, error_code=int(error.code)
    )


def single_fetch_failure(
    request: OffsetFetchRequest, version: int, error: WireError
) -> OffsetFetchResponse:
    """A failure in versions below 8, for a single group."""
    code = int(error.code)
    if version >= FETCH_ERROR_VERSION:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def delete_failure(error: WireError) -> OffsetDeleteResponse:
    """OffsetDelete has a code for the whole request."""
    return OffsetDeleteResponse(error_code=int(error.code))
