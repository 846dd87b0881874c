"""DescribeQuorum (55): State of the KRaft quorum.

Version 1 adds fetch times, 2 directory ids and the voters' endpoints.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeQuorumRequest(Message, api=ApiKey.DESCRIBE_QUORUM):
    FIELDS = """
    topics               []TopicData      0+
      topic_name         string           0+
      partitions         []PartitionData  0+
        partition_index  int32            0+
    """


class DescribeQuorumResponse(Message, api=ApiKey.DESCRIBE_QUORUM):
    FIELDS = """
    error_code                  int16            0+
    error_message               string           2+  null 2+  ignorable
    topics                      []TopicData      0+
      topic_name                string           0+
      partitions                []PartitionData  0+
        partition_index         int32            0+
        error_code              int16            0+
        error_message           string           2+  null 2+  ignorable
        leader_id               int32            0+
        leader_epoch            int32            0+
        high_watermark          int64            0+
        current_voters          []ReplicaState   0+
        observers               []ReplicaState   0+
    nodes                       []Node           2+
      node_id                   int32            2+
      listeners                 []Listener       2+
        name                    string           2+
        host                    string           2+
        port                    uint16           2+
    struct ReplicaState
      replica_id                int32            0+
      replica_directory_id      uuid             2+
      log_end_offset            int64            0+
      last_fetch_timestamp      int64            1+  = -1  ignorable
      last_caught_up_timestamp  int64            1+  = -1  ignorable
    """
