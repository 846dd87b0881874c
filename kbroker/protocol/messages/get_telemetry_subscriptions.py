"""GetTelemetrySubscriptions (71): Which metrics a client should push (KIP-714)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class GetTelemetrySubscriptionsRequest(Message, api=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS):
    FIELDS = """
    client_instance_id  uuid  0+
    """


class GetTelemetrySubscriptionsResponse(Message, api=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS):
    FIELDS = """
    throttle_time_ms            int32     0+
    error_code                  int16     0+
    client_instance_id          uuid      0+
    subscription_id             int32     0+
    accepted_compression_types  []int8    0+
    push_interval_ms            int32     0+
    telemetry_max_bytes         int32     0+
    delta_temporality           bool      0+
    requested_metrics           []string  0+
    """
