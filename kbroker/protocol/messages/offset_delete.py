"""OffsetDelete (47): Delete committed offsets of a group.

Never became flexible.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class OffsetDeleteRequest(Message, api=ApiKey.OFFSET_DELETE):
    FIELDS = """
    group_id             string                          0+
    topics               []OffsetDeleteRequestTopic      0+
      name               string                          0+
      partitions         []OffsetDeleteRequestPartition  0+
        partition_index  int32                           0+
    """


class OffsetDeleteResponse(Message, api=ApiKey.OFFSET_DELETE):
    FIELDS = """
    error_code           int16                            0+
    throttle_time_ms     int32                            0+  ignorable
    topics               []OffsetDeleteResponseTopic      0+
      name               string                           0+
      partitions         []OffsetDeleteResponsePartition  0+
        partition_index  int32                            0+
        error_code       int16                            0+
    """
