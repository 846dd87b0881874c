"""ExpireDelegationToken (40): Shorten a delegation token's life, or end it."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class ExpireDelegationTokenRequest(Message, api=ApiKey.EXPIRE_DELEGATION_TOKEN):
    FIELDS = """
    hmac                   bytes  0+
    expiry_time_period_ms  int64  0+
    """


class ExpireDelegationTokenResponse(Message, api=ApiKey.EXPIRE_DELEGATION_TOKEN):
    FIELDS = """
    error_code           int16  0+
    expiry_timestamp_ms  int64  0+
    throttle_time_ms     int32  0+
    """
