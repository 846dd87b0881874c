"""Records of Apache Kafka's ``__cluster_metadata`` (KRaft): the types that a single broker needs.

WIRE: the value of a record is a frame version (1), the record's type and its version, all unsigned
varints, then the fields. Records have no keys. docs/formats/cluster-metadata.md.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.protocol import codec
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Message
from kbroker.protocol.primitives import encode_uvarint, read_uvarint

FRAME_VERSION = 1

# Of ConfigRecord.
TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
# Of PartitionChangeRecord.
LEADER_UNCHANGED = -2


class TopicRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    name      string  0+
    topic_id  uuid    0+
    """


class PartitionRecord(Message, versions=(0, 2), flexible=0):
    FIELDS = """
    partition_id               int32    0+  = -1
    topic_id                   uuid     0+
    replicas                   []int32  0+
    isr                        []int32  0+
    removing_replicas          []int32  0+
    adding_replicas            []int32  0+
    leader                     int32    0+  = -1
    leader_recovery_state      int8     0+  tag 0
    leader_epoch               int32    0+  = -1
    partition_epoch            int32    0+  = -1
    directories                []uuid   1+
    eligible_leader_replicas   []int32  2+  null 2+  = null  tag 1
    last_known_elr             []int32  2+  null 2+  = null  tag 2
    """


class PartitionChangeRecord(Message, versions=(0, 2), flexible=0):
    FIELDS = """
    partition_id               int32    0+  = -1
    topic_id                   uuid     0+
    isr                        []int32  0+  null 0+  = null  tag 0
    leader                     int32    0+  = -2  tag 1
    replicas                   []int32  0+  null 0+  = null  tag 2
    removing_replicas          []int32  0+  null 0+  = null  tag 3
    adding_replicas            []int32  0+  null 0+  = null  tag 4
    leader_recovery_state      int8     0+  = -1  tag 5
    directories                []uuid   1+  null 1+  = null  tag 8
    eligible_leader_replicas   []int32  2+  null 2+  = null  tag 6
    last_known_elr             []int32  2+  null 2+  = null  tag 7
    """


class ConfigRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    resource_type  int8    0+
    resource_name  string  0+
    name           string  0+
    value          string  0+  null 0+
    """


class RemoveTopicRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    topic_id  uuid  0+
    """


class FeatureLevelRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    name           string  0+
    feature_level  int16   0+
    """


class ProducerIdsRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    broker_id         int32  0+
    broker_epoch      int64  0+  = -1
    next_producer_id  int64  0+
    """


class UserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    name        string  0+
    mechanism   int8    0+
    salt        bytes   0+
    stored_key  bytes   0+
    server_key  bytes   0+
    iterations  int32   0+
    """


class RemoveUserScramCredentialRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    name       string  0+
    mechanism  int8    0+
    """


class ClientQuotaRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    entity         []EntityData  0+
      entity_type  string        0+
      entity_name  string        0+  null 0+
    key            string        0+
    value          float64       0+
    remove         bool          0+
    """


class AccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    id               uuid    0+
    resource_type    int8    0+
    resource_name    string  0+
    pattern_type     int8    0+
    principal        string  0+
    host             string  0+
    operation        int8    0+
    permission_type  int8    0+
    """


class RemoveAccessControlEntryRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    id  uuid  0+
    """


class BeginTransactionRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    name  string  0+  null 0+  = null  tag 0
    """


class EndTransactionRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = ""


class AbortTransactionRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    reason  string  0+  null 0+  = null  tag 0
    """


class ClearElrRecord(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    topic_name  string  0+
    """


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
