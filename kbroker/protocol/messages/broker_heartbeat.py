"""BrokerHeartbeat (63): A broker stays registered with a KRaft controller."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class BrokerHeartbeatRequest(Message, api=ApiKey.BROKER_HEARTBEAT):
    FIELDS = """
    broker_id                int32   0+
    broker_epoch             int64   0+  = -1
    current_metadata_offset  int64   0+
    want_fence               bool    0+
    want_shut_down           bool    0+
    offline_log_dirs         []uuid  1+  tag 0
    cordoned_log_dirs        []uuid  2+  null 2+  tag 1  = null
    """


class BrokerHeartbeatResponse(Message, api=ApiKey.BROKER_HEARTBEAT):
    FIELDS = """
    throttle_time_ms  int32  0+
    error_code        int16  0+
    is_caught_up      bool   0+
    is_fenced         bool   0+  = true
    should_shut_down  bool   0+
    """
