"""InitProducerId (22): Get a producer id and epoch, and fence older producers.

Version 3 lets a producer raise its own epoch (KIP-360). Version 6 is for two-phase commit
(KIP-939), which Kafka 4.3 has not released: it can be decoded, but should not be announced.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class InitProducerIdRequest(Message, api=ApiKey.INIT_PRODUCER_ID):
    FIELDS = """
    transactional_id        string  0+  null 0+
    transaction_timeout_ms  int32   0+
    producer_id             int64   3+  = -1
    producer_epoch          int16   3+  = -1
    enable2_pc              bool    6+
    keep_prepared_txn       bool    6+
    """


class InitProducerIdResponse(Message, api=ApiKey.INIT_PRODUCER_ID):
    FIELDS = """
    throttle_time_ms            int32  0+  ignorable
    error_code                  int16  0+
    producer_id                 int64  0+  = -1
    producer_epoch              int16  0+
    ongoing_txn_producer_id     int64  6+  = -1
    ongoing_txn_producer_epoch  int16  6+  = -1
    """
