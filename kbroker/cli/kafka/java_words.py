"""How Java names errors, and the order in which its hash maps keep their keys: both are in what
Kafka's tools print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kbroker.client.errors import ClientError
    from kbroker.errors import ErrorCode

T = TypeVar("T")
_PACKAGE = "org.apache.kafka.common.errors."
# COMPAT: what the Java client says where a broker does not; our own words for the codes are others.
_MESSAGES = {
    "CLUSTER_AUTHORIZATION_FAILED": "Cluster authorization failed.",
    "COORDINATOR_NOT_AVAILABLE": "The coordinator is not available.",
    "ELECTION_NOT_NEEDED": "Leader election not needed for topic partition.",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "Eligible topic partition leaders are not available.",
    "GROUP_AUTHORIZATION_FAILED": "Group authorization failed.",
    "GROUP_ID_NOT_FOUND": "The group id does not exist.",
    "GROUP_SUBSCRIBED_TO_TOPIC": "Deleting offsets of a topic is forbidden while the consumer "
    "group is actively subscribed to it.",
    "INVALID_GROUP_ID": "The configured groupId is invalid.",
    "INVALID_TOPIC_EXCEPTION": "The request attempted to perform an operation on an invalid topic.",
    "KAFKA_STORAGE_ERROR": "Disk error when trying to access log file on the disk.",
    "NON_EMPTY_GROUP": "The group is not empty.",
    "NO_REASSIGNMENT_IN_PROGRESS": "No partition reassignment is in progress.",
    "OFFSET_OUT_OF_RANGE": "The requested offset is not within the range of offsets maintained by "
    "the server.",
    "PREFERRED_LEADER_NOT_AVAILABLE": "The preferred leader was not available.",
    "REASSIGNMENT_IN_PROGRESS": "A partition reassignment is in progress.",
    "TOPIC_AUTHORIZATION_FAILED": "Topic authorization failed.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Transactional Id authorization failed.",
    "TRANSACTIONAL_ID_NOT_FOUND": "The transactionalId could not be found.",
    "UNKNOWN_MEMBER_ID": "The coordinator is not aware of this member.",
    "UNKNOWN_TOPIC_OR_PARTITION": "This server does not host this topic-partition.",
}
# Those whose class is not the name of the code in camel case with "Exception" behind.
_CLASSES = {
    "CORRUPT_MESSAGE": "CorruptRecordException",
    "DUPLICATE_SEQUENCE_NUMBER": "DuplicateSequenceException",
    "INVALID_CONFIG": "InvalidConfigurationException",
    "INVALID_TOPIC_EXCEPTION": "InvalidTopicException",
    "INVALID_TXN_STATE": "InvalidTxnStateException",
    "KAFKA_STORAGE_ERROR": "KafkaStorageException",
    "MESSAGE_TOO_LARGE": "RecordTooLargeException",
    "NETWORK_EXCEPTION": "NetworkException",
    "NON_EMPTY_GROUP": "GroupNotEmptyException",
    "OFFSET_METADATA_TOO_LARGE": "OffsetMetadataTooLarge",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "OutOfOrderSequenceException",
    "RECORD_LIST_TOO_LARGE": "RecordBatchTooLargeException",
    "REQUEST_TIMED_OUT": "TimeoutException",
    "SASL_AUTHENTICATION_FAILED": "SaslAuthenticationException",
    "STALE_CONTROLLER_EPOCH": "ControllerMovedException",
    "TOPIC_ALREADY_EXISTS": "TopicExistsException",
    "UNKNOWN_SERVER_ERROR": "UnknownServerException",
}


def java_class(code: ErrorCode) -> str:
    """The exception of Kafka's Java client for an error code."""
    name = code.name.removesuffix("_FAILED") if "AUTHORIZATION" in code.name else code.name
    camel = "".join(part.capitalize() for part in name.split("_"))
    return _PACKAGE + _CLASSES.get(code.name, f"{camel}Exception")


def java_message(error: ClientError) -> str:
    """``getMessage()``: a broker's own words, or Kafka's for its code."""
    code = error.code
    words = getattr(error, "message", None)
    if words:
        return str(words)
    if code is not None and hasattr(error, "what"):
        return code_message(code)
    return str(error)


def code_message(code: ErrorCode) -> str:
    """What the Java client says of a code."""
    return _MESSAGES.get(code.name, code.message)


def java_text(error: ClientError) -> str:
    """``toString()``."""
    message = java_message(error)
    return f"{java_class(error.code)}: {message}" if error.code is not None else message


# -- order


def string_hash(text: str) -> int:
    """``String.hashCode()``, unsigned."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8) + data[at + 1]) & 0xFFFFFFFF
    return value


def partition_hash(key: tuple[str, int]) -> int:
    """``TopicPartition.hashCode()``, unsigned."""
    topic, partition = key
    return (31 * (31 + partition) + string_hash(topic)) & 0xFFFFFFFF


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int], capacity: int = 16) -> list[T]:
    """The keys as a ``HashMap`` into which they are put in this order iterates over them.

    capacity: that it is made with. Keys of the same bucket stay in the order given: Java's may
    differ where maps were copied from each other.
    """
    distinct = list(dict.fromkeys(keys))
    size = 1
    while size < capacity:
        size *= 2
    while len(distinct) > size * 3 // 4:
        size *= 2

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ (value >> 16)) & (size - 1)

    return sorted(distinct, key=bucket)
