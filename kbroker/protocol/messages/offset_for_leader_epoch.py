"""OffsetForLeaderEpoch (23): Find where a leader epoch ends in the leader's log.

For replicas and consumers that detect truncation; version 2 adds fencing by the current epoch.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class OffsetForLeaderEpochRequest(Message, api=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    FIELDS = """
    replica_id                int32                       3+  = -2  ignorable
    topics                    []OffsetForLeaderTopic      0+
      topic                   string                      0+
      partitions              []OffsetForLeaderPartition  0+
        partition             int32                       0+
        current_leader_epoch  int32                       2+  = -1  ignorable
        leader_epoch          int32                       0+
    """


class OffsetForLeaderEpochResponse(Message, api=ApiKey.OFFSET_FOR_LEADER_EPOCH):
    FIELDS = """
    throttle_time_ms  int32                         2+  ignorable
    topics            []OffsetForLeaderTopicResult  0+
      topic           string                        0+
      partitions      []EpochEndOffset              0+
        error_code    int16                         0+
        partition     int32                         0+
        leader_epoch  int32                         1+  = -1  ignorable
        end_offset    int64                         0+  = -1
    """
