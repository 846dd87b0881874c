"""ShareAcknowledge (79): Acknowledge records acquired by a share group (KIP-932).

Version 0 was an early access of Kafka and has gone; 2 adds renewals.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ShareAcknowledgeRequest(Message, api=ApiKey.SHARE_ACKNOWLEDGE):
    FIELDS = """
    group_id                     string                  0+  null 0+  = null
    member_id                    string                  0+  null 0+
    share_session_epoch          int32                   0+
    is_renew_ack                 bool                    2+
    topics                       []AcknowledgeTopic      0+
      topic_id                   uuid                    0+
      partitions                 []AcknowledgePartition  0+
        partition_index          int32                   0+
        acknowledgement_batches  []AcknowledgementBatch  0+
          first_offset           int64                   0+
          last_offset            int64                   0+
          acknowledge_types      []int8                  0+
    """


class ShareAcknowledgeResponse(Message, api=ApiKey.SHARE_ACKNOWLEDGE):
    FIELDS = """
    throttle_time_ms             int32                            0+
    error_code                   int16                            0+
    error_message                string                           0+  null 0+  = null
    acquisition_lock_timeout_ms  int32                            2+  ignorable
    responses                    []ShareAcknowledgeTopicResponse  0+
      topic_id                   uuid                             0+
      partitions                 []PartitionData                  0+
        partition_index          int32                            0+
        error_code               int16                            0+
        error_message            string                           0+  null 0+  = null
        current_leader           LeaderIdAndEpoch                 0+
          leader_id              int32                            0+
          leader_epoch           int32                            0+
    node_endpoints               []NodeEndpoint                   0+
      node_id                    int32                            0+
      host                       string                           0+
      port                       int32                            0+
      rack                       string                           0+  null 0+  = null
    """
