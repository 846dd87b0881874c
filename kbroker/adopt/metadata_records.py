"""Records of Apache Kafka's ``__cluster_metadata`` (KRaft): the types that a single broker needs.

Records have no keys. docs/formats/cluster-metadata.md; ``record_codec`` reads and writes them.
"""

from kbroker.protocol.message import Message

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
