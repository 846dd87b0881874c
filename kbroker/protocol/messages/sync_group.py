"""SyncGroup (14): Hand out, and receive, the assignment of a consumer group."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class SyncGroupRequest(Message, api=ApiKey.SYNC_GROUP):
    FIELDS = """
    group_id           string                        0+
    generation_id      int32                         0+
    member_id          string                        0+
    group_instance_id  string                        3+  null 3+  = null
    protocol_type      string                        5+  null 5+  = null  ignorable
    protocol_name      string                        5+  null 5+  = null  ignorable
    assignments        []SyncGroupRequestAssignment  0+
      member_id        string                        0+
      assignment       bytes                         0+
    """


class SyncGroupResponse(Message, api=ApiKey.SYNC_GROUP):
    FIELDS = """
    throttle_time_ms  int32   1+  ignorable
    error_code        int16   0+
    protocol_type     string  5+  null 5+  = null  ignorable
    protocol_name     string  5+  null 5+  = null  ignorable
    assignment        bytes   0+
    """
