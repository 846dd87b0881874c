from typing import Any

from kbroker._ext.verdicts import Verdicts

HANDSHAKE: int
AUTHENTICATING: int
SERVING: int

class Connection:
    @property
    def fd(self) -> int: ...
    @property
    def listener(self) -> int: ...
    @property
    def peer_host(self) -> str: ...
    @property
    def peer_port(self) -> int: ...
    @property
    def client_id(self) -> bytes | None: ...
    @property
    def access(self) -> Any: ...
    local_address: tuple[str, int]
    turn: Any
    phase: int
    close_reason: str | None
    def identify(self, access: Verdicts) -> None: ...

def refused_reason(length: int, frame_max: int) -> str: ...
