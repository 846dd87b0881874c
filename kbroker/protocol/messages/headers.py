"""The headers before requests and responses, as definitions.

``kbroker.protocol.header`` reads and writes them by hand, because they come before the version of
anything is known; the tests hold it against these.
"""

from kbroker.protocol.message import Message


class RequestHeader(Message, versions=(0, 2), flexible=2):
    FIELDS = """
    request_api_key      int16   0+
    request_api_version  int16   0+
    correlation_id       int32   0+
    client_id            string  1+  null 1+  ignorable  classic
    """


class ResponseHeader(Message, versions=(0, 1), flexible=1):
    FIELDS = """
    correlation_id  int32  0+
    """
