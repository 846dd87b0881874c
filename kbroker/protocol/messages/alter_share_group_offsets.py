"""AlterShareGroupOffsets (91): Move where share groups start."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterShareGroupOffsetsRequest(Message, api=ApiKey.ALTER_SHARE_GROUP_OFFSETS):
    FIELDS = """
    group_id             string                                    0+
    topics               []AlterShareGroupOffsetsRequestTopic      0+
      topic_name         string                                    0+
      partitions         []AlterShareGroupOffsetsRequestPartition  0+
        partition_index  int32                                     0+
        start_offset     int64                                     0+
    """


class AlterShareGroupOffsetsResponse(Message, api=ApiKey.ALTER_SHARE_GROUP_OFFSETS):
    FIELDS = """
    throttle_time_ms     int32                                      0+
    error_code           int16                                      0+
    error_message        string                                     0+  null 0+  = null
    responses            []AlterShareGroupOffsetsResponseTopic      0+
      topic_name         string                                     0+
      topic_id           uuid                                       0+
      partitions         []AlterShareGroupOffsetsResponsePartition  0+
        partition_index  int32                                      0+
        error_code       int16                                      0+
        error_message    string                                     0+  null 0+  = null
    """
