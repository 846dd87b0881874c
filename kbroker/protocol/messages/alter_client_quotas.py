"""AlterClientQuotas (49): Set and remove quotas of entities."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterClientQuotasRequest(Message, api=ApiKey.ALTER_CLIENT_QUOTAS):
    FIELDS = """
    entries          []EntryData   0+
      entity         []EntityData  0+
        entity_type  string        0+
        entity_name  string        0+  null 0+
      ops            []OpData      0+
        key          string        0+
        value        float64       0+
        remove       bool          0+
    validate_only    bool          0+
    """


class AlterClientQuotasResponse(Message, api=ApiKey.ALTER_CLIENT_QUOTAS):
    FIELDS = """
    throttle_time_ms  int32         0+
    entries           []EntryData   0+
      error_code      int16         0+
      error_message   string        0+  null 0+
      entity          []EntityData  0+
        entity_type   string        0+
        entity_name   string        0+  null 0+
    """
