"""AlterReplicaLogDirs (34): Move replicas between the log directories of a broker."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class AlterReplicaLogDirsRequest(Message, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    FIELDS = """
    dirs            []AlterReplicaLogDir       0+
      path          string                     0+
      topics        []AlterReplicaLogDirTopic  0+
        name        string                     0+
        partitions  []int32                    0+
    """


class AlterReplicaLogDirsResponse(Message, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    FIELDS = """
    throttle_time_ms     int32                                0+
    results              []AlterReplicaLogDirTopicResult      0+
      topic_name         string                               0+
      partitions         []AlterReplicaLogDirPartitionResult  0+
        partition_index  int32                                0+
        error_code       int16                                0+
    """
