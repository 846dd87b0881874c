"""What errors of Produce mean for the batch."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode

# The leader is another one, or none.
MOVED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
# The broker's state of this producer does not fit: the batch was not appended.
OUT_OF_STEP = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
# It may have been appended, although it is reported as failed.
UNSURE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def words_of(row: Any) -> str | None:
    """A broker's message about a rejected batch, with the first bad record if it names one: for
    example its timestamp and the range that the topic accepts.
    """
    message: str | None = row.error_message
    records = row.record_errors or ()
    of_record = next((record.batch_index_error_message for record in records), None)
    if not of_record or of_record in (message or ""):
        return message
    return ": ".join(filter(None, [message, of_record]))
