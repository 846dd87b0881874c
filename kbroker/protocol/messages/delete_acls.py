"""DeleteAcls (31): Delete the ACLs that match filters.

Version 1 adds pattern types (KIP-290); 3 the resource type user.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteAclsRequest(Message, api=ApiKey.DELETE_ACLS):
    FIELDS = """
    filters                 []DeleteAclsFilter  0+
      resource_type_filter  int8                0+
      resource_name_filter  string              0+  null 0+
      pattern_type_filter   int8                1+  = 3
      principal_filter      string              0+  null 0+
      host_filter           string              0+  null 0+
      operation             int8                0+
      permission_type       int8                0+
    """


class DeleteAclsResponse(Message, api=ApiKey.DELETE_ACLS):
    FIELDS = """
    throttle_time_ms     int32                     0+
    filter_results       []DeleteAclsFilterResult  0+
      error_code         int16                     0+
      error_message      string                    0+  null 0+
      matching_acls      []DeleteAclsMatchingAcl   0+
        error_code       int16                     0+
        error_message    string                    0+  null 0+
        resource_type    int8                      0+
        resource_name    string                    0+
        pattern_type     int8                      1+  = 3
        principal        string                    0+
        host             string                    0+
        operation        int8                      0+
        permission_type  int8                      0+
    """
