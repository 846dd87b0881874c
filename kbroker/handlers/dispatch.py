"""Decodes requests, runs handlers and encodes responses. Every request ends with a response or a
close.
"""

from __future__ import annotations

import logging
import os
import struct
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from kbroker._ext.network.connection import TOKENS
from kbroker.coordinator.producer_ids import ProducerIds
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext, now_ms
from kbroker.handlers.registry import HANDLERS, Handle, Handler, announced, served_range
from kbroker.handlers.sasl import handle_token
from kbroker.handlers.support.error_counts import error_counts
from kbroker.handlers.support.joining import require_brokers
from kbroker.handlers.support.peer import peer as peer
from kbroker.handlers.support.requirements import NOTHING, check
from kbroker.ipc.rpc import Pending
from kbroker.ipc.slices import Turn
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class, title
from kbroker.protocol.codec import DecodeError, EncodeError
from kbroker.protocol.header import DecodedHeader, decode_request_header, encode_response_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsResponse

if TYPE_CHECKING:
    from kbroker._ext.network.connection import Connection
    from kbroker.workers.network.network import NetworkWorker

logger = logging.getLogger(__name__)

# A handler module registers its functions when it is imported; all modules are imported here.
# pkgutil would import inspect and ast, which nothing else at start needs.
for _name in sorted(os.listdir(os.path.dirname(__file__))):
    if _name.endswith(".py") and _name != "__init__.py":
        import_module(f"kbroker.handlers.{_name.removesuffix('.py')}")

# A response with its header; None: close the connection; False: there is no response.
Response = bytes | Literal[False] | None

# Requests that only other brokers send, to which no quota applies; as ``net_loop.is_of_broker``.
OF_BROKERS = frozenset(
    (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
        ApiKey.PEER_STATUS,
    )
)
THROTTLE_FIELD = "throttle_time_ms"
_INT32 = struct.Struct(">i")
# Shorter requests are decoded in one go.
ONE_GO_BYTES = 4096


class RequestDispatcher:
    """Serves every request without a hot path of its own; one per network process."""

    def __init__(self, worker: NetworkWorker) -> None:
        self._worker = worker
        self._producer_ids = ProducerIds(worker.rpc)

    def handle(self, connection: Connection, frame: bytes) -> Pending[Response]:
        """Start on one request; ``frame`` is without its length.

        Resolves to the response, header included and without its length, or to None: the
        connection must be closed, for its ``close_reason``. Never resolves to an error.
        """
        if connection.phase == TOKENS:
            return self._serve_token(connection, frame)
        try:
            header = decode_request_header(frame)
        except DecodeError as error:
            return rejected(connection, str(error))
        key, version = header.api_key, header.api_version
        handler = HANDLERS.get(key)
        if handler is None or not handler.first_version <= version <= handler.last_version:
            if key == ApiKey.API_VERSIONS:
                return resolved(api_versions_fallback(header))
            return rejected(connection, rejection(key, version))
        if handler.alone and self._worker.config.uses_zookeeper:
            return rejected(connection, f"{title(key)} is not served in a cluster")
        return self._serve(connection, header, frame, handler)

    def reject(self, connection: Connection, frame: bytes, error: WireError) -> Pending[Response]:
        """Like ``handle``, for a forwarded request that its coordinator has rejected."""
        header = decode_request_header(frame)
        failed = HANDLERS[header.api_key]._replace(handle=raiser(error), authorize=NOTHING)
        return self._serve(connection, header, frame, failed)

    def _serve(
        self, connection: Connection, header: DecodedHeader, frame: bytes, handler: Handler
    ) -> Pending[Response]:
        """Decode the request and run its handler when it is the connection's turn."""
        ctx = self._context(connection, header, frame)
        return self._worker.slices.start(connection.turn, serve(ctx, handler))

    def _serve_token(self, connection: Connection, token: bytes) -> Pending[Response]:
        """The same for a token without a header, as it follows SaslHandshake 0."""
        header = DecodedHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None, 0)
        ctx = self._context(connection, header, token)
        return self._worker.slices.start(connection.turn, serve_token(ctx))

    def _context(
        self, connection: Connection, header: DecodedHeader, frame: bytes
    ) -> RequestContext:
        worker = self._worker
        if connection.turn is None:
            connection.turn = Turn()
        return RequestContext(worker, connection, header, frame, worker.config, self._producer_ids)

    def tick(self, now_ms: int) -> None:
        """Called every TICK_MS; handlers have no timers of their own."""


def raiser(error: BaseException) -> Handle:
    """A handler that ends in ``error``."""

    async def handle(ctx: RequestContext, request: Message) -> None:
        raise error

    return handle


