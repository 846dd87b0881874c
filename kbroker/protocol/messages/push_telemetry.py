"""PushTelemetry (72): A client pushes its metrics (KIP-714)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class PushTelemetryRequest(Message, api=ApiKey.PUSH_TELEMETRY):
    FIELDS = """
    client_instance_id  uuid   0+
    subscription_id     int32  0+
    terminating         bool   0+
    compression_type    int8   0+
    metrics             bytes  0+
    """


class PushTelemetryResponse(Message, api=ApiKey.PUSH_TELEMETRY):
    FIELDS = """
    throttle_time_ms  int32  0+
    error_code        int16  0+
    """
