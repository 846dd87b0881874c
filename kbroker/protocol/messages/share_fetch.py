"""ShareFetch (78): Acquire records for a share group, and acknowledge earlier ones (KIP-932).

Version 0 was an early access of Kafka and has gone; 2 adds renewals and acquire modes.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ShareFetchRequest(Message, api=ApiKey.SHARE_FETCH):
    FIELDS = """
    group_id                     string                  0+  null 0+  = null
    member_id                    string                  0+  null 0+
    share_session_epoch          int32                   0+
    max_wait_ms                  int32                   0+
    min_bytes                    int32                   0+
    max_bytes                    int32                   0+  = 0x7fffffff
    max_records                  int32                   1+
    batch_size                   int32                   1+
    share_acquire_mode           int8                    2+  ignorable
    is_renew_ack                 bool                    2+
    topics                       []FetchTopic            0+
      topic_id                   uuid                    0+
      partitions                 []FetchPartition        0+
        partition_index          int32                   0+
        partition_max_bytes      int32                   0
        acknowledgement_batches  []AcknowledgementBatch  0+
          first_offset           int64                   0+
          last_offset            int64                   0+
          acknowledge_types      []int8                  0+
    forgotten_topics_data        []ForgottenTopic        0+
      topic_id                   uuid                    0+
      partitions                 []int32                 0+
    """


class ShareFetchResponse(Message, api=ApiKey.SHARE_FETCH):
    FIELDS = """
    throttle_time_ms               int32                          0+
    error_code                     int16                          0+
    error_message                  string                         0+  null 0+  = null
    acquisition_lock_timeout_ms    int32                          1+
    responses                      []ShareFetchableTopicResponse  0+
      topic_id                     uuid                           0+
      partitions                   []PartitionData                0+
        partition_index            int32                          0+
        error_code                 int16                          0+
        error_message              string                         0+  null 0+  = null
        acknowledge_error_code     int16                          0+
        acknowledge_error_message  string                         0+  null 0+  = null
        current_leader             LeaderIdAndEpoch               0+
          leader_id                int32                          0+
          leader_epoch             int32                          0+
        records                    records                        0+  null 0
        acquired_records           []AcquiredRecords              0+
          first_offset             int64                          0+
          last_offset              int64                          0+
          delivery_count           int16                          0+
    node_endpoints                 []NodeEndpoint                 0+
      node_id                      int32                          0+
      host                         string                         0+
      port                         int32                          0+
      rack                         string                         0+  null 0+  = null
    """
