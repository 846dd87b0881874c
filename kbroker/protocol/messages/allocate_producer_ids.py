"""AllocateProducerIds (67): A broker gets a block of producer ids from the controller."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AllocateProducerIdsRequest(Message, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    FIELDS = """
    broker_id     int32  0+
    broker_epoch  int64  0+  = -1
    """


class AllocateProducerIdsResponse(Message, api=ApiKey.ALLOCATE_PRODUCER_IDS):
    FIELDS = """
    throttle_time_ms   int32  0+
    error_code         int16  0+
    producer_id_start  int64  0+
    producer_id_len    int32  0+
    """
