"""DeleteShareGroupOffsets (92): Delete the offsets of share groups."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteShareGroupOffsetsRequest(Message, api=ApiKey.DELETE_SHARE_GROUP_OFFSETS):
    FIELDS = """
    group_id      string                                 0+
    topics        []DeleteShareGroupOffsetsRequestTopic  0+
      topic_name  string                                 0+
    """


class DeleteShareGroupOffsetsResponse(Message, api=ApiKey.DELETE_SHARE_GROUP_OFFSETS):
    FIELDS = """
    throttle_time_ms  int32                                   0+
    error_code        int16                                   0+
    error_message     string                                  0+  null 0+  = null
    responses         []DeleteShareGroupOffsetsResponseTopic  0+
      topic_name      string                                  0+
      topic_id        uuid                                    0+
      error_code      int16                                   0+
      error_message   string                                  0+  null 0+  = null
    """
