"""SaslHandshake (17): versions 0 and 1, refused: no listener of this broker speaks SASL yet."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@api(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
async def handle_sasl_handshake(
    ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """What Kafka answers on a listener without SASL."""
    return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
