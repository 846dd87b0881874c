"""ApiVersions (18): The APIs and versions the broker speaks, and its features.

A request in a version the broker does not know is answered in version 0 with UNSUPPORTED_VERSION
and the supported range (KIP-511). Versions 0 to 3 cannot carry features whose first version is 0.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ApiVersionsRequest(Message, api=ApiKey.API_VERSIONS):
    FIELDS = """
    client_software_name     string  3+  ignorable
    client_software_version  string  3+  ignorable
    """


class ApiVersionsResponse(Message, api=ApiKey.API_VERSIONS):
    FIELDS = """
    error_code                int16                  0+
    api_keys                  []ApiVersion           0+
      api_key                 int16                  0+
      min_version             int16                  0+
      max_version             int16                  0+
    throttle_time_ms          int32                  1+  ignorable
    supported_features        []SupportedFeatureKey  3+  tag 0  ignorable
      name                    string                 3+
      min_version             int16                  3+
      max_version             int16                  3+
    finalized_features_epoch  int64                  3+  tag 1  = -1  ignorable
    finalized_features        []FinalizedFeatureKey  3+  tag 2  ignorable
      name                    string                 3+
      max_version_level       int16                  3+
      min_version_level       int16                  3+
    zk_migration_ready        bool                   3+  tag 3  ignorable
    """
