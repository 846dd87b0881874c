"""Envelope (58): A broker forwards a client's request to the controller."""

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message


class EnvelopeRequest(Message, api=ApiKey.ENVELOPE):
    FIELDS = """
    request_data         bytes  0+
    request_principal    bytes  0+  null 0+
    client_host_address  bytes  0+
    """


class EnvelopeResponse(Message, api=ApiKey.ENVELOPE):
    FIELDS = """
    response_data  bytes  0+  null 0+  = null
    error_code     int16  0+
    """
