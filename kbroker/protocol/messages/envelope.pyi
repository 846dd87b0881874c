# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer


class EnvelopeRequest(Message):
    request_data: Buffer
    request_principal: Buffer | None
    client_host_address: Buffer
    def __init__(
        self,
        *,
        request_data: Buffer | bytearray = ...,
        request_principal: Buffer | bytearray | None = ...,
        client_host_address: Buffer | bytearray = ...,
    ) -> None: ...


class EnvelopeResponse(Message):
    response_data: Buffer | None
    error_code: int
    def __init__(
        self,
        *,
        response_data: Buffer | bytearray | None = ...,
        error_code: int = ...,
    ) -> None: ...
