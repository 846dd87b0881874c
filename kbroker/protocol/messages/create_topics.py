"""CreateTopics (19): Create topics.

Version 4 lets the broker choose partitions and replicas (-1, KIP-464); 5 answers with the configs
(KIP-525); 6 may be throttled; 7 answers with topic ids.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class CreateTopicsRequest(Message, api=ApiKey.CREATE_TOPICS):
    FIELDS = """
    topics                []CreatableTopic              0+
      name                string                        0+
      num_partitions      int32                         0+
      replication_factor  int16                         0+
      assignments         []CreatableReplicaAssignment  0+
        partition_index   int32                         0+
        broker_ids        []int32                       0+
      configs             []CreatableTopicConfig        0+
        name              string                        0+
        value             string                        0+  null 0+
    timeout_ms            int32                         0+  = 60000
    validate_only         bool                          1+
    """


class CreateTopicsResponse(Message, api=ApiKey.CREATE_TOPICS):
    FIELDS = """
    throttle_time_ms           int32                    2+  ignorable
    topics                     []CreatableTopicResult   0+
      name                     string                   0+
      topic_id                 uuid                     7+  ignorable
      error_code               int16                    0+
      error_message            string                   1+  null 0+  ignorable
      topic_config_error_code  int16                    5+  tag 0  ignorable
      num_partitions           int32                    5+  = -1  ignorable
      replication_factor       int16                    5+  = -1  ignorable
      configs                  []CreatableTopicConfigs  5+  null 5+  ignorable
        name                   string                   5+
        value                  string                   5+  null 5+
        read_only              bool                     5+
        config_source          int8                     5+  = -1  ignorable
        is_sensitive           bool                     5+
    """
