"""DescribeLogDirs (35): Log directories, their sizes and the replicas in them.

Version 4 adds the volumes' sizes, 5 whether a directory is cordoned. A request for totals alone,
and how many replicas and bytes a directory has, are tagged fields of our own (decision 0037): with
thousands of replicas, the rows of all of them take longer than all else.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeLogDirsRequest(Message, api=ApiKey.DESCRIBE_LOG_DIRS):
    FIELDS = """
    topics        []DescribableLogDirTopic  0+  null 0+
      topic       string                    0+
      partitions  []int32                   0+
    only_totals   bool                      2+  tag 10000  ignorable
    """


class DescribeLogDirsResponse(Message, api=ApiKey.DESCRIBE_LOG_DIRS):
    FIELDS = """
    throttle_time_ms       int32                       0+
    error_code             int16                       3+  ignorable
    results                []DescribeLogDirsResult     0+
      error_code           int16                       0+
      log_dir              string                      0+
      topics               []DescribeLogDirsTopic      0+
        name               string                      0+
        partitions         []DescribeLogDirsPartition  0+
          partition_index  int32                       0+
          partition_size   int64                       0+
          offset_lag       int64                       0+
          is_future_key    bool                        0+
      total_bytes          int64                       4+  = -1  ignorable
      usable_bytes         int64                       4+  = -1  ignorable
      is_cordoned          bool                        5+  ignorable
      replica_count        int32                       2+  tag 10000  = -1  ignorable
      replica_bytes        int64                       2+  tag 10001  = -1  ignorable
    """
