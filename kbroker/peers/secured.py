"""A connection to another broker that is ready for requests: here without encryption.

``security`` makes those that are encrypted or authenticated. What it needs, OpenSSL before all, is
loaded by brokers that use it only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker._ext.sockets.transport import Transport
from kbroker.config.loader import BrokerConfig

if TYPE_CHECKING:
    from kbroker.peers.security import PeerSecurity

PLAINTEXT = "PLAINTEXT"


class Connected(Protocol):
    """What is used of a connected socket, encrypted or not."""

    def fileno(self) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def setblocking(self, blocking: bool, /) -> None: ...
    def close(self) -> None: ...
    def detach(self) -> int: ...
    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes | memoryview, /) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...


class Secured:
    """As its listener wants it. renews_after_ms: another connection must be made then; None:
    never.
    """

    def __init__(self, made: Connected, renews_after_ms: int | None = None) -> None:
        self.socket = made
        self.renews_after_ms = renews_after_ms

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait that the stream has taken: ``send(b"")`` sends them."""
        return False

    @property
    def has_received(self) -> bool:
        """Whether there is more to receive, of which the descriptor does not tell."""
        return False

    def transport(self) -> Transport:
        """What owns the socket from now on."""
        return Transport(self.socket.detach())

    def reason(self, error: OSError) -> str:
        """Why it was lost."""
        return str(error)


def load_security(config: BrokerConfig) -> dict[str, PeerSecurity]:
    """By listener: how this broker connects to others. Empty where there are none, or where nothing
    is secured. Raises ConfigError.
    """
    if not config.uses_zookeeper:
        return {}
    names = dict.fromkeys((config.inter_broker_listener, config.control_listener))
    secured = [name for name in names if config.security_protocol(name) != PLAINTEXT]
    if not secured:
        return {}
    from kbroker.peers.security import PeerSecurity

    return {name: PeerSecurity(config, name) for name in secured}
