"""SaslHandshake (17): versions 0 and 1, and SaslAuthenticate (36): versions 0 to 2.

Both are rejected, as in Kafka on a listener without SASL: no listener here speaks it yet.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import NOTHING
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@api(ApiKey.SASL_HANDSHAKE, versions=(0, 1), authorize=NOTHING)
async def handle_sasl_handshake(
    ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))


@api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), authorize=NOTHING)
async def handle_sasl_authenticate(
    ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    raise WireError(ErrorCode.ILLEGAL_SASL_STATE, "This listener does not authenticate with SASL.")
