"""DescribeTopicPartitions (75): Topics and partitions page by page (KIP-966).

Tagged fields of our own (decision 0037) ask for some of the topics whose name contains a text, and
how many there are: a page of a hundred needs no rows of ten thousand.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeTopicPartitionsRequest(Message, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    FIELDS = """
    topics                    []TopicRequest  0+
      name                    string          0+
    response_partition_limit  int32           0+  = 2000
    cursor                    Cursor          0+  null 0+  = null
      topic_name              string          0+
      partition_index         int32           0+
    search                    string          0+  tag 10000  ignorable
    with_internal             bool            0+  tag 10001  ignorable
    skip                      int32           0+  tag 10002  ignorable
    topic_limit               int32           0+  tag 10003  = -1  ignorable
    """


class DescribeTopicPartitionsResponse(Message, api=ApiKey.DESCRIBE_TOPIC_PARTITIONS):
    FIELDS = """
    throttle_time_ms               int32                                       0+  ignorable
    topics                         []DescribeTopicPartitionsResponseTopic      0+
      error_code                   int16                                       0+
      name                         string                                      0+  null 0+
      topic_id                     uuid                                        0+  ignorable
      is_internal                  bool                                        0+  ignorable
      partitions                   []DescribeTopicPartitionsResponsePartition  0+
        error_code                 int16                                       0+
        partition_index            int32                                       0+
        leader_id                  int32                                       0+
        leader_epoch               int32                                       0+  = -1  ignorable
        replica_nodes              []int32                                     0+
        isr_nodes                  []int32                                     0+
        eligible_leader_replicas   []int32                                     0+  null 0+  = null
        last_known_elr             []int32                                     0+  null 0+  = null
        offline_replicas           []int32                                     0+  ignorable
      topic_authorized_operations  int32                                       0+  = -2147483648
    next_cursor                    Cursor                                      0+  null 0+  = null
      topic_name                   string                                      0+
      partition_index              int32                                       0+
    total                          int32                             0+  tag 10000  = -1  ignorable
    """
