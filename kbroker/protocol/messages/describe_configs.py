"""DescribeConfigs (32): Settings of topics, brokers and other resources.

Version 1 replaces the flag of defaults by the source of the value and adds synonyms (KIP-226); 3
adds types and documentation.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeConfigsRequest(Message, api=ApiKey.DESCRIBE_CONFIGS):
    FIELDS = """
    resources              []DescribeConfigsResource  0+
      resource_type        int8                       0+
      resource_name        string                     0+
      configuration_keys   []string                   0+  null 0+
    include_synonyms       bool                       1+
    include_documentation  bool                       3+
    """


class DescribeConfigsResponse(Message, api=ApiKey.DESCRIBE_CONFIGS):
    FIELDS = """
    throttle_time_ms   int32                            0+
    results            []DescribeConfigsResult          0+
      error_code       int16                            0+
      error_message    string                           0+  null 0+
      resource_type    int8                             0+
      resource_name    string                           0+
      configs          []DescribeConfigsResourceResult  0+
        name           string                           0+
        value          string                           0+  null 0+
        read_only      bool                             0+
        is_default     bool                             0
        config_source  int8                             1+  = -1  ignorable
        is_sensitive   bool                             0+
        synonyms       []DescribeConfigsSynonym         1+  ignorable
          name         string                           1+
          value        string                           1+  null 0+
          source       int8                             1+
        config_type    int8                             3+  ignorable
        documentation  string                           3+  null 0+  ignorable
    """
