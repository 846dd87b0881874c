"""InitializeShareGroupState (83): Create the persistent state of share partitions (KIP-932)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class InitializeShareGroupStateRequest(Message, api=ApiKey.INITIALIZE_SHARE_GROUP_STATE):
    FIELDS = """
    group_id          string                 0+
    topics            []InitializeStateData  0+
      topic_id        uuid                   0+
      partitions      []PartitionData        0+
        partition     int32                  0+
        state_epoch   int32                  0+
        start_offset  int64                  0+
    """


class InitializeShareGroupStateResponse(Message, api=ApiKey.INITIALIZE_SHARE_GROUP_STATE):
    FIELDS = """
    results            []InitializeStateResult  0+
      topic_id         uuid                     0+
      partitions       []PartitionResult        0+
        partition      int32                    0+
        error_code     int16                    0+
        error_message  string                   0+  null 0+  = null
    """
