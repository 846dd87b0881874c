"""Heartbeat (12): Stay a member of a consumer group."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class HeartbeatRequest(Message, api=ApiKey.HEARTBEAT):
    FIELDS = """
    group_id           string  0+
    generation_id      int32   0+
    member_id          string  0+
    group_instance_id  string  3+  null 3+  = null
    """


class HeartbeatResponse(Message, api=ApiKey.HEARTBEAT):
    FIELDS = """
    throttle_time_ms  int32  1+  ignorable
    error_code        int16  0+
    """
