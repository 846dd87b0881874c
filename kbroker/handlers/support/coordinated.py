"""Forwards a request to the coordinators of its groups or transactional ids.

A request with one key is forwarded as it came. One with several keys is split by partition, and the
answers are joined in the order of the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

from kbroker.coordinator.partitioner import coordinator_partition
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.protocol.message import Message

E = TypeVar("E")
R = TypeVar("R")

# A coordinator responds in time on its own; this ends the wait for one that does not.
TIMEOUT_MS = 30_000
# BOUND: keys per call, and calls of one request at a time. A coordinator serves a call in one go,
# and its results may be long: other requests get their turn in between.
CALL_KEYS_MAX = 100
CALLS_MAX = 8


def ask(
    ctx: RequestContext, topic: str, partition: int, body: bytes, timeout_ms: int = TIMEOUT_MS
) -> Pending[bytes]:
    """Ask one coordinator; resolves to the response's body. Raises WireError if none is here.

    body: the request in the version of ``ctx``.
    """
    known = ctx.image.topics.get(topic)
    if known is None or partition >= len(known.partitions):
        raise WireError(ErrorCode.NOT_COORDINATOR)
    image = known.partitions[partition]
    if not ctx.may_lead(image):
        raise WireError(ErrorCode.NOT_COORDINATOR)
    limits = ctx.process.loop.limits
    return ctx.process.coordinators.call(
        image.slot,
        image.slot_incarnation,
        ctx.api_key,
        ctx.api_version,
        body,
        ctx.client_id or "",
        ctx.connection.peer_host,
        ctx.principal,
        timeout_ms,
        limits.quota_of_time(ctx.connection) if limits.on else (0, 0.0),
    )


def partition_of(ctx: RequestContext, topic: str, key: str) -> int:
    """The partition that coordinates a key; NOT_COORDINATOR while the topic does not exist."""
    known = ctx.image.topics.get(topic)
    if known is None:
        raise WireError(ErrorCode.NOT_COORDINATOR)
    return coordinator_partition(key, len(known.partitions))


async def forward(ctx: RequestContext, topic: str, key: str, timeout_ms: int = TIMEOUT_MS) -> bytes:
    """Forward the request as received; returns the response's body."""
    partition = partition_of(ctx, topic, key)
    with ctx.given_away():
        body: bytes = await ask(ctx, topic, partition, ctx.body, timeout_ms)
    return body


async def split(
    ctx: RequestContext,
    topic: str,
    entries: Sequence[E],
    key_of: Callable[[E], str],
    request_of: Callable[[list[E]], Message],
    rows_of: Callable[[Any], list[R]],
    failed: Callable[[E, WireError], R],
) -> list[R]:
    """Ask the coordinators of all ``entries``; returns a row for each, in their order.

    request_of: the request for some of the entries. rows_of: a response's rows, one for each entry
    it was asked for. failed: the row of an entry whose coordinator gave an error. An entry whose
    row may be long must not be repeated: a small request would have a response without bound.
    """
    by_partition: dict[int, list[int]] = {}
    rows: dict[int, R] = {}
    async for index, entry in ctx.each(enumerate(entries)):
        try:
            partition = partition_of(ctx, topic, key_of(entry))
        except WireError as error:
            rows[index] = failed(entry, error)
        else:
            by_partition.setdefault(partition, []).append(index)
    left = (
        (partition, indexes[first : first + CALL_KEYS_MAX])
        for partition, indexes in by_partition.items()
        for first in range(0, len(indexes), CALL_KEYS_MAX)
    )
    calls: deque[tuple[list[int], Pending[bytes] | WireError]] = deque()

    def start_calls() -> None:
        for partition, indexes in islice(left, CALLS_MAX - len(calls)):
            body = codec.encode(request_of([entries[i] for i in indexes]), ctx.api_version)
            try:
                calls.append((indexes, ask(ctx, topic, partition, body)))
            except WireError as error:
                calls.append((indexes, error))

    start_calls()
    while calls:
        indexes, call = calls.popleft()
        try:
            if isinstance(call, WireError):
                raise call
            response_rows = rows_of(decode_response(ctx, await call))
            if len(response_rows) != len(indexes):
                raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
        except WireError as error:
            response_rows = [failed(entries[i], error) for i in indexes]
        for index, row in zip(indexes, response_rows, strict=True):
            rows[index] = row
        start_calls()
    return [rows[index] for index in range(len(entries))]


async def ask_all(ctx: RequestContext, topic: str, request: Message | None) -> list[Any]:
    """Ask every coordinator of this broker; the responses, a WireError for one that failed.

    request: instead of the one that came.
    """
    known = ctx.image.topics.get(topic)
    if known is None:
        return []
    body = ctx.body if request is None else codec.encode(request, ctx.api_version)
    calls = [
        ask(ctx, topic, number, body)
        for number, partition in enumerate(known.partitions)
        if ctx.may_lead(partition)
    ]
    responses: list[Any] = []
    for call in calls:
        try:
            responses.append(decode_response(ctx, await call))
        except WireError as error:
            if error.code == ErrorCode.NOT_COORDINATOR:
                # COMPAT: the process is restarting. A list request has no coordinator that the
                # client could look up; clients retry after this error code.
                error = WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message)
            responses.append(error)
    return responses


def decode_response(ctx: RequestContext, body: bytes) -> Any:
    """A coordinator's response."""
    return codec.decode_exact(response_class(ctx.api_key), ctx.api_version, body)
