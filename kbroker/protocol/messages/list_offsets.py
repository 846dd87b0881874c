"""ListOffsets (2): Find offsets by timestamp, or a log's first and last.

Version 0 answers with a list of segment offsets; from 1 on it is one offset and its timestamp.
Version 2 brings isolation levels, 4 leader epochs, 7 the max timestamp (-3), 8 and later the tiered
log (-4, -5, -6).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message

# Timestamps that stand for an offset of the log.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6

READ_COMMITTED = 1  # isolation level


class ListOffsetsRequest(Message, api=ApiKey.LIST_OFFSETS):
    FIELDS = """
    replica_id                int32                   0+
    isolation_level           int8                    2+
    topics                    []ListOffsetsTopic      0+
      name                    string                  0+
      partitions              []ListOffsetsPartition  0+
        partition_index       int32                   0+
        current_leader_epoch  int32                   4+   = -1  ignorable
        timestamp             int64                   0+
        max_num_offsets       int32                   0    = 1
    timeout_ms                int32                   10+  ignorable
    """


class ListOffsetsResponse(Message, api=ApiKey.LIST_OFFSETS):
    FIELDS = """
    throttle_time_ms       int32                           2+  ignorable
    topics                 []ListOffsetsTopicResponse      0+
      name                 string                          0+
      partitions           []ListOffsetsPartitionResponse  0+
        partition_index    int32                           0+
        error_code         int16                           0+
        old_style_offsets  []int64                         0
        timestamp          int64                           1+  = -1
        offset             int64                           1+  = -1
        leader_epoch       int32                           4+  = -1
    """
