"""OffsetCommit (8): Store the offsets a group has consumed.

Version 1 has a timestamp per partition, 2 to 4 one retention time for all, later neither. 6 adds
leader epochs, 7 static members, 9 works with consumer groups of KIP-848, 10 names topics by id.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class OffsetCommitRequest(Message, api=ApiKey.OFFSET_COMMIT):
    FIELDS = """
    group_id                       string                          0+
    generation_id_or_member_epoch  int32                           1+   = -1  ignorable
    member_id                      string                          1+   ignorable
    group_instance_id              string                          7+   null 7+  = null
    retention_time_ms              int64                           2-4  = -1  ignorable
    topics                         []OffsetCommitRequestTopic      0+
      name                         string                          0-9  ignorable
      topic_id                     uuid                            10+  ignorable
      partitions                   []OffsetCommitRequestPartition  0+
        partition_index            int32                           0+
        committed_offset           int64                           0+
        committed_leader_epoch     int32                           6+   = -1  ignorable
        commit_timestamp           int64                           1    = -1
        committed_metadata         string                          0+   null 0+
    """


class OffsetCommitResponse(Message, api=ApiKey.OFFSET_COMMIT):
    FIELDS = """
    throttle_time_ms     int32                            3+   ignorable
    topics               []OffsetCommitResponseTopic      0+
      name               string                           0-9  ignorable
      topic_id           uuid                             10+  ignorable
      partitions         []OffsetCommitResponsePartition  0+
        partition_index  int32                            0+
        error_code       int16                            0+
    """
