"""Fetch (1): Read record batches from partitions; consumers and followers alike.

Version 3 limits the response as a whole (KIP-74); 4 brings isolation levels and magic 2; 5 the log
start; 7 fetch sessions (KIP-227); 9 leader epochs; 10 zstd; 11 racks (KIP-392); 12 detects
divergence and hints at the leader; 13 names topics by id; 15 replaces the replica id by replica
state; 17 and 18 only concern followers.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class FetchRequest(Message, api=ApiKey.FETCH):
    FIELDS = """
    cluster_id                string            12+   null 12+  tag 0  = null  ignorable
    replica_id                int32             0-14  = -1
    replica_state             ReplicaState      15+   tag 1
      replica_id              int32             15+   = -1
      replica_epoch           int64             15+   = -1
    max_wait_ms               int32             0+
    min_bytes                 int32             0+
    max_bytes                 int32             3+    = 0x7fffffff  ignorable
    isolation_level           int8              4+    ignorable
    session_id                int32             7+    ignorable
    session_epoch             int32             7+    = -1  ignorable
    topics                    []FetchTopic      0+
      topic                   string            0-12  ignorable
      topic_id                uuid              13+   ignorable
      partitions              []FetchPartition  0+
        partition             int32             0+
        current_leader_epoch  int32             9+    = -1  ignorable
        fetch_offset          int64             0+
        last_fetched_epoch    int32             12+   = -1
        log_start_offset      int64             5+    = -1  ignorable
        partition_max_bytes   int32             0+
        replica_directory_id  uuid              17+   tag 0  ignorable
        high_watermark        int64             18+   tag 1  = 9223372036854775807  ignorable
    forgotten_topics_data     []ForgottenTopic  7+
      topic                   string            7-12  ignorable
      topic_id                uuid              13+   ignorable
      partitions              []int32           7+
    rack_id                   string            11+   ignorable
    """


class FetchResponse(Message, api=ApiKey.FETCH):
    FIELDS = """
    throttle_time_ms            int32                     1+    ignorable
    error_code                  int16                     7+    ignorable
    session_id                  int32                     7+
    responses                   []FetchableTopicResponse  0+
      topic                     string                    0-12  ignorable
      topic_id                  uuid                      13+   ignorable
      partitions                []PartitionData           0+
        partition_index         int32                     0+
        error_code              int16                     0+
        high_watermark          int64                     0+
        last_stable_offset      int64                     4+    = -1  ignorable
        log_start_offset        int64                     5+    = -1  ignorable
        diverging_epoch         EpochEndOffset            12+   tag 0
          epoch                 int32                     12+   = -1
          end_offset            int64                     12+   = -1
        current_leader          LeaderIdAndEpoch          12+   tag 1
          leader_id             int32                     12+   = -1
          leader_epoch          int32                     12+   = -1
        snapshot_id             SnapshotId                12+   tag 2
          end_offset            int64                     0+    = -1
          epoch                 int32                     0+    = -1
        aborted_transactions    []AbortedTransaction      4+    null 4+  ignorable
          producer_id           int64                     4+
          first_offset          int64                     4+
        preferred_read_replica  int32                     11+   = -1
        records                 records                   0+    null 0+
    node_endpoints              []NodeEndpoint            16+   tag 0
      node_id                   int32                     16+
      host                      string                    16+
      port                      int32                     16+
      rack                      string                    16+   null 16+  = null
    """
