"""AddPartitionsToTxn (24): Add partitions to a transaction.

Clients use versions up to 3; from 4 on brokers verify many transactions at once (KIP-890).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AddPartitionsToTxnRequest(Message, api=ApiKey.ADD_PARTITIONS_TO_TXN):
    FIELDS = """
    transactions                   []AddPartitionsToTxnTransaction  4+
      transactional_id             string                           4+
      producer_id                  int64                            4+
      producer_epoch               int16                            4+
      verify_only                  bool                             4+
      topics                       []AddPartitionsToTxnTopic        4+
    v3_and_below_transactional_id  string                           0-3
    v3_and_below_producer_id       int64                            0-3
    v3_and_below_producer_epoch    int16                            0-3
    v3_and_below_topics            []AddPartitionsToTxnTopic        0-3
    struct AddPartitionsToTxnTopic
      name                         string                           0+
      partitions                   []int32                          0+
    """


class AddPartitionsToTxnResponse(Message, api=ApiKey.ADD_PARTITIONS_TO_TXN):
    FIELDS = """
    throttle_time_ms               int32                                0+
    error_code                     int16                                4+   ignorable
    results_by_transaction         []AddPartitionsToTxnResult           4+
      transactional_id             string                               4+
      topic_results                []AddPartitionsToTxnTopicResult      4+
    results_by_topic_v3_and_below  []AddPartitionsToTxnTopicResult      0-3
    struct AddPartitionsToTxnTopicResult
      name                         string                               0+
      results_by_partition         []AddPartitionsToTxnPartitionResult  0+
    struct AddPartitionsToTxnPartitionResult
      partition_index              int32                                0+
      partition_error_code         int16                                0+
    """
