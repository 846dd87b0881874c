"""EndTxn (26): Commit or abort a transaction.

From version 5 on the response carries the raised producer epoch (KIP-890).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class EndTxnRequest(Message, api=ApiKey.END_TXN):
    FIELDS = """
    transactional_id  string  0+
    producer_id       int64   0+
    producer_epoch    int16   0+
    committed         bool    0+
    """


class EndTxnResponse(Message, api=ApiKey.END_TXN):
    FIELDS = """
    throttle_time_ms  int32  0+
    error_code        int16  0+
    producer_id       int64  5+  = -1  ignorable
    producer_epoch    int16  5+  = -1  ignorable
    """
