"""ElectLeaders (43): Elect preferred leaders, or unclean ones.

Version 0 can only elect preferred leaders.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ElectLeadersRequest(Message, api=ApiKey.ELECT_LEADERS):
    FIELDS = """
    election_type     int8               1+
    topic_partitions  []TopicPartitions  0+  null 0+
      topic           string             0+
      partitions      []int32            0+
    timeout_ms        int32              0+  = 60000
    """


class ElectLeadersResponse(Message, api=ApiKey.ELECT_LEADERS):
    FIELDS = """
    throttle_time_ms          int32                    0+
    error_code                int16                    1+
    replica_election_results  []ReplicaElectionResult  0+
      topic                   string                   0+
      partition_result        []PartitionResult        0+
        partition_id          int32                    0+
        error_code            int16                    0+
        error_message         string                   0+  null 0+
    """
