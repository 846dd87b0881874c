# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer


class SaslAuthenticateRequest(Message):
    auth_bytes: Buffer
    def __init__(
        self,
        *,
        auth_bytes: Buffer | bytearray = ...,
    ) -> None: ...


class SaslAuthenticateResponse(Message):
    error_code: int
    error_message: str | None
    auth_bytes: Buffer
    session_lifetime_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        error_message: str | None = ...,
        auth_bytes: Buffer | bytearray = ...,
        session_lifetime_ms: int = ...,
    ) -> None: ...
