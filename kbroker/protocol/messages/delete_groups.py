"""DeleteGroups (42): Delete groups without members."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteGroupsRequest(Message, api=ApiKey.DELETE_GROUPS):
    FIELDS = """
    groups_names  []string  0+
    """


class DeleteGroupsResponse(Message, api=ApiKey.DELETE_GROUPS):
    FIELDS = """
    throttle_time_ms  int32                   0+
    results           []DeletableGroupResult  0+
      group_id        string                  0+
      error_code      int16                   0+
    """
