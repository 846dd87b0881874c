"""Records of ``__consumer_offsets``: committed offsets and groups.

RECORDS numbers them by what the first two bytes of a key say ("apiKey" in Kafka's definitions).
"""

from kbroker.coordinator.records.codec import RecordTypes
from kbroker.protocol.message import Message


class LegacyOffsetCommitKey(Message, versions=(0, 0)):
    FIELDS = """
    group      string  0
    topic      string  0
    partition  int32   0
    """


class LegacyOffsetCommitValue(Message, versions=(0, 0)):
    FIELDS = """
    offset            int64   0
    metadata          string  0
    commit_timestamp  int64   0
    """


class OffsetCommitKey(Message, versions=(0, 0)):
    FIELDS = """
    group      string  0
    topic      string  0
    partition  int32   0
    """


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    FIELDS = """
    offset            int64   0+
    leader_epoch      int32   3+  = -1  ignorable
    metadata          string  0+
    commit_timestamp  int64   0+
    expire_timestamp  int64   1   = -1  ignorable
    topic_id          uuid    4+  tag 0  ignorable
    """


class GroupMetadataKey(Message, versions=(0, 0)):
    FIELDS = """
    group  string  0
    """


class GroupMetadataValue(Message, versions=(0, 4), flexible=4):
    FIELDS = """
    protocol_type            string            0+
    generation               int32             0+
    protocol                 string            0+  null 0+
    leader                   string            0+  null 0+
    current_state_timestamp  int64             2+  = -1  ignorable
    members                  []MemberMetadata  0+
      member_id              string            0+
      group_instance_id      string            3+  null 3+  = null  ignorable
      client_id              string            0+
      client_host            string            0+
      rebalance_timeout      int32             1+  = -1  ignorable
      session_timeout        int32             0+
      subscription           bytes             0+
      assignment             bytes             0+
    """


class ConsumerGroupMetadataKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id  string  0
    """


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    epoch          int32  0+
    metadata_hash  int64  0+  tag 0
    """


class ConsumerGroupPartitionMetadataKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id  string  0
    """


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    topics                []TopicMetadata      0+
      topic_id            uuid                 0+
      topic_name          string               0+
      num_partitions      int32                0+
      partition_metadata  []PartitionMetadata  0+
        partition         int32                0+
        racks             []string             0+
    """


class ConsumerGroupMemberMetadataKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id   string  0
    member_id  string  0
    """


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    instance_id              string                 0+  null 0+
    rack_id                  string                 0+  null 0+
    client_id                string                 0+
    client_host              string                 0+
    subscribed_topic_names   []string               0+
    subscribed_topic_regex   string                 0+  null 0+
    rebalance_timeout_ms     int32                  0+  = -1
    server_assignor          string                 0+  null 0+
    classic_member_metadata  ClassicMemberMetadata  0+  null 0+  = null  tag 0
      session_timeout_ms     int32                  0+
      supported_protocols    []ClassicProtocol      0+
        name                 string                 0+
        metadata             bytes                  0+
    """


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id  string  0
    """


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    assignment_epoch      int32  0+
    assignment_timestamp  int64  0+  tag 0  ignorable
    """


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id   string  0
    member_id  string  0
    """


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    topic_partitions  []TopicPartition  0+
      topic_id        uuid              0+
      partitions      []int32           0+
    """


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id   string  0
    member_id  string  0
    """


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    member_epoch                   int32              0+
    previous_member_epoch          int32              0+
    state                          int8               0+
    assigned_partitions            []TopicPartitions  0+
    partitions_pending_revocation  []TopicPartitions  0+
    struct TopicPartitions
      topic_id                     uuid               0+
      partitions                   []int32            0+
      assignment_epochs            []int32            0+  null 0+  = null  tag 0
    """


class ConsumerGroupRegularExpressionKey(Message, versions=(0, 0)):
    FIELDS = """
    group_id            string  0
    regular_expression  string  0
    """


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible=0):
    FIELDS = """
    topics     []string  0+
    version    int64     0+
    timestamp  int64     0+
    """


# COMPAT: a value is written in the version given here, the newest that every Kafka since 2.7 reads
# if it knows the type.
RECORDS = RecordTypes(
    (0, LegacyOffsetCommitKey, LegacyOffsetCommitValue, 0),
    (1, OffsetCommitKey, OffsetCommitValue, 3),
    (2, GroupMetadataKey, GroupMetadataValue, 3),
    (3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    (4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0),
    (5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    (6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0),
    (7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    (8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    (16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
)
