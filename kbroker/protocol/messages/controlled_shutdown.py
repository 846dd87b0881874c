"""ControlledShutdown (7): A broker asks the controller to move its leaderships away.

Between brokers of ZooKeeper clusters only. Version 0 has a request header without client id.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ControlledShutdownRequest(Message, api=ApiKey.CONTROLLED_SHUTDOWN):
    FIELDS = """
    broker_id     int32  0+
    broker_epoch  int64  2+  = -1  ignorable
    """


class ControlledShutdownResponse(Message, api=ApiKey.CONTROLLED_SHUTDOWN):
    FIELDS = """
    error_code            int16                 0+
    remaining_partitions  []RemainingPartition  0+
      topic_name          string                0+
      partition_index     int32                 0+
    """
