"""AlterPartition (56): A leader tells the controller about a new ISR.

Version 1 adds the leader recovery state (KIP-704), 2 names topics by id, 3 adds broker epochs
(KIP-903).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterPartitionRequest(Message, api=ApiKey.ALTER_PARTITION):
    FIELDS = """
    broker_id                  int32            0+
    broker_epoch               int64            0+   = -1
    topics                     []TopicData      0+
      topic_name               string           0-1  ignorable
      topic_id                 uuid             2+   ignorable
      partitions               []PartitionData  0+
        partition_index        int32            0+
        leader_epoch           int32            0+
        new_isr                []int32          0-2
        new_isr_with_epochs    []BrokerState    3+
          broker_id            int32            3+
          broker_epoch         int64            3+   = -1
        leader_recovery_state  int8             1+
        partition_epoch        int32            0+
    """


class AlterPartitionResponse(Message, api=ApiKey.ALTER_PARTITION):
    FIELDS = """
    throttle_time_ms           int32            0+
    error_code                 int16            0+
    topics                     []TopicData      0+
      topic_name               string           0-1  ignorable
      topic_id                 uuid             2+   ignorable
      partitions               []PartitionData  0+
        partition_index        int32            0+
        error_code             int16            0+
        leader_id              int32            0+
        leader_epoch           int32            0+
        isr                    []int32          0+
        leader_recovery_state  int8             1+   ignorable
        partition_epoch        int32            0+
    """
