"""StopReplica (5): The controller tells a broker to stop replicas, and maybe to delete them.

Between brokers of ZooKeeper clusters only; Kafka 4.0 dropped it. The layout changes in 1 and in 3.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class StopReplicaRequest(Message, api=ApiKey.STOP_REPLICA):
    FIELDS = """
    controller_id         int32                        0+
    is_kraft_controller   bool                         4+
    controller_epoch      int32                        0+
    broker_epoch          int64                        1+   = -1  ignorable
    delete_partitions     bool                         0-2
    ungrouped_partitions  []StopReplicaPartitionV0     0
      topic_name          string                       0
      partition_index     int32                        0
    topics                []StopReplicaTopicV1         1-2
      name                string                       1-2
      partition_indexes   []int32                      1-2
    topic_states          []StopReplicaTopicState      3+
      topic_name          string                       3+
      partition_states    []StopReplicaPartitionState  3+
        partition_index   int32                        3+
        leader_epoch      int32                        3+   = -1
        delete_partition  bool                         3+
    """


class StopReplicaResponse(Message, api=ApiKey.STOP_REPLICA):
    FIELDS = """
    error_code         int16                        0+
    partition_errors   []StopReplicaPartitionError  0+
      topic_name       string                       0+
      partition_index  int32                        0+
      error_code       int16                        0+
    """
