"""UpdateMetadata (6): The controller tells a broker about all others and their partitions.

Between brokers of ZooKeeper clusters only; Kafka 4.0 dropped it.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class UpdateMetadataRequest(Message, api=ApiKey.UPDATE_METADATA):
    FIELDS = """
    controller_id               int32                           0+
    is_kraft_controller         bool                            8+
    type                        int8                            8+   tag 0
    controller_epoch            int32                           0+
    broker_epoch                int64                           5+   = -1  ignorable
    ungrouped_partition_states  []UpdateMetadataPartitionState  0-4
    topic_states                []UpdateMetadataTopicState      5+
      topic_name                string                          5+
      topic_id                  uuid                            7+   ignorable
      partition_states          []UpdateMetadataPartitionState  5+
    live_brokers                []UpdateMetadataBroker          0+
      id                        int32                           0+
      v0_host                   string                          0    ignorable
      v0_port                   int32                           0    ignorable
      endpoints                 []UpdateMetadataEndpoint        1+   ignorable
        port                    int32                           1+
        host                    string                          1+
        listener                string                          3+   ignorable
        security_protocol       int16                           1+
      rack                      string                          2+   null 0+  ignorable
    struct UpdateMetadataPartitionState
      topic_name                string                          0-4  ignorable
      partition_index           int32                           0+
      controller_epoch          int32                           0+
      leader                    int32                           0+
      leader_epoch              int32                           0+
      isr                       []int32                         0+
      zk_version                int32                           0+
      replicas                  []int32                         0+
      offline_replicas          []int32                         4+   ignorable
    """


class UpdateMetadataResponse(Message, api=ApiKey.UPDATE_METADATA):
    FIELDS = """
    error_code  int16  0+
    """
