# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer


class PeerStatusRequest(Message):
    broker_id: int
    about_id: int
    about_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        about_id: int = ...,
        about_epoch: int = ...,
    ) -> None: ...


class PeerStatusResponse(Message):
    error_code: int
    broker_id: int
    broker_epoch: int
    hearing: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        broker_id: int = ...,
        broker_epoch: int = ...,
        hearing: int = ...,
    ) -> None: ...
