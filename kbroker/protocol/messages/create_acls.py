"""CreateAcls (30): Create ACLs.

Version 1 adds pattern types (KIP-290); 3 the resource type user.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class CreateAclsRequest(Message, api=ApiKey.CREATE_ACLS):
    FIELDS = """
    creations                []AclCreation  0+
      resource_type          int8           0+
      resource_name          string         0+
      resource_pattern_type  int8           1+  = 3
      principal              string         0+
      host                   string         0+
      operation              int8           0+
      permission_type        int8           0+
    """


class CreateAclsResponse(Message, api=ApiKey.CREATE_ACLS):
    FIELDS = """
    throttle_time_ms  int32                0+
    results           []AclCreationResult  0+
      error_code      int16                0+
      error_message   string               0+  null 0+
    """
