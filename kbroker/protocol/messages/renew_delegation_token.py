"""RenewDelegationToken (39): Extend a delegation token's life."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class RenewDelegationTokenRequest(Message, api=ApiKey.RENEW_DELEGATION_TOKEN):
    FIELDS = """
    hmac             bytes  0+
    renew_period_ms  int64  0+
    """


class RenewDelegationTokenResponse(Message, api=ApiKey.RENEW_DELEGATION_TOKEN):
    FIELDS = """
    error_code           int16  0+
    expiry_timestamp_ms  int64  0+
    throttle_time_ms     int32  0+
    """
