"""SaslHandshake (17): versions 0 and 1, SaslAuthenticate (36): versions 0 to 2, and the tokens
without a header that follow version 0 of the handshake.

On a listener without SASL both are rejected, as in Kafka. A client that fails gets its response
after ``connection.failed.authentication.delay.ms``, in which nothing is read from it, and is
disconnected then. Whatever was wrong, the response says the same.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from kbroker._ext.network.connection import (
    AUTHENTICATING,
    FAILED,
    HANDSHAKE,
    SERVING,
    SESSION,
    TOKENS,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, now_ms
from kbroker.handlers.registry import api
from kbroker.handlers.support.peer import peer
from kbroker.handlers.support.requirements import NOTHING
from kbroker.handlers.support.sasl_listener import SaslListener
from kbroker.ipc.calls import FIND_CREDENTIAL, FindCredential
from kbroker.metrics.catalog import (
    AUTHENTICATIONS,
    FAILED_AUTHENTICATIONS,
    FAILED_REAUTHENTICATIONS,
    REAUTHENTICATIONS,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kbroker.security.principal import KafkaPrincipal, of_user
from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    CredentialLookup,
    NotAuthenticated,
    SaslServer,
    Step,
    Unavailable,
    Work,
)
from kbroker.security.sasl.scram import USER_NAME_MAX, Nobody, ScramCredential, StoredCredential

logger = logging.getLogger(__name__)

KeptKey = tuple[str, str, str]  # the address of a client, its user, the mechanism
KeptCredentials = dict[KeptKey, StoredCredential]

# As in Kafka: a client may not authenticate again more often.
AGAIN_MIN_MS = 1_000
# How long a client has, after the response to a failure, to close the connection itself: some, such
# as kafka-python, overlook a response behind which the connection is closed at once.
GRACE_MS = 500
# BOUND: tokens of one exchange; GSSAPI has the most, three.
TOKENS_MAX = 4
# In ``ClusterImage.derived``: the credentials of users who have logged in, by the address they came
# from, so that the time of an answer tells nobody else which users there are. A change of a
# credential changes the image before the request for it is answered.
KEPT = "credentials"
KEPT_MAX = 1_000  # BOUND
ALREADY = "SaslAuthenticate request received after successful authentication"
NO_LISTENER = SaslListener({}, {})
NOT_VERIFIED = "Authentication failed: credentials for user could not be verified"


class ConnectionLogin:
    """How far a connection's client has authenticated; ``Connection.login``.

    listener: what it may authenticate with. mechanism: chosen last. is_token: it has logged in with
    a delegation token. keep: where its credential is kept if it succeeds, and under which key.
    """

    __slots__ = ("again_ms", "bad_mechanism", "exchange", "is_token", "keep", "listener",
                 "mechanism", "principal", "tokens")  # fmt: skip

    def __init__(self) -> None:
        self.listener = NO_LISTENER
        self.mechanism = self.bad_mechanism = ""
        self.exchange: SaslServer | None = None
        self.principal: KafkaPrincipal | None = None  # once it is known
        self.is_token = False
        self.again_ms = 0  # when it last began to authenticate again
        self.tokens = 0  # of this exchange
        self.keep: tuple[KeptCredentials, KeptKey, StoredCredential] | None = None

    def choose(self, listener: SaslListener, mechanism: str) -> None:
        """Begin an exchange. When the client is known already, the mechanism must be the same."""
        self.tokens, self.bad_mechanism, self.keep = 0, "", None
        if self.principal is not None and mechanism != self.mechanism:
            self.bad_mechanism = mechanism
            return
        self.listener, self.mechanism = listener, mechanism
        self.exchange = listener.begin[mechanism]()

    def failure(self) -> str:
        """COMPAT: Kafka's text, whatever was wrong."""
        attempt = "authentication" if self.principal is None else "re-authentication"
        return (
            f"Authentication failed during {attempt} due to invalid credentials with SASL "
            f"mechanism {self.mechanism}"
        )


# -- the requests


