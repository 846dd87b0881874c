"""WriteShareGroupState (85): Write the persistent state of share partitions (KIP-932)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class WriteShareGroupStateRequest(Message, api=ApiKey.WRITE_SHARE_GROUP_STATE):
    FIELDS = """
    group_id                     string            0+
    topics                       []WriteStateData  0+
      topic_id                   uuid              0+
      partitions                 []PartitionData   0+
        partition                int32             0+
        state_epoch              int32             0+
        leader_epoch             int32             0+
        start_offset             int64             0+
        delivery_complete_count  int32             1+  = -1  ignorable
        state_batches            []StateBatch      0+
          first_offset           int64             0+
          last_offset            int64             0+
          delivery_state         int8              0+
          delivery_count         int16             0+
    """


class WriteShareGroupStateResponse(Message, api=ApiKey.WRITE_SHARE_GROUP_STATE):
    FIELDS = """
    results            []WriteStateResult  0+
      topic_id         uuid                0+
      partitions       []PartitionResult   0+
        partition      int32               0+
        error_code     int16               0+
        error_message  string              0+  null 0+  = null
    """
