"""CreateDelegationToken (38): Create a delegation token.

Version 3 may create one for another owner.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class CreateDelegationTokenRequest(Message, api=ApiKey.CREATE_DELEGATION_TOKEN):
    FIELDS = """
    owner_principal_type  string               3+  null 3+
    owner_principal_name  string               3+  null 3+
    renewers              []CreatableRenewers  0+
      principal_type      string               0+
      principal_name      string               0+
    max_lifetime_ms       int64                0+
    """


class CreateDelegationTokenResponse(Message, api=ApiKey.CREATE_DELEGATION_TOKEN):
    FIELDS = """
    error_code                      int16   0+
    principal_type                  string  0+
    principal_name                  string  0+
    token_requester_principal_type  string  3+
    token_requester_principal_name  string  3+
    issue_timestamp_ms              int64   0+
    expiry_timestamp_ms             int64   0+
    max_timestamp_ms                int64   0+
    token_id                        string  0+
    hmac                            bytes   0+
    throttle_time_ms                int32   0+
    """
