"""SaslHandshake (17): Choose a SASL mechanism.

After version 0 raw tokens follow without any Kafka header, after version 1 they travel in
SaslAuthenticate requests. It can have no newer versions: clients up to 2.4 do not negotiate them.
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class SaslHandshakeRequest(Message, api=ApiKey.SASL_HANDSHAKE):
    FIELDS = """
    mechanism  string  0+
    """


class SaslHandshakeResponse(Message, api=ApiKey.SASL_HANDSHAKE):
    FIELDS = """
    error_code  int16     0+
    mechanisms  []string  0+
    """
