"""DescribeTransactions (65): State and partitions of transactions."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeTransactionsRequest(Message, api=ApiKey.DESCRIBE_TRANSACTIONS):
    FIELDS = """
    transactional_ids  []string  0+
    """


class DescribeTransactionsResponse(Message, api=ApiKey.DESCRIBE_TRANSACTIONS):
    FIELDS = """
    throttle_time_ms             int32               0+
    transaction_states           []TransactionState  0+
      error_code                 int16               0+
      transactional_id           string              0+
      transaction_state          string              0+
      transaction_timeout_ms     int32               0+
      transaction_start_time_ms  int64               0+
      producer_id                int64               0+
      producer_epoch             int16               0+
      topics                     []TopicData         0+
        topic                    string              0+
        partitions               []int32             0+
    """
