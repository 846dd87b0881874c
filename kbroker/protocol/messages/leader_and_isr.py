"""LeaderAndIsr (4): The controller tells a broker which partitions it leads and follows.

Between brokers of ZooKeeper clusters only; Kafka 4.0 dropped it. Partitions are grouped by topic
from 2 on.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class LeaderAndIsrRequest(Message, api=ApiKey.LEADER_AND_ISR):
    FIELDS = """
    controller_id               int32                         0+
    is_kraft_controller         bool                          7+
    controller_epoch            int32                         0+
    broker_epoch                int64                         2+   = -1  ignorable
    type                        int8                          5+
    ungrouped_partition_states  []LeaderAndIsrPartitionState  0-1
    topic_states                []LeaderAndIsrTopicState      2+
      topic_name                string                        2+
      topic_id                  uuid                          5+   ignorable
      partition_states          []LeaderAndIsrPartitionState  2+
    live_leaders                []LeaderAndIsrLiveLeader      0+
      broker_id                 int32                         0+
      host_name                 string                        0+
      port                      int32                         0+
    struct LeaderAndIsrPartitionState
      topic_name                string                        0-1  ignorable
      partition_index           int32                         0+
      controller_epoch          int32                         0+
      leader                    int32                         0+
      leader_epoch              int32                         0+
      isr                       []int32                       0+
      partition_epoch           int32                         0+
      replicas                  []int32                       0+
      adding_replicas           []int32                       3+   ignorable
      removing_replicas         []int32                       3+   ignorable
      is_new                    bool                          1+   ignorable
      leader_recovery_state     int8                          6+
    """


class LeaderAndIsrResponse(Message, api=ApiKey.LEADER_AND_ISR):
    FIELDS = """
    error_code          int16                         0+
    partition_errors    []LeaderAndIsrPartitionError  0-4
    topics              []LeaderAndIsrTopicError      5+
      topic_id          uuid                          5+
      partition_errors  []LeaderAndIsrPartitionError  5+
    struct LeaderAndIsrPartitionError
      topic_name        string                        0-4  ignorable
      partition_index   int32                         0+
      error_code        int16                         0+
    """