@api(ApiKey.SASL_HANDSHAKE, versions=(0, 1), authorize=NOTHING)
async def handle_sasl_handshake(
    ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Choose a mechanism, on a new connection or when a session is to be renewed (KIP-368)."""
    login: ConnectionLogin | None = ctx.connection.login
    if login is None or not may_begin(ctx, login):
        return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
    listener: SaslListener = ctx.process.sasl_listeners[ctx.connection.listener]
    mechanism = request.mechanism
    response = SaslHandshakeResponse(mechanisms=listener.mechanisms)
    if mechanism not in listener.begin:
        response.error_code = int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        await failed(ctx, f"it wants SASL {mechanism}, which is not enabled")
        return response
    login.choose(listener, mechanism)
    ctx.connection.authenticate_again(AUTHENTICATING if ctx.api_version else TOKENS)
    return response


def may_begin(ctx: RequestContext, login: ConnectionLogin) -> bool:
    """COMPAT: a session without an end is not renewed, nor is one that has just been."""
    phase = ctx.connection.phase
    if phase == SESSION:
        now = now_ms()
        if login.again_ms and now - login.again_ms < AGAIN_MIN_MS:
            return False
        login.again_ms = now
        return True
    return phase == HANDSHAKE


@api(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), authorize=NOTHING)
async def handle_sasl_authenticate(
    ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | None:
    login: ConnectionLogin | None = ctx.connection.login
    if login is None or ctx.connection.phase != AUTHENTICATING:
        raise WireError(ErrorCode.ILLEGAL_SASL_STATE, ALREADY)
    try:
        step, session_ms = await take_token(ctx, login, bytes(request.auth_bytes))
    except NotAuthenticated as error:
        await failed(ctx, error.reason, error, login)
        return SaslAuthenticateResponse(
            error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED),
            error_message=error.told or login.failure(),
        )
    except Unavailable as error:
        ctx.connection.close_reason = f"its credentials cannot be checked: {error}"
        return None
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=step.token or b"", session_lifetime_ms=session_ms
    )


async def handle_token(ctx: RequestContext, token: bytes) -> bytes | Literal[False] | None:
    """A token after SaslHandshake 0; the response is a token, too. COMPAT: there is none for a
    failure, nor (False) at the end of GSSAPI.
    """
    login: ConnectionLogin = ctx.connection.login
    try:
        step, _ = await take_token(ctx, login, token)
    except NotAuthenticated as error:
        await failed(ctx, error.reason, error, login)
    except Unavailable as error:
        ctx.connection.close_reason = f"its credentials cannot be checked: {error}"
    else:
        return False if step.token is None else step.token
    return None


# -- the exchange


async def take_token(
    ctx: RequestContext, login: ConnectionLogin, token: bytes
) -> tuple[Challenge | Authenticated, int]:
    """The next step, and how long the session lasts that has begun with it, 0 if it has no end.
    Raises NotAuthenticated and Unavailable.
    """
    login.tokens += 1
    exchange = login.exchange
    if login.bad_mechanism:
        text = (
            f"SASL mechanism '{login.bad_mechanism}' requested by client is not supported for "
            f"re-authentication of mechanism '{login.mechanism}'"
        )
        raise NotAuthenticated("another mechanism than before", text)
    if exchange is None or login.tokens > TOKENS_MAX:
        raise NotAuthenticated("too many tokens")
    step: Step = exchange.evaluate(token)
    while isinstance(step, CredentialLookup | Work):
        if isinstance(step, CredentialLookup):
            step = exchange.resume(await looked_up(ctx, login, step))
        else:
            step = exchange.resume(await worked(ctx, step))
    session_ms = authenticated(ctx, login, step) if isinstance(step, Authenticated) else 0
    return step, session_ms


async def looked_up(
    ctx: RequestContext, login: ConnectionLogin, step: CredentialLookup
) -> StoredCredential | Nobody | None:
    """The stored credential of a user or token. Raises Unavailable."""
    if len(step.name) > USER_NAME_MAX:
        return None
    # Those of this image: the answer may come after a change, and be from before it.
    kept: KeptCredentials = ctx.image.derived.setdefault(KEPT, {})
    key = ctx.connection.peer_host, step.name, step.mechanism
    if not step.is_token and key in kept:
        return kept[key]
    asked = FindCredential(step.name, step.mechanism, step.is_token)
    try:
        answer = await ctx.controller(FIND_CREDENTIAL, asked)
    except WireError as error:
        raise Unavailable(str(error)) from None
    # The answer to another question must not let anybody in.
    if (answer.name, answer.mechanism) != (step.name, step.mechanism):
        raise Unavailable("the controller process has answered another question")
    if answer.user is None or (not step.is_token and answer.user != step.name):
        return Nobody(answer.salt, answer.iterations)
    credential = ScramCredential(
        answer.salt, answer.stored_key, answer.server_key, answer.iterations
    )
    stored = StoredCredential(answer.user, credential, answer.expires_ms)
    if not step.is_token:  # those end by themselves
        login.keep = kept, key, stored
    return stored


async def worked(ctx: RequestContext, step: Work) -> Any:
    """The result of work in a thread. Raises NotAuthenticated, with Kafka's text, if it raises."""
    try:
        return await ctx.process.beside.run(step.run)
    except Exception as error:
        # Its text may contain what it was given.
        raise NotAuthenticated(
            f"the check has failed: {type(error).__name__}", NOT_VERIFIED
        ) from None


def authenticated(ctx: RequestContext, login: ConnectionLogin, step: Authenticated) -> int:
    """The client is known. Returns how long its session lasts, 0 if it has no end."""
    connection = ctx.connection
    try:
        principal = of_user(step.user)
    except ValueError as error:
        raise NotAuthenticated(f"nobody can have its name: {error}") from None
    if login.principal is not None and login.principal != principal:
        before = login.principal
        text = (
            f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
            f"{principal.type}.{principal.name}"
        )
        raise NotAuthenticated("another principal than before", text, step.user)
    lasts_ms = login.listener.session_ms(
        login.mechanism, step.expires_ms, time.time_ns() // 1_000_000
    )
    counted = AUTHENTICATIONS if login.principal is None else REAUTHENTICATIONS
    ctx.process.counters.add(counted, 1, connection.listener)
    login.principal, login.is_token, login.exchange = principal, step.is_token, None
    if login.keep is not None:
        kept, key, stored = login.keep
        if len(kept) >= KEPT_MAX:
            kept.clear()
        kept[key], login.keep = stored, None
    connection.identify(ctx.process.accesses.of(principal, connection.peer_host))
    if lasts_ms is None:
        connection.phase = SERVING
        return 0
    connection.session_end_ms = now_ms() + lasts_ms
    connection.phase = SESSION
    return lasts_ms


# -- failures


async def failed(
    ctx: RequestContext,
    reason: str,
    error: NotAuthenticated | None = None,
    login: ConnectionLogin | None = None,
) -> None:
    """Log a failure, and wait before it is answered. The connection takes no more requests."""
    connection, process = ctx.connection, ctx.process
    is_first = connection.login.principal is None
    counted = FAILED_AUTHENTICATIONS if is_first else FAILED_REAUTHENTICATIONS
    process.counters.add(counted, 1, connection.listener)
    connection.phase = FAILED
    connection.close_reason = "its authentication has failed"
    user, mechanism = (error.user if error else ""), (login.mechanism if login else "")
    times = process.failed_logins.due(connection.peer_host)
    if times:
        logger.warning(
            "cannot authenticate the client of %s on listener %s%s: %s%s",
            peer(connection),
            ctx.listener,
            f" as {user!r} by SASL {mechanism}" if error else "",
            reason,
            f" ({times} times from that address)" if times > 1 else "",
        )
    if error is not None:
        logger.debug("%s as %r: %s", peer(connection), user, error)
    await process.rpc.sleep(ctx.config["connection.failed.authentication.delay.ms"])
    process.rpc.sleep(GRACE_MS).then(lambda _: process.loop.end(connection))
