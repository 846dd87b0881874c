"""PeerStatus (20001): a kbroker asks another who it is, and whether it still hears from a third.

Between kbrokers that register support for it, never announced to clients
(``docs/decisions/0034-a-broker-that-is-gone.md``).
"""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class PeerStatusRequest(Message, api=ApiKey.PEER_STATUS):
    FIELDS = """
    broker_id     int32  0+
    about_id      int32  0+  = -1
    about_epoch   int64  0+  = -1
    """


class PeerStatusResponse(Message, api=ApiKey.PEER_STATUS):
    FIELDS = """
    error_code    int16  0+
    broker_id     int32  0+  = -1
    broker_epoch  int64  0+  = -1
    hearing       int8   0+
    """
