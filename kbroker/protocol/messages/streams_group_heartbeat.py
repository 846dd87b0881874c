"""StreamsGroupHeartbeat (88): Join, stay in and leave a streams group (KIP-1071)."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class StreamsGroupHeartbeatRequest(Message, api=ApiKey.STREAMS_GROUP_HEARTBEAT):
    FIELDS = """
    group_id                         string              0+
    member_id                        string              0+
    member_epoch                     int32               0+
    endpoint_information_epoch       int32               0+
    instance_id                      string              0+  null 0+  = null
    rack_id                          string              0+  null 0+  = null
    rebalance_timeout_ms             int32               0+  = -1
    topology                         Topology            0+  null 0+  = null
      epoch                          int32               0+
      subtopologies                  []Subtopology       0+
        subtopology_id               string              0+
        source_topics                []string            0+
        source_topic_regex           []string            0+
        state_changelog_topics       []TopicInfo         0+
        repartition_sink_topics      []string            0+
        repartition_source_topics    []TopicInfo         0+
        copartition_groups           []CopartitionGroup  0+
          source_topics              []int16             0+
          source_topic_regex         []int16             0+
          repartition_source_topics  []int16             0+
    active_tasks                     []TaskIds           0+  null 0+  = null
    standby_tasks                    []TaskIds           0+  null 0+  = null
    warmup_tasks                     []TaskIds           0+  null 0+  = null
    process_id                       string              0+  null 0+  = null
    user_endpoint                    Endpoint            0+  null 0+  = null
    client_tags                      []KeyValue          0+  null 0+  = null
    task_offsets                     []TaskOffset        0+  null 0+  = null
    task_end_offsets                 []TaskOffset        0+  null 0+  = null
    shutdown_application             bool                0+
    struct KeyValue
      key                            string              0+
      value                          string              0+
    struct TopicInfo
      name                           string              0+
      partitions                     int32               0+
      replication_factor             int16               0+
      topic_configs                  []KeyValue          0+
    struct Endpoint
      host                           string              0+
      port                           uint16              0+
    struct TaskOffset
      subtopology_id                 string              0+
      partition                      int32               0+
      offset                         int64               0+
    struct TaskIds
      subtopology_id                 string              0+
      partitions                     []int32             0+
    """


class StreamsGroupHeartbeatResponse(Message, api=ApiKey.STREAMS_GROUP_HEARTBEAT):
    FIELDS = """
    throttle_time_ms             int32                   0+
    error_code                   int16                   0+
    error_message                string                  0+  null 0+  = null
    member_id                    string                  0+
    member_epoch                 int32                   0+
    heartbeat_interval_ms        int32                   0+
    acceptable_recovery_lag      int32                   0+
    task_offset_interval_ms      int32                   0+
    status                       []Status                0+  null 0+
    active_tasks                 []TaskIds               0+  null 0+  = null
    standby_tasks                []TaskIds               0+  null 0+  = null
    warmup_tasks                 []TaskIds               0+  null 0+  = null
    endpoint_information_epoch   int32                   0+
    partitions_by_user_endpoint  []EndpointToPartitions  0+  null 0+  = null
      user_endpoint              Endpoint                0+
      active_partitions          []TopicPartition        0+
      standby_partitions         []TopicPartition        0+
    struct Status
      status_code                int8                    0+
      status_detail              string                  0+
    struct TopicPartition
      topic                      string                  0+
      partitions                 []int32                 0+
    struct TaskIds
      subtopology_id             string                  0+
      partitions                 []int32                 0+
    struct Endpoint
      host                       string                  0+
      port                       uint16                  0+
    """
