"""SaslAuthenticate (36): Exchange SASL tokens after the handshake.

Version 1 adds the session lifetime, after which the client has to authenticate again (KIP-368).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class SaslAuthenticateRequest(Message, api=ApiKey.SASL_AUTHENTICATE):
    FIELDS = """
    auth_bytes  bytes  0+
    """


class SaslAuthenticateResponse(Message, api=ApiKey.SASL_AUTHENTICATE):
    FIELDS = """
    error_code           int16   0+
    error_message        string  0+  null 0+
    auth_bytes           bytes   0+
    session_lifetime_ms  int64   1+  ignorable
    """
