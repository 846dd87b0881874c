"""A connection to another broker that is ready for requests: here without encryption.

``security`` makes those that are encrypted or authenticated. What it needs, OpenSSL before all, is
loaded by brokers that use it only.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar

from kbroker._ext.sockets.transport import Transport
from kbroker.config.loader import BrokerConfig

if TYPE_CHECKING:
    from kbroker.peers.security import PeerSecurity

PLAINTEXT = "PLAINTEXT"


class Secured:
    """As its listener wants it. renews_after_ms: another connection must be made then; None:
    never.
    """

    # What says that the socket has to become readable or writable first.
    not_now: ClassVar[tuple[type[OSError], ...]] = (BlockingIOError, InterruptedError)

    def __init__(self, made: socket.socket, renews_after_ms: int | None = None) -> None:
        self.socket = made
        self.renews_after_ms = renews_after_ms

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
