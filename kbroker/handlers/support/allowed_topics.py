"""Requests to a coordinator that name topics, if the client is authorized for only some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kbroker.handlers.context import RequestContext
from kbroker.handlers.support.coordinated import ask, decode_response, forward, partition_of
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.protocol.message import Message
from kbroker.protocol.primitives import NO_UUID
from kbroker.security.operations import AclOperation, Kind


class NamedTopic(Protocol):
    """In some versions of some requests it has an id, too."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=NamedTopic)
Names = Callable[[NamedTopic], str | None]


def namer(ctx: RequestContext) -> Names:
    """The name of a topic that a request has by name or by id; None for an unknown id."""

    def name_of(topic: NamedTopic) -> str | None:
        topic_id = getattr(topic, "topic_id", NO_UUID)
        if topic_id == NO_UUID:
            return topic.name
        known = ctx.image.topics_by_id.get(topic_id)
        return None if known is None else known.name

    return name_of


def divide(
    ctx: RequestContext, operation: AclOperation, topics: list[T]
) -> tuple[list[T], list[T]]:
    """The topics for which the client is authorized, and the others. An unknown id is among the
    first: it reveals nothing.
    """
    if ctx.access.everything:
        return topics, []
    name_of = namer(ctx)
    names = [name_of(topic) for topic in topics]
    allowed = ctx.allowed(operation, Kind.TOPIC, [name for name in names if name is not None])
    rest: list[T] = []
    denied: list[T] = []
    for topic, name in zip(topics, names, strict=True):
        (rest if name is None or name in allowed else denied).append(topic)
    return rest, denied


async def forward_allowed(
    ctx: RequestContext,
    coordinators: str,
    key: str,
    request: Any,
    operation: AclOperation,
    denied_row: Callable[[Any], Any],
) -> Message | bytes:
    """Hand a request on to the coordinator of ``key``, with its ``topics`` that are allowed.

    denied_row: the response's entry for one that is not. If there are none, the request is
    forwarded as received, and the response arrives as bytes.
    """
    rest, denied = divide(ctx, operation, request.topics)
    if not denied:
        return await forward(ctx, coordinators, key)
    response: Any = response_class(ctx.api_key)()
    if rest:
        request.topics = rest
        body = codec.encode(request, ctx.api_version)
        partition = partition_of(ctx, coordinators, key)
        response = decode_response(ctx, await ask(ctx, coordinators, partition, body))
    response.topics += [denied_row(topic) for topic in denied]
    whole: Message = response
    return whole
