"""ListGroups (16): The groups a broker coordinates.

Version 4 filters by state, 5 by type (KIP-848).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ListGroupsRequest(Message, api=ApiKey.LIST_GROUPS):
    FIELDS = """
    states_filter  []string  4+
    types_filter   []string  5+
    """


class ListGroupsResponse(Message, api=ApiKey.LIST_GROUPS):
    FIELDS = """
    throttle_time_ms  int32          1+  ignorable
    error_code        int16          0+
    groups            []ListedGroup  0+
      group_id        string         0+
      protocol_type   string         0+
      group_state     string         4+  ignorable
      group_type      string         5+  ignorable
    """