async def serve(ctx: RequestContext, handler: Handler) -> Response:
    """Decode, handle, encode; in slices if it takes long."""
    if handler.undecoded:
        return await respond(ctx, handler, ctx.body)
    cls, version, frame = request_class(handler.key), ctx.api_version, ctx.frame
    try:
        # COMPAT: bytes after the request are ignored, as in Kafka. librdkafka (such as 2.16)
        # requests all topics with a null array of four bytes where flexible versions have one.
        if len(frame) <= ONE_GO_BYTES:
            request, _ = codec.decode(cls, version, frame, ctx.body_offset)
        else:
            steps = codec.decode_steps(cls, version, frame, ctx.body_offset)
            request, _ = await ctx.slices.finish(steps)
    except DecodeError as error:
        ctx.connection.close_reason = str(error)
        return None
    return await respond(ctx, handler, request)


async def serve_token(ctx: RequestContext) -> Response:
    """Its response is a token, too."""
    try:
        return await handle_token(ctx, ctx.frame)
    except Exception:
        logger.exception("closing the connection of %s: a token failed", peer(ctx.connection))
    return None


async def respond(ctx: RequestContext, handler: Handler, request: Message | bytes) -> bytes | None:
    """Run the handler; an exception becomes an error response."""
    try:
        if handler.unjoined is not None:
            await require_brokers(ctx, handler.unjoined)
        if not ctx.access.everything:
            check(ctx.access, handler.authorize, request, title(handler.key))
        response = await handler.handle(ctx, request)
        return None if response is None else await encode(ctx, response)
    except WireError as raised:
        error = raised.bare()
    except Exception:
        logger.exception("%s of %s failed", title(handler.key), peer(ctx.connection))
        error = WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
    try:
        return await encode(ctx, handler.fail(ctx, request, error))
    except (EncodeError, WireError):
        # Old versions have no place for it.
        reason = f"{title(handler.key)} version {ctx.api_version} failed: {error}"
        ctx.connection.close_reason = reason
    except Exception:
        logger.exception("closing the connection of %s: cannot respond", peer(ctx.connection))
    return None


async def encode(ctx: RequestContext, response: Message | bytes) -> bytes:
    """The response's header and body."""
    limits = ctx.process.loop.limits
    if limits.on and ctx.api_key not in OF_BROKERS:
        spent_ns = ctx.connection.turn.take_spent()
        limits.charge_handler(ctx.connection, spent_ns, now_ms())
    throttle_ms = ctx.connection.throttle_time_ms
    if throttle_ms:
        response = throttled(ctx, response, throttle_ms)
    out = bytearray(encode_response_header(ctx.correlation_id, ctx.api_key, ctx.api_version))
    if isinstance(response, bytes):
        out += response
    else:
        for code, count in error_counts(response).items():
            ctx.process.times.note_error(ctx.api_key, code, count)
        await ctx.slices.finish(codec.encode_steps(response, ctx.api_version, out))
    return bytes(out)


def throttled(ctx: RequestContext, response: Message | bytes, throttle_ms: int) -> Message | bytes:
    """The response with the throttle time, if its version has a field for it.

    WIRE: most responses begin with it.
    """
    if isinstance(response, bytes):
        cls = response_class(ctx.api_key)
        first = cls.STRUCT.fields[0]
        if first.name == THROTTLE_FIELD and first.in_version(ctx.api_version):
            return _INT32.pack(throttle_ms) + response[_INT32.size :]
        response = codec.decode_exact(cls, ctx.api_version, response)
    if THROTTLE_FIELD in response.__slots__:
        setattr(response, THROTTLE_FIELD, throttle_ms)
    return response


def api_versions_fallback(header: DecodedHeader) -> bytes:
    """The response to a newer ApiVersions: version 0 with only the range of ApiVersions itself
    (KIP-511).
    """
    entries = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
        for key, first, last in announced()
        if key == ApiKey.API_VERSIONS
    ]
    response = ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=entries)
    start = encode_response_header(header.correlation_id, ApiKey.API_VERSIONS, 0)
    return start + codec.encode(response, 0)


def rejection(key: int, version: int) -> str:
    """The reason why a known request is not supported."""
    served = served_range(key)
    if served is None:
        return f"{title(key)} is not served by this broker"
    return f"{title(key)} version {version} is not served, only {served[0]} to {served[1]}"


def rejected(connection: Connection, reason: str) -> Pending[Response]:
    """Close the connection and log this reason."""
    connection.close_reason = reason
    return resolved(None)


def resolved(value: Response) -> Pending[Response]:
    pending: Pending[Response] = Pending()
    pending.resolve(value)
    return pending
