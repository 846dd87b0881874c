"""AddOffsetsToTxn (25): Add a group's committed offsets to a transaction."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AddOffsetsToTxnRequest(Message, api=ApiKey.ADD_OFFSETS_TO_TXN):
    FIELDS = """
    transactional_id  string  0+
    producer_id       int64   0+
    producer_epoch    int16   0+
    group_id          string  0+
    """


class AddOffsetsToTxnResponse(Message, api=ApiKey.ADD_OFFSETS_TO_TXN):
    FIELDS = """
    throttle_time_ms  int32  0+
    error_code        int16  0+
    """
