from kbroker._ext.sockets.transport import Transport
from kbroker.security.tls.tls_socket import TlsSocket

class TlsTransport(Transport):
    """Of a non-blocking socket whose handshake is done; it owns it. fd: its descriptor."""

    @property
    def socket(self) -> TlsSocket: ...
    @property
    def fault(self) -> OSError | None: ...
    def __init__(self, fd: int, connected: TlsSocket) -> None: ...
