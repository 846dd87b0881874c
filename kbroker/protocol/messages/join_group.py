"""JoinGroup (11): Join a consumer group and take part in its rebalance.

From version 4 on a first join without member id is answered with one; 5 adds static members.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class JoinGroupRequest(Message, api=ApiKey.JOIN_GROUP):
    FIELDS = """
    group_id              string                      0+
    session_timeout_ms    int32                       0+
    rebalance_timeout_ms  int32                       1+  = -1  ignorable
    member_id             string                      0+
    group_instance_id     string                      5+  null 5+  = null
    protocol_type         string                      0+
    protocols             []JoinGroupRequestProtocol  0+
      name                string                      0+
      metadata            bytes                       0+
    reason                string                      8+  null 8+  = null  ignorable
    """


class JoinGroupResponse(Message, api=ApiKey.JOIN_GROUP):
    FIELDS = """
    throttle_time_ms     int32                      2+  ignorable
    error_code           int16                      0+
    generation_id        int32                      0+  = -1
    protocol_type        string                     7+  null 7+  = null  ignorable
    protocol_name        string                     0+  null 7+
    leader               string                     0+
    skip_assignment      bool                       9+
    member_id            string                     0+
    members              []JoinGroupResponseMember  0+
      member_id          string                     0+
      group_instance_id  string                     5+  null 5+  = null  ignorable
      metadata           bytes                      0+
    """
