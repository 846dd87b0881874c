"""Records of ``__transaction_state``."""

from kbroker.coordinator.records.codec import RecordTypes
from kbroker.protocol.message import Message


class TransactionLogKey(Message, versions=(0, 0)):
    FIELDS = """
    transactional_id  string  0
    """


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    FIELDS = """
    producer_id                           int64               0+
    previous_producer_id                  int64               1+  = -1  tag 0  ignorable
    next_producer_id                      int64               1+  = -1  tag 1  ignorable
    producer_epoch                        int16               0+
    next_producer_epoch                   int16               1+  = -1  tag 3  ignorable
    transaction_timeout_ms                int32               0+
    transaction_status                    int8                0+
    transaction_partitions                []PartitionsSchema  0+  null 0+
      topic                               string              0+
      partition_ids                       []int32             0+
    transaction_last_update_timestamp_ms  int64               0+
    transaction_start_timestamp_ms        int64               0+
    client_transaction_version            int16               1+  tag 2  ignorable
    """


RECORDS = RecordTypes(
    (0, TransactionLogKey, TransactionLogValue, 1),
)
# COMPAT: in a cluster, where Kafka 2.7 may be the next to read them.
CLUSTER_RECORDS = RecordTypes(
    (0, TransactionLogKey, TransactionLogValue, 0),
)
