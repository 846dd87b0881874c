"""CreateDelegationToken (38): versions 0 to 3, RenewDelegationToken (39) and ExpireDelegationToken
(40): 0 to 2, DescribeDelegationToken (41): 0 to 3.

COMPAT: as in Kafka, only a connection whose client is authenticated may ask, and not one that has
logged in with a token itself: whoever gets hold of one must not be able to prolong it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import NOTHING, each
from kbroker.ipc.calls import (
    CREATE_TOKEN,
    DESCRIBE_TOKENS,
    EXPIRE_TOKEN,
    RENEW_TOKEN,
    CallOperation,
    ChangeToken,
    CreateToken,
    DescribeTokens,
    FoundToken,
    TokenEnd,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kbroker.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kbroker.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kbroker.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kbroker.protocol.primitives import Buffer
from kbroker.security.delegation import USER
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

NEVER_MS = -1
KEY = "delegation.token.master.key"
# BOUND: renewers of a token, and characters of a principal's name: all are in one node.
RENEWERS_MAX = 100
NAME_CHARS_MAX = 1024


def check_connection(ctx: RequestContext) -> None:
    """Raises WireError unless the client may have tokens."""
    if not may_have_tokens(ctx):
        raise WireError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def check_enabled(ctx: RequestContext) -> None:
    """Raises WireError unless there are tokens."""
    if not ctx.config[KEY]:
        raise WireError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)


def may_have_tokens(ctx: RequestContext) -> bool:
    listener = ctx.process.context.listeners[ctx.connection.listener][0]
    login = ctx.connection.login
    if listener.uses_sasl:
        return login is not None and login.principal is not None and not login.is_token
    # With TLS alone, it is a certificate that says who the client is.
    return listener.uses_tls and ctx.principal != ANONYMOUS


# -- create


def principal_of(named: CreateDelegationTokenRequest.CreatableRenewers) -> KafkaPrincipal:
    """The principal in a request; INVALID_PRINCIPAL_TYPE for one that cannot log in."""
    if named.principal_type != USER:
        raise WireError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if not 0 < len(named.principal_name) <= NAME_CHARS_MAX:
        raise WireError(ErrorCode.INVALID_REQUEST)
    return KafkaPrincipal(named.principal_type, named.principal_name)


@api(
    ApiKey.CREATE_DELEGATION_TOKEN,
    versions=(0, 3),
    authorize=(each(AclOperation.CREATE_TOKENS, Kind.USER),),
)
async def handle_create_delegation_token(
    ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """For the client itself, or, in version 3, for another owner. An error names both, too."""
    owner = requester = ctx.principal
    if request.owner_principal_name:
        owner = KafkaPrincipal(request.owner_principal_type or "", request.owner_principal_name)
    try:
        check_connection(ctx)
        token = await created(ctx, request, owner)
    except WireError as error:
        return created_response(ctx, owner, requester, error=error)
    return created_response(ctx, token.owner, requester, token)


async def created(
    ctx: RequestContext, request: CreateDelegationTokenRequest, owner: KafkaPrincipal
) -> FoundToken:
    requester = ctx.principal
    # COMPAT: the authorization comes before the type of the owner, and the renewers.
    if owner != requester and not ctx.allows(AclOperation.CREATE_TOKENS, Kind.USER, str(owner)):
        raise WireError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if owner.type != USER:
        raise WireError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if len(owner.name) > NAME_CHARS_MAX or len(request.renewers) > RENEWERS_MAX:
        raise WireError(ErrorCode.INVALID_REQUEST)
    renewers = list(dict.fromkeys(map(principal_of, request.renewers)))
    check_enabled(ctx)
    asked = CreateToken(owner, requester, renewers, request.max_lifetime_ms)
    return await ctx.controller(CREATE_TOKEN, asked)


def created_response(
    ctx: RequestContext,
    owner: KafkaPrincipal,
    requester: KafkaPrincipal,
    token: FoundToken | None = None,
    error: WireError | None = None,
) -> CreateDelegationTokenResponse:
    response = CreateDelegationTokenResponse(
        error_code=int(error.code) if error else 0,
        principal_type=owner.type,
        principal_name=owner.name,
        issue_timestamp_ms=NEVER_MS,
        expiry_timestamp_ms=NEVER_MS,
        max_timestamp_ms=NEVER_MS,
    )
    if ctx.api_version >= 3:
        response.token_requester_principal_type = requester.type
        response.token_requester_principal_name = requester.name
    if token is not None:
        response.issue_timestamp_ms = token.issued_ms
        response.expiry_timestamp_ms = token.expires_ms
        response.max_timestamp_ms = token.max_ms
        response.token_id = token.token_id
        response.hmac = token.secret
    return response


# -- renew and expire


@api(ApiKey.RENEW_DELEGATION_TOKEN, versions=(0, 2), authorize=NOTHING)
async def handle_renew_delegation_token(
    ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    code, end_ms = await changed(ctx, RENEW_TOKEN, request.hmac, request.renew_period_ms)
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=end_ms)


@api(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(0, 2), authorize=NOTHING)
async def handle_expire_delegation_token(
    ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    code, end_ms = await changed(ctx, EXPIRE_TOKEN, request.hmac, request.expiry_time_period_ms)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=end_ms)


async def changed(
    ctx: RequestContext,
    operation: CallOperation[ChangeToken, TokenEnd],
    secret: Buffer,
    period_ms: int,
) -> tuple[int, int]:
    """The error code, and when the token ends."""
    try:
        check_connection(ctx)
        check_enabled(ctx)
        asked = ChangeToken(ctx.principal, bytes(secret), period_ms)
        return 0, (await ctx.controller(operation, asked)).expires_ms
    except WireError as error:
        return int(error.code), NEVER_MS


# -- describe


@api(
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions=(0, 3),
    authorize=(
        each(AclOperation.DESCRIBE, Kind.DELEGATION_TOKEN),
        each(AclOperation.DESCRIBE_TOKENS, Kind.USER),
    ),
)
async def handle_describe_delegation_token(
    ctx: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens of the named owners that the client may see; of all, for null."""
    cls = DescribeDelegationTokenResponse
    try:
        check_connection(ctx)
        check_enabled(ctx)
        if request.owners is not None and not request.owners:
            return cls()
        owners = None
        if request.owners is not None:
            owners = [KafkaPrincipal(o.principal_type, o.principal_name) for o in request.owners]
        tokens = []
        after, is_last = "", False
        while not is_last:
            page = await ctx.controller(DESCRIBE_TOKENS, DescribeTokens(owners, after))
            tokens += [described(ctx, token) for token in visible(ctx, page.tokens)]
            is_last = page.is_last
            after = page.tokens[-1].token_id if page.tokens else ""
    except WireError as error:
        return cls(error_code=int(error.code))
    return cls(tokens=tokens)


