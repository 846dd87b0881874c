"""ReadShareGroupState (84): Read the persistent state of share partitions (KIP-932)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ReadShareGroupStateRequest(Message, api=ApiKey.READ_SHARE_GROUP_STATE):
    FIELDS = """
    group_id          string           0+
    topics            []ReadStateData  0+
      topic_id        uuid             0+
      partitions      []PartitionData  0+
        partition     int32            0+
        leader_epoch  int32            0+
    """


class ReadShareGroupStateResponse(Message, api=ApiKey.READ_SHARE_GROUP_STATE):
    FIELDS = """
    results               []ReadStateResult  0+
      topic_id            uuid               0+
      partitions          []PartitionResult  0+
        partition         int32              0+
        error_code        int16              0+
        error_message     string             0+  null 0+  = null
        state_epoch       int32              0+
        start_offset      int64              0+
        state_batches     []StateBatch       0+
          first_offset    int64              0+
          last_offset     int64              0+
          delivery_state  int8               0+
          delivery_count  int16              0+
    """
