"""ListConfigResources (74): The resources that have configs of their own.

Version 0 was ListClientMetricsResources, with the same layout less the types.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ListConfigResourcesRequest(Message, api=ApiKey.LIST_CONFIG_RESOURCES):
    FIELDS = """
    resource_types  []int8  1+
    """


class ListConfigResourcesResponse(Message, api=ApiKey.LIST_CONFIG_RESOURCES):
    FIELDS = """
    throttle_time_ms  int32             0+
    error_code        int16             0+
    config_resources  []ConfigResource  0+
      resource_name   string            0+
      resource_type   int8              1+  = 16  ignorable
    """
