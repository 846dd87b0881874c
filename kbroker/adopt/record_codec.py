"""Metadata records of KRaft as bytes: their numbers, reading and writing.

WIRE: the value of a record is a frame version (1), the record's type and its version, all unsigned
varints, then the fields. docs/formats/cluster-metadata.md.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.adopt.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from kbroker.protocol import codec
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Message
from kbroker.protocol.primitives import encode_uvarint, read_uvarint

FRAME_VERSION = 1

TYPES: dict[int, type[Message]] = {
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    9: RemoveTopicRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    28: ClearElrRecord,
}
# Known, but irrelevant to a standalone broker: registrations of brokers and controllers, fencing,
# delegation tokens, the state of a migration from ZooKeeper, no-ops.
PASSED_OVER = frozenset({0, 1, 7, 8, 10, 17, 20, 21, 26, 27, 29})
_NUMBERS = {cls: number for number, cls in TYPES.items()}


class UnknownRecord(NamedTuple):
    """A record that is skipped, because its type is not used here or unknown."""

    kind: int
    version: int


def decode_record(value: bytes) -> Message | UnknownRecord:
    """Decode one record. Raises DecodeError, also for a newer version of a required record."""
    if not value:
        raise DecodeError("an empty metadata record")
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except IndexError as error:
        raise DecodeError("a metadata record that is cut off in its frame") from error
    if frame != FRAME_VERSION:
        raise DecodeError(f"frame version {frame} of a metadata record")
    cls = TYPES.get(kind)
    if cls is None:
        return UnknownRecord(kind, version)
    if not cls.VERSIONS[0] <= version <= cls.VERSIONS[1]:
        raise DecodeError(f"{cls.__name__} has version {version}, from a newer Kafka")
    return codec.decode_exact(cls, version, value, position)


def encode_record(record: Message, version: int = 0) -> bytes:
    """The value of a record of ``__cluster_metadata``."""
    kind = _NUMBERS[type(record)]
    head = b"".join(map(encode_uvarint, (FRAME_VERSION, kind, version)))
    return head + codec.encode(record, version)
