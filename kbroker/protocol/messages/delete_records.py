"""DeleteRecords (21): Move the log start offset of partitions forward."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DeleteRecordsRequest(Message, api=ApiKey.DELETE_RECORDS):
    FIELDS = """
    topics               []DeleteRecordsTopic      0+
      name               string                    0+
      partitions         []DeleteRecordsPartition  0+
        partition_index  int32                     0+
        offset           int64                     0+
    timeout_ms           int32                     0+
    """


class DeleteRecordsResponse(Message, api=ApiKey.DELETE_RECORDS):
    FIELDS = """
    throttle_time_ms     int32                           0+
    topics               []DeleteRecordsTopicResult      0+
      name               string                          0+
      partitions         []DeleteRecordsPartitionResult  0+
        partition_index  int32                           0+
        low_watermark    int64                           0+
        error_code       int16                           0+
    """
