"""UpdateFeatures (57): Finalize versions of cluster features.

Version 1 can validate only, 2 answers without the single features.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class UpdateFeaturesRequest(Message, api=ApiKey.UPDATE_FEATURES):
    FIELDS = """
    timeout_ms           int32               0+  = 60000
    feature_updates      []FeatureUpdateKey  0+
      feature            string              0+
      max_version_level  int16               0+
      allow_downgrade    bool                0
      upgrade_type       int8                1+  = 1
    validate_only        bool                1+
    """


class UpdateFeaturesResponse(Message, api=ApiKey.UPDATE_FEATURES):
    FIELDS = """
    throttle_time_ms  int32                     0+
    error_code        int16                     0+
    error_message     string                    0+   null 0+
    results           []UpdatableFeatureResult  0-1  ignorable
      feature         string                    0+
      error_code      int16                     0+
      error_message   string                    0+   null 0+
    """
