"""LeaveGroup (13): Leave a consumer group.

Version 3 removes several members at once, with a result for each.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class LeaveGroupRequest(Message, api=ApiKey.LEAVE_GROUP):
    FIELDS = """
    group_id             string            0+
    member_id            string            0-2
    members              []MemberIdentity  3+
      member_id          string            3+
      group_instance_id  string            3+   null 3+  = null
      reason             string            5+   null 5+  = null  ignorable
    """


class LeaveGroupResponse(Message, api=ApiKey.LEAVE_GROUP):
    FIELDS = """
    throttle_time_ms     int32             1+  ignorable
    error_code           int16             0+
    members              []MemberResponse  3+
      member_id          string            3+
      group_instance_id  string            3+  null 3+
      error_code         int16             3+
    """
