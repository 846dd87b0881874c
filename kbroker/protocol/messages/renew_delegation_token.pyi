# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer


class RenewDelegationTokenRequest(Message):
    hmac: Buffer
    renew_period_ms: int
    def __init__(
        self,
        *,
        hmac: Buffer | bytearray = ...,
        renew_period_ms: int = ...,
    ) -> None: ...


class RenewDelegationTokenResponse(Message):
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        expiry_timestamp_ms: int = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...
