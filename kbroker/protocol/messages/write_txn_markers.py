"""WriteTxnMarkers (27): The transaction coordinator has markers written into the logs.

Between brokers. Version 2 adds the transaction version (KIP-1228).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class WriteTxnMarkersRequest(Message, api=ApiKey.WRITE_TXN_MARKERS):
    FIELDS = """
    markers                []WritableTxnMarker       0+
      producer_id          int64                     0+
      producer_epoch       int16                     0+
      transaction_result   bool                      0+
      topics               []WritableTxnMarkerTopic  0+
        name               string                    0+
        partition_indexes  []int32                   0+
      coordinator_epoch    int32                     0+
      transaction_version  int8                      2+  ignorable
    """


class WriteTxnMarkersResponse(Message, api=ApiKey.WRITE_TXN_MARKERS):
    FIELDS = """
    markers                []WritableTxnMarkerResult           0+
      producer_id          int64                               0+
      topics               []WritableTxnMarkerTopicResult      0+
        name               string                              0+
        partitions         []WritableTxnMarkerPartitionResult  0+
          partition_index  int32                               0+
          error_code       int16                               0+
    """
