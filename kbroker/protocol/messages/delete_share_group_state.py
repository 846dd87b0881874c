"""DeleteShareGroupState (86): Delete the persistent state of share partitions (KIP-932)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteShareGroupStateRequest(Message, api=ApiKey.DELETE_SHARE_GROUP_STATE):
    FIELDS = """
    group_id       string             0+
    topics         []DeleteStateData  0+
      topic_id     uuid               0+
      partitions   []PartitionData    0+
        partition  int32              0+
    """


class DeleteShareGroupStateResponse(Message, api=ApiKey.DELETE_SHARE_GROUP_STATE):
    FIELDS = """
    results            []DeleteStateResult  0+
      topic_id         uuid                 0+
      partitions       []PartitionResult    0+
        partition      int32                0+
        error_code     int16                0+
        error_message  string               0+  null 0+  = null
    """
