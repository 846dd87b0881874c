"""ConsumerGroupDescribe (69): State and members of KIP-848 groups."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ConsumerGroupDescribeRequest(Message, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    FIELDS = """
    group_ids                      []string  0+
    include_authorized_operations  bool      0+
    """


class ConsumerGroupDescribeResponse(Message, api=ApiKey.CONSUMER_GROUP_DESCRIBE):
    FIELDS = """
    throttle_time_ms            int32              0+
    groups                      []DescribedGroup   0+
      error_code                int16              0+
      error_message             string             0+  null 0+  = null
      group_id                  string             0+
      group_state               string             0+
      group_epoch               int32              0+
      assignment_epoch          int32              0+
      assignor_name             string             0+
      members                   []Member           0+
        member_id               string             0+
        instance_id             string             0+  null 0+  = null
        rack_id                 string             0+  null 0+  = null
        member_epoch            int32              0+
        client_id               string             0+
        client_host             string             0+
        subscribed_topic_names  []string           0+
        subscribed_topic_regex  string             0+  null 0+  = null
        assignment              Assignment         0+
        target_assignment       Assignment         0+
        member_type             int8               1+  = -1  ignorable
      authorized_operations     int32              0+  = -2147483648
    struct TopicPartitions
      topic_id                  uuid               0+
      topic_name                string             0+
      partitions                []int32            0+
    struct Assignment
      topic_partitions          []TopicPartitions  0+
    """
