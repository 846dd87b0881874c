"""DescribeShareGroupOffsets (90): Where share groups start in their partitions.

Version 1 adds the lag.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeShareGroupOffsetsRequest(Message, api=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS):
    FIELDS = """
    groups          []DescribeShareGroupOffsetsRequestGroup  0+
      group_id      string                                   0+
      topics        []DescribeShareGroupOffsetsRequestTopic  0+  null 0+
        topic_name  string                                   0+
        partitions  []int32                                  0+
    """


class DescribeShareGroupOffsetsResponse(Message, api=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS):
    FIELDS = """
    throttle_time_ms       int32                                         0+
    groups                 []DescribeShareGroupOffsetsResponseGroup      0+
      group_id             string                                        0+
      topics               []DescribeShareGroupOffsetsResponseTopic      0+
        topic_name         string                                        0+
        topic_id           uuid                                          0+
        partitions         []DescribeShareGroupOffsetsResponsePartition  0+
          partition_index  int32                                         0+
          start_offset     int64                                         0+
          leader_epoch     int32                                         0+
          lag              int64                                         1+  = -1  ignorable
          error_code       int16                                         0+
          error_message    string                                        0+  null 0+  = null
      error_code           int16                                         0+
      error_message        string                                        0+  null 0+  = null
    """
