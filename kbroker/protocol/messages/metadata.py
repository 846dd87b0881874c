"""Metadata (3): The brokers, and the leader and replicas of every partition.

Asking for all topics is an empty list in version 0 and null from 1 on. Version 10 adds topic ids,
12 allows asking by id alone, 13 reports a top-level error.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class MetadataRequest(Message, api=ApiKey.METADATA):
    FIELDS = """
    topics                                 []MetadataRequestTopic  0+    null 1+
      topic_id                             uuid                    10+   ignorable
      name                                 string                  0+    null 10+
    allow_auto_topic_creation              bool                    4+    = true
    include_cluster_authorized_operations  bool                    8-10
    include_topic_authorized_operations    bool                    8+
    """


class MetadataResponse(Message, api=ApiKey.METADATA):
    FIELDS = """
    throttle_time_ms               int32                        3+    ignorable
    brokers                        []MetadataResponseBroker     0+
      node_id                      int32                        0+
      host                         string                       0+
      port                         int32                        0+
      rack                         string                       1+    null 1+  = null  ignorable
    cluster_id                     string                       2+    null 2+  = null  ignorable
    controller_id                  int32                        1+    = -1  ignorable
    topics                         []MetadataResponseTopic      0+
      error_code                   int16                        0+
      name                         string                       0+    null 12+
      topic_id                     uuid                         10+   ignorable
      is_internal                  bool                         1+    ignorable
      partitions                   []MetadataResponsePartition  0+
        error_code                 int16                        0+
        partition_index            int32                        0+
        leader_id                  int32                        0+
        leader_epoch               int32                        7+    = -1  ignorable
        replica_nodes              []int32                      0+
        isr_nodes                  []int32                      0+
        offline_replicas           []int32                      5+    ignorable
      topic_authorized_operations  int32                        8+    = -2147483648
    cluster_authorized_operations  int32                        8-10  = -2147483648
    error_code                     int16                        13+   ignorable
    """
