"""CreateDelegationToken (38), RenewDelegationToken (39), ExpireDelegationToken (40) and
DescribeDelegationToken (41): versions 0 to 3, 2, 2 and 3.

As in Kafka, no connection without authentication may have tokens, and here there is no other yet.
"""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import NOTHING
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_delegation_token import CreateDelegationTokenResponse
from kbroker.protocol.messages.describe_delegation_token import DescribeDelegationTokenResponse
from kbroker.protocol.messages.expire_delegation_token import ExpireDelegationTokenResponse
from kbroker.protocol.messages.renew_delegation_token import RenewDelegationTokenResponse

REJECTED = int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
NEVER_MS = -1
NOBODY = {"type": "User", "name": "ANONYMOUS"}


@api(ApiKey.CREATE_DELEGATION_TOKEN, versions=(0, 3), authorize=NOTHING)
async def handle_create_delegation_token(
    ctx: RequestContext, request: Any
) -> CreateDelegationTokenResponse:
    """Rejected; the response names the client's principal."""
    response = CreateDelegationTokenResponse(
        error_code=REJECTED,
        principal_type=NOBODY["type"],
        principal_name=NOBODY["name"],
        issue_timestamp_ms=NEVER_MS,
        expiry_timestamp_ms=NEVER_MS,
        max_timestamp_ms=NEVER_MS,
    )
    if ctx.api_version >= 3:
        response.token_requester_principal_type = NOBODY["type"]
        response.token_requester_principal_name = NOBODY["name"]
    return response


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(0, 2), authorize=NOTHING)
async def handle_renew_delegation_token(
    ctx: RequestContext, request: Any
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=REJECTED, expiry_timestamp_ms=NEVER_MS)


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2), authorize=NOTHING)
async def handle_expire_delegation_token(
    ctx: RequestContext, request: Any
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=REJECTED, expiry_timestamp_ms=NEVER_MS)


@api(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(0, 3), authorize=NOTHING)
async def handle_describe_delegation_token(
    ctx: RequestContext, request: Any
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=REJECTED)
