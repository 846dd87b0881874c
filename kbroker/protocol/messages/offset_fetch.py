"""OffsetFetch (9): Read the offsets a group has committed.

Null topics mean all, from version 2 on; 7 can wait for stable offsets; 8 asks for several groups at
once and moves everything into them; 10 names topics by id.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class OffsetFetchRequest(Message, api=ApiKey.OFFSET_FETCH):
    FIELDS = """
    group_id               string                      0-7
    topics                 []OffsetFetchRequestTopic   0-7  null 2-7
      name                 string                      0-7
      partition_indexes    []int32                     0-7
    groups                 []OffsetFetchRequestGroup   8+
      group_id             string                      8+
      member_id            string                      9+   null 9+  = null  ignorable
      member_epoch         int32                       9+   = -1  ignorable
      topics               []OffsetFetchRequestTopics  8+   null 8+
        name               string                      8-9  ignorable
        topic_id           uuid                        10+  ignorable
        partition_indexes  []int32                     8+
    require_stable         bool                        7+
    """


class OffsetFetchResponse(Message, api=ApiKey.OFFSET_FETCH):
    FIELDS = """
    throttle_time_ms              int32                            3+   ignorable
    topics                        []OffsetFetchResponseTopic       0-7
      name                        string                           0-7
      partitions                  []OffsetFetchResponsePartition   0-7
        partition_index           int32                            0-7
        committed_offset          int64                            0-7
        committed_leader_epoch    int32                            5-7  = -1  ignorable
        metadata                  string                           0-7  null 0-7
        error_code                int16                            0-7
    error_code                    int16                            2-7  ignorable
    groups                        []OffsetFetchResponseGroup       8+
      group_id                    string                           8+
      topics                      []OffsetFetchResponseTopics      8+
        name                      string                           8-9  ignorable
        topic_id                  uuid                             10+  ignorable
        partitions                []OffsetFetchResponsePartitions  8+
          partition_index         int32                            8+
          committed_offset        int64                            8+
          committed_leader_epoch  int32                            8+   = -1  ignorable
          metadata                string                           8+   null 8+
          error_code              int16                            8+
      error_code                  int16                            8+
    """