def visible(ctx: RequestContext, tokens: Sequence[FoundToken]) -> list[FoundToken]:
    """Those that the client may see: its own, and what ACLs allow."""
    own = [ctx.principal in (row.owner, row.requester, *row.renewers) for row in tokens]
    others = [row for row, is_own in zip(tokens, own, strict=True) if not is_own]
    ids = ctx.allowed(
        AclOperation.DESCRIBE,
        Kind.DELEGATION_TOKEN,
        [row.token_id for row in others],
        is_filter=True,
    )
    owners = ctx.allowed(
        AclOperation.DESCRIBE_TOKENS,
        Kind.USER,
        [str(row.owner) for row in others if row.token_id not in ids],
        is_filter=True,
    )
    return [
        row
        for row, is_own in zip(tokens, own, strict=True)
        if is_own or row.token_id in ids or str(row.owner) in owners
    ]


def described(
    ctx: RequestContext, token: FoundToken
) -> DescribeDelegationTokenResponse.DescribedDelegationToken:
    cls = DescribeDelegationTokenResponse
    row = cls.DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token.secret,
        renewers=[
            cls.DescribedDelegationTokenRenewer(
                principal_type=renewer.type, principal_name=renewer.name
            )
            for renewer in token.renewers
        ],
    )
    if ctx.api_version >= 3:
        row.token_requester_principal_type = token.requester.type
        row.token_requester_principal_name = token.requester.name
    return row
