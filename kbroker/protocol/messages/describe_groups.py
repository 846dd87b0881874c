"""DescribeGroups (15): State and members of consumer groups.

Version 6 reports an unknown group as an error, earlier ones as dead.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeGroupsRequest(Message, api=ApiKey.DESCRIBE_GROUPS):
    FIELDS = """
    groups                         []string  0+
    include_authorized_operations  bool      3+
    """


class DescribeGroupsResponse(Message, api=ApiKey.DESCRIBE_GROUPS):
    FIELDS = """
    throttle_time_ms         int32                   1+  ignorable
    groups                   []DescribedGroup        0+
      error_code             int16                   0+
      error_message          string                  6+  null 6+  = null
      group_id               string                  0+
      group_state            string                  0+
      protocol_type          string                  0+
      protocol_data          string                  0+
      members                []DescribedGroupMember  0+
        member_id            string                  0+
        group_instance_id    string                  4+  null 4+  = null  ignorable
        client_id            string                  0+
        client_host          string                  0+
        member_metadata      bytes                   0+
        member_assignment    bytes                   0+
      authorized_operations  int32                   3+  = -2147483648
    """
