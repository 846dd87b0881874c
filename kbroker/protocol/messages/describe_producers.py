"""DescribeProducers (61): The idempotent producers a partition remembers.

Tagged fields of our own (decision 0037) ask for those alone whose transaction is open and has had
no batch since a time, in all replicas of the broker: of ten thousand partitions, that is few or
none.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeProducersRequest(Message, api=ApiKey.DESCRIBE_PRODUCERS):
    FIELDS = """
    topics               []TopicRequest  0+
      name               string          0+
      partition_indexes  []int32         0+
    late_before          int64           0+  tag 10000  = -1  ignorable
    """


class DescribeProducersResponse(Message, api=ApiKey.DESCRIBE_PRODUCERS):
    FIELDS = """
    throttle_time_ms                int32                0+
    topics                          []TopicResponse      0+
      name                          string               0+
      partitions                    []PartitionResponse  0+
        partition_index             int32                0+
        error_code                  int16                0+
        error_message               string               0+  null 0+  = null
        active_producers            []ProducerState      0+
          producer_id               int64                0+
          producer_epoch            int32                0+
          last_sequence             int32                0+  = -1
          last_timestamp            int64                0+  = -1
          coordinator_epoch         int32                0+
          current_txn_start_offset  int64                0+  = -1
    only_late                       bool                 0+  tag 10000  ignorable
    """
