"""StreamsGroupDescribe (89): State, topology and members of streams groups (KIP-1071)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class StreamsGroupDescribeRequest(Message, api=ApiKey.STREAMS_GROUP_DESCRIBE):
    FIELDS = """
    group_ids                      []string  0+
    include_authorized_operations  bool      0+
    """


class StreamsGroupDescribeResponse(Message, api=ApiKey.STREAMS_GROUP_DESCRIBE):
    FIELDS = """
    throttle_time_ms                 int32             0+
    groups                           []DescribedGroup  0+
      error_code                     int16             0+
      error_message                  string            0+  null 0+  = null
      group_id                       string            0+
      group_state                    string            0+
      group_epoch                    int32             0+
      assignment_epoch               int32             0+
      topology                       Topology          0+  null 0+  = null
        epoch                        int32             0+
        subtopologies                []Subtopology     0+  null 0+  = null
          subtopology_id             string            0+
          source_topics              []string          0+
          repartition_sink_topics    []string          0+
          state_changelog_topics     []TopicInfo       0+
          repartition_source_topics  []TopicInfo       0+
      members                        []Member          0+
        member_id                    string            0+
        member_epoch                 int32             0+
        instance_id                  string            0+  null 0+  = null
        rack_id                      string            0+  null 0+  = null
        client_id                    string            0+
        client_host                  string            0+
        topology_epoch               int32             0+
        process_id                   string            0+
        user_endpoint                Endpoint          0+  null 0+  = null
        client_tags                  []KeyValue        0+
        task_offsets                 []TaskOffset      0+
        task_end_offsets             []TaskOffset      0+
        assignment                   Assignment        0+
        target_assignment            Assignment        0+
        is_classic                   bool              0+
      authorized_operations          int32             0+  = -2147483648
    struct Endpoint
      host                           string            0+
      port                           uint16            0+
    struct TaskOffset
      subtopology_id                 string            0+
      partition                      int32             0+
      offset                         int64             0+
    struct Assignment
      active_tasks                   []TaskIds         0+
      standby_tasks                  []TaskIds         0+
      warmup_tasks                   []TaskIds         0+
    struct TaskIds
      subtopology_id                 string            0+
      partitions                     []int32           0+
    struct KeyValue
      key                            string            0+
      value                          string            0+
    struct TopicInfo
      name                           string            0+
      partitions                     int32             0+
      replication_factor             int16             0+
      topic_configs                  []KeyValue        0+
    """
