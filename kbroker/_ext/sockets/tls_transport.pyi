import ssl

from kbroker._ext.sockets.transport import Transport

class TlsTransport(Transport):
    """Of a non-blocking socket whose handshake is done; it owns it. fd: its descriptor."""

    @property
    def socket(self) -> ssl.SSLSocket: ...
    @property
    def fault(self) -> OSError | None: ...
    def __init__(self, fd: int, connected: ssl.SSLSocket) -> None: ...
