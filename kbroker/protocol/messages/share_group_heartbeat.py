"""ShareGroupHeartbeat (76): Join, stay in and leave a share group (KIP-932).

Version 0 was an early access of Kafka and has gone.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ShareGroupHeartbeatRequest(Message, api=ApiKey.SHARE_GROUP_HEARTBEAT):
    FIELDS = """
    group_id                string    0+
    member_id               string    0+
    member_epoch            int32     0+
    rack_id                 string    0+  null 0+  = null
    subscribed_topic_names  []string  0+  null 0+  = null
    """


class ShareGroupHeartbeatResponse(Message, api=ApiKey.SHARE_GROUP_HEARTBEAT):
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
