"""DescribeClientQuotas (48): The quotas that match a filter of entities."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeClientQuotasRequest(Message, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    FIELDS = """
    components     []ComponentData  0+
      entity_type  string           0+
      match_type   int8             0+
      match        string           0+  null 0+
    strict         bool             0+
    """


class DescribeClientQuotasResponse(Message, api=ApiKey.DESCRIBE_CLIENT_QUOTAS):
    FIELDS = """
    throttle_time_ms  int32         0+
    error_code        int16         0+
    error_message     string        0+  null 0+
    entries           []EntryData   0+  null 0+
      entity          []EntityData  0+
        entity_type   string        0+
        entity_name   string        0+  null 0+
      values          []ValueData   0+
        key           string        0+
        value         float64       0+
    """
