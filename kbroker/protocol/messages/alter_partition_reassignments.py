"""AlterPartitionReassignments (45): Start or cancel moving partitions to other brokers.

Version 1 says whether the replication factor may change.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterPartitionReassignmentsRequest(Message, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    FIELDS = """
    timeout_ms                       int32                    0+  = 60000
    allow_replication_factor_change  bool                     1+  = true
    topics                           []ReassignableTopic      0+
      name                           string                   0+
      partitions                     []ReassignablePartition  0+
        partition_index              int32                    0+
        replicas                     []int32                  0+  null 0+  = null
    """


class AlterPartitionReassignmentsResponse(Message, api=ApiKey.ALTER_PARTITION_REASSIGNMENTS):
    FIELDS = """
    throttle_time_ms                 int32                            0+
    allow_replication_factor_change  bool                             1+  = true  ignorable
    error_code                       int16                            0+
    error_message                    string                           0+  null 0+
    responses                        []ReassignableTopicResponse      0+
      name                           string                           0+
      partitions                     []ReassignablePartitionResponse  0+
        partition_index              int32                            0+
        error_code                   int16                            0+
        error_message                string                           0+  null 0+
    """
