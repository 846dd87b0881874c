"""ListPartitionReassignments (46): The partitions being moved."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ListPartitionReassignmentsRequest(Message, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    FIELDS = """
    timeout_ms           int32                               0+  = 60000
    topics               []ListPartitionReassignmentsTopics  0+  null 0+  = null
      name               string                              0+
      partition_indexes  []int32                             0+
    """


class ListPartitionReassignmentsResponse(Message, api=ApiKey.LIST_PARTITION_REASSIGNMENTS):
    FIELDS = """
    throttle_time_ms       int32                           0+
    error_code             int16                           0+
    error_message          string                          0+  null 0+
    topics                 []OngoingTopicReassignment      0+
      name                 string                          0+
      partitions           []OngoingPartitionReassignment  0+
        partition_index    int32                           0+
        replicas           []int32                         0+
        adding_replicas    []int32                         0+
        removing_replicas  []int32                         0+
    """
