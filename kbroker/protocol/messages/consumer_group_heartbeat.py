"""ConsumerGroupHeartbeat (68): Join, stay in and leave a group of the KIP-848 protocol.

From version 1 on members choose their own id (KIP-1082) and may subscribe by regular expression.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ConsumerGroupHeartbeatRequest(Message, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    FIELDS = """
    group_id                string             0+
    member_id               string             0+
    member_epoch            int32              0+
    instance_id             string             0+  null 0+  = null
    rack_id                 string             0+  null 0+  = null
    rebalance_timeout_ms    int32              0+  = -1
    subscribed_topic_names  []string           0+  null 0+  = null
    subscribed_topic_regex  string             1+  null 1+  = null
    server_assignor         string             0+  null 0+  = null
    topic_partitions        []TopicPartitions  0+  null 0+  = null
      topic_id              uuid               0+
      partitions            []int32            0+
    """


class ConsumerGroupHeartbeatResponse(Message, api=ApiKey.CONSUMER_GROUP_HEARTBEAT):
    FIELDS = """
    throttle_time_ms       int32              0+
    error_code             int16              0+
    error_message          string             0+  null 0+  = null
    member_id              string             0+  null 0+  = null
    member_epoch           int32              0+
    heartbeat_interval_ms  int32              0+
    assignment             Assignment         0+  null 0+  = null
      topic_partitions     []TopicPartitions  0+
    struct TopicPartitions
      topic_id             uuid               0+
      partitions           []int32            0+
    """
