"""CreatePartitions (37): Add partitions to topics.

Version 3 may be throttled (KIP-599).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class CreatePartitionsRequest(Message, api=ApiKey.CREATE_PARTITIONS):
    FIELDS = """
    topics          []CreatePartitionsTopic       0+
      name          string                        0+
      count         int32                         0+
      assignments   []CreatePartitionsAssignment  0+  null 0+
        broker_ids  []int32                       0+
    timeout_ms      int32                         0+
    validate_only   bool                          0+
    """


class CreatePartitionsResponse(Message, api=ApiKey.CREATE_PARTITIONS):
    FIELDS = """
    throttle_time_ms  int32                          0+
    results           []CreatePartitionsTopicResult  0+
      name            string                         0+
      error_code      int16                          0+
      error_message   string                         0+  null 0+  = null
    """
