"""TxnOffsetCommit (28): Commit a group's offsets within a transaction.

Version 3 identifies the member (KIP-447); 5 adds the group to the transaction by itself (KIP-890).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class TxnOffsetCommitRequest(Message, api=ApiKey.TXN_OFFSET_COMMIT):
    FIELDS = """
    transactional_id            string                             0+
    group_id                    string                             0+
    producer_id                 int64                              0+
    producer_epoch              int16                              0+
    generation_id               int32                              3+  = -1
    member_id                   string                             3+
    group_instance_id           string                             3+  null 3+  = null
    topics                      []TxnOffsetCommitRequestTopic      0+
      name                      string                             0+
      partitions                []TxnOffsetCommitRequestPartition  0+
        partition_index         int32                              0+
        committed_offset        int64                              0+
        committed_leader_epoch  int32                              2+  = -1  ignorable
        committed_metadata      string                             0+  null 0+
    """


class TxnOffsetCommitResponse(Message, api=ApiKey.TXN_OFFSET_COMMIT):
    FIELDS = """
    throttle_time_ms     int32                               0+
    topics               []TxnOffsetCommitResponseTopic      0+
      name               string                              0+
      partitions         []TxnOffsetCommitResponsePartition  0+
        partition_index  int32                               0+
        error_code       int16                               0+
    """
