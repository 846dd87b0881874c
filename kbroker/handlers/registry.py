"""Which function serves which API in which versions; the response to ApiVersions follows from it.

A handler is ``async def handle_<api>(ctx, request)``, registered by ``@api``. It returns the
response, its encoding, or None to have the connection closed without one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, NamedTuple

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.support.requirements import Requirement, Requirements, each
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.message import Message
from kbroker.security.operations import AclOperation, Kind

Handle = Callable[[Any, Any], Coroutine[Any, Any, Message | bytes | None]]
Fail = Callable[[Any, Any, WireError], Message]


class Handler(NamedTuple):
    """``fail(ctx, request, error)`` makes a response in which everything has failed.

    authorize: see ``support/requirements``. undecoded: the handler is given the bytes of the
    request, which another process decodes. Its ``authorize`` and ``fail`` do not look at it.
    unjoined, alone, is_announced: see ``api``.
    """

    key: ApiKey
    first_version: int
    last_version: int
    handle: Handle
    fail: Fail
    authorize: Requirements
    undecoded: bool = False
    unjoined: ErrorCode | None = None
    alone: bool = False
    is_announced: bool = True


HANDLERS: dict[int, Handler] = {}

# Served by the hot paths of the network process, which look up the verdicts of ``security.access``.
HOT_RANGES = {ApiKey.PRODUCE: (0, 13), ApiKey.FETCH: (0, 18)}
HOT_REQUIREMENTS = {
    ApiKey.PRODUCE: (
        each(AclOperation.WRITE, Kind.TRANSACTIONAL_ID),
        each(AclOperation.WRITE, Kind.TOPIC),
    ),
    ApiKey.FETCH: (each(AclOperation.READ, Kind.TOPIC),),
}


def api(
    key: ApiKey,
    *,
    versions: tuple[int, int],
    authorize: Requirement | Requirements,
    fail: Fail | None = None,
    undecoded: bool = False,
    unjoined: ErrorCode | None = None,
    alone: bool = False,
    is_announced: bool = True,
) -> Callable[[Handle], Handle]:
    """Register the function for ``key`` in these versions, both included.

    authorize: what its sender must be allowed to do, checked before the handler runs.
    fail: needed when the response has no error code of its own at the top. undecoded: the function
    is given the request's bytes. unjoined: for a function that says what there is in the cluster;
    while the broker has not heard of the controller, the request waits, and gets this error if that
    takes too long (``support/joining``). Others reject what the broker does not know with an error
    upon which clients try again. alone: only a broker without others announces and serves it.
    is_announced: False for what clients are not told of, as only kbrokers ask it of each other.
    """

    def enter(handle: Handle) -> Handle:
        assert key not in HANDLERS, key
        assert key.versions[0] <= versions[0] <= versions[1] <= key.versions[1], (key, versions)
        requirements = (authorize,) if isinstance(authorize, Requirement) else authorize
        HANDLERS[key] = Handler(
            key,
            *versions,
            handle,
            fail or fail_at_top,
            requirements,
            undecoded,
            unjoined,
            alone,
            is_announced,
        )
        announced.cache_clear()
        return handle

    return enter


def fail_at_top(ctx: Any, request: Message | bytes, error: WireError) -> Message:
    """A response with only an error code, and a message if there is a field."""
    cls = response_class(ctx.api_key)
    values: dict[str, Any] = {"error_code": int(error.code)}
    if "error_message" in cls.__slots__:
        values["error_message"] = error.message
    return cls(**values)


@cache
def announced() -> tuple[tuple[int, int, int], ...]:
    """(key, first version, last version) of everything this broker serves clients and brokers of
    Kafka, in order of key.
    """
    ranges = {int(key): versions for key, versions in HOT_RANGES.items()}
    for key, handler in HANDLERS.items():
        if handler.is_announced:
            ranges.setdefault(key, (handler.first_version, handler.last_version))
    return tuple((key, first, last) for key, (first, last) in sorted(ranges.items()))


def served_range(key: int) -> tuple[int, int] | None:
    """The versions announced for a key; None if it is not served."""
    if key in HOT_RANGES:
        return HOT_RANGES[ApiKey(key)]
    handler = HANDLERS.get(key)
    return None if handler is None else (handler.first_version, handler.last_version)
