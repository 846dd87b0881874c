"""DescribeDelegationToken (41): The delegation tokens of owners.

Version 3 tells who requested the token.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class DescribeDelegationTokenRequest(Message, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    FIELDS = """
    owners            []DescribeDelegationTokenOwner  0+  null 0+
      principal_type  string                          0+
      principal_name  string                          0+
    """


class DescribeDelegationTokenResponse(Message, api=ApiKey.DESCRIBE_DELEGATION_TOKEN):
    FIELDS = """
    error_code                        int16                              0+
    tokens                            []DescribedDelegationToken         0+
      principal_type                  string                             0+
      principal_name                  string                             0+
      token_requester_principal_type  string                             3+
      token_requester_principal_name  string                             3+
      issue_timestamp                 int64                              0+
      expiry_timestamp                int64                              0+
      max_timestamp                   int64                              0+
      token_id                        string                             0+
      hmac                            bytes                              0+
      renewers                        []DescribedDelegationTokenRenewer  0+
        principal_type                string                             0+
        principal_name                string                             0+
    throttle_time_ms                  int32                              0+
    """
