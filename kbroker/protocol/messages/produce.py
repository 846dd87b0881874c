"""Produce (0): Append record batches to partitions.

Version 3 brings transactional ids and record batches of magic 2; below it records are of magic 0 or
1. From 7 on zstd is allowed; 8 reports which records of a batch are bad (KIP-467); 10 tells the new
leader (KIP-951); 12 is what transactions with implicit partition adding need (KIP-890); 13 names
topics by id.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ProduceRequest(Message, api=ApiKey.PRODUCE):
    FIELDS = """
    transactional_id  string                  3+    null 3+  = null
    acks              int16                   0+
    timeout_ms        int32                   0+
    topic_data        []TopicProduceData      0+
      name            string                  0-12  ignorable
      topic_id        uuid                    13+   ignorable
      partition_data  []PartitionProduceData  0+
        index         int32                   0+
        records       records                 0+    null 0+
    """


class ProduceResponse(Message, api=ApiKey.PRODUCE):
    FIELDS = """
    responses                        []TopicProduceResponse       0+
      name                           string                       0-12  ignorable
      topic_id                       uuid                         13+   ignorable
      partition_responses            []PartitionProduceResponse   0+
        index                        int32                        0+
        error_code                   int16                        0+
        base_offset                  int64                        0+
        log_append_time_ms           int64                        2+    = -1  ignorable
        log_start_offset             int64                        5+    = -1  ignorable
        record_errors                []BatchIndexAndErrorMessage  8+    ignorable
          batch_index                int32                        8+
          batch_index_error_message  string                       8+    null 8+  = null
        error_message                string                       8+    null 8+  = null  ignorable
        current_leader               LeaderIdAndEpoch             10+   tag 0
          leader_id                  int32                        10+   = -1
          leader_epoch               int32                        10+   = -1
    throttle_time_ms                 int32                        1+    ignorable
    node_endpoints                   []NodeEndpoint               10+   tag 0
      node_id                        int32                        10+
      host                           string                       10+
      port                           int32                        10+
      rack                           string                       10+   null 10+  = null
    """
