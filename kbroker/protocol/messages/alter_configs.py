"""AlterConfigs (33): Replace all settings of a resource.

Deprecated by IncrementalAlterConfigs: what the request leaves out goes back to its default.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterConfigsRequest(Message, api=ApiKey.ALTER_CONFIGS):
    FIELDS = """
    resources        []AlterConfigsResource  0+
      resource_type  int8                    0+
      resource_name  string                  0+
      configs        []AlterableConfig       0+
        name         string                  0+
        value        string                  0+  null 0+
    validate_only    bool                    0+
    """


class AlterConfigsResponse(Message, api=ApiKey.ALTER_CONFIGS):
    FIELDS = """
    throttle_time_ms  int32                           0+
    responses         []AlterConfigsResourceResponse  0+
      error_code      int16                           0+
      error_message   string                          0+  null 0+
      resource_type   int8                            0+
      resource_name   string                          0+
    """
