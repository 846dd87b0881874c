"""DescribeAcls (29): The ACLs that match a filter.

Version 1 adds pattern types (KIP-290); 3 the resource type user.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeAclsRequest(Message, api=ApiKey.DESCRIBE_ACLS):
    FIELDS = """
    resource_type_filter  int8    0+
    resource_name_filter  string  0+  null 0+
    pattern_type_filter   int8    1+  = 3
    principal_filter      string  0+  null 0+
    host_filter           string  0+  null 0+
    operation             int8    0+
    permission_type       int8    0+
    """


class DescribeAclsResponse(Message, api=ApiKey.DESCRIBE_ACLS):
    FIELDS = """
    throttle_time_ms     int32                   0+
    error_code           int16                   0+
    error_message        string                  0+  null 0+
    resources            []DescribeAclsResource  0+
      resource_type      int8                    0+
      resource_name      string                  0+
      pattern_type       int8                    1+  = 3
      acls               []AclDescription        0+
        principal        string                  0+
        host             string                  0+
        operation        int8                    0+
        permission_type  int8                    0+
    """
