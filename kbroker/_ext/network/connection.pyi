from typing import Any

from kbroker._ext.sockets.verdicts import Verdicts

HANDSHAKE: int
AUTHENTICATING: int
TOKENS: int
FAILED: int
SERVING: int
SESSION: int

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
    @property
    def muted_until_ms(self) -> int: ...
    @property
    def throttle_time_ms(self) -> int: ...
    local_address: tuple[str, int]
    turn: Any
    phase: int
    login: Any
    session_end_ms: int
    close_reason: str | None
    def identify(self, access: Verdicts) -> None: ...
    def authenticate_again(self, phase: int) -> None: ...

def rejection_reason(length: int, frame_max: int, is_known: bool = ...) -> str: ...
