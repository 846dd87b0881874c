"""DescribeCluster (60): Brokers, controller and cluster id, without topics.

Version 1 can ask about controllers, 2 includes fenced brokers (KIP-1073). Since when a broker is
fenced, the health of the broker that answers, and how many topics and partitions there are (-1: it
does not say), with those in trouble, are tagged fields of our own: Kafka's tags are small numbers,
ours begin at 10,000 (decision 0037). Every client and broker skips tags that it does not know.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeClusterRequest(Message, api=ApiKey.DESCRIBE_CLUSTER):
    FIELDS = """
    include_cluster_authorized_operations  bool  0+
    endpoint_type                          int8  1+  = 1
    include_fenced_brokers                 bool  2+
    include_health                         bool  2+  tag 10000  ignorable
    include_partitions                     bool  2+  tag 10001  ignorable
    """


class DescribeClusterResponse(Message, api=ApiKey.DESCRIBE_CLUSTER):
    FIELDS = """
    throttle_time_ms               int32                    0+
    error_code                     int16                    0+
    error_message                  string                   0+  null 0+  = null
    endpoint_type                  int8                     1+  = 1
    cluster_id                     string                   0+
    controller_id                  int32                    0+  = -1
    brokers                        []DescribeClusterBroker  0+
      broker_id                    int32                    0+
      host                         string                   0+
      port                         int32                    0+
      rack                         string                   0+  null 0+  = null
      is_fenced                    bool                     2+
      fenced_since_ms              int64                    2+  tag 10000  = -1  ignorable
      leads                        int32                    2+  tag 10001  = -1  ignorable
      replicas                     int32                    2+  tag 10002  = -1  ignorable
    cluster_authorized_operations  int32                    0+  = -2147483648
    health                         string                   2+  tag 10001  ignorable
    topics                         int32                    2+  tag 10002  = -1  ignorable
    internal_topics                int32                    2+  tag 10003  = -1  ignorable
    partitions                     int32                    2+  tag 10004  = -1  ignorable
    troubled                       []TroubledPartition      2+  tag 10005  ignorable
      topic                        string                   2+
      partition                    int32                    2+
      leader                       int32                    2+
      replicas                     []int32                  2+
      isr                          []int32                  2+
    """
