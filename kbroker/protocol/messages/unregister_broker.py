"""UnregisterBroker (64): Remove a broker from the cluster."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class UnregisterBrokerRequest(Message, api=ApiKey.UNREGISTER_BROKER):
    FIELDS = """
    broker_id  int32  0+
    """


class UnregisterBrokerResponse(Message, api=ApiKey.UNREGISTER_BROKER):
    FIELDS = """
    throttle_time_ms  int32   0+
    error_code        int16   0+
    error_message     string  0+  null 0+
    """
