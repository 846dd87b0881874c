"""ListTransactions (66): The transactions a broker coordinates.

Version 1 filters by duration, 2 by a pattern of ids.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ListTransactionsRequest(Message, api=ApiKey.LIST_TRANSACTIONS):
    FIELDS = """
    state_filters             []string  0+
    producer_id_filters       []int64   0+
    duration_filter           int64     1+  = -1
    transactional_id_pattern  string    2+  null 2+  = null
    """


class ListTransactionsResponse(Message, api=ApiKey.LIST_TRANSACTIONS):
    FIELDS = """
    throttle_time_ms       int32               0+
    error_code             int16               0+
    unknown_state_filters  []string            0+
    transaction_states     []TransactionState  0+
      transactional_id     string              0+
      producer_id          int64               0+
      transaction_state    string              0+
    """
