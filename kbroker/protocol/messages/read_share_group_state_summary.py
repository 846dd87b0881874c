"""ReadShareGroupStateSummary (87): Read where share partitions start (KIP-932)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ReadShareGroupStateSummaryRequest(Message, api=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY):
    FIELDS = """
    group_id          string                  0+
    topics            []ReadStateSummaryData  0+
      topic_id        uuid                    0+
      partitions      []PartitionData         0+
        partition     int32                   0+
        leader_epoch  int32                   0+
    """


class ReadShareGroupStateSummaryResponse(Message, api=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY):
    FIELDS = """
    results                      []ReadStateSummaryResult  0+
      topic_id                   uuid                      0+
      partitions                 []PartitionResult         0+
        partition                int32                     0+
        error_code               int16                     0+
        error_message            string                    0+  null 0+  = null
        state_epoch              int32                     0+
        leader_epoch             int32                     0+
        start_offset             int64                     0+
        delivery_complete_count  int32                     1+  = -1  ignorable
    """
