"""The kinds of resource that have settings, and which of them this broker can answer for."""

from __future__ import annotations

from kbroker.cluster.image import TopicImage
from kbroker.controller.topics import check_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext

DEFAULT_BROKER = ""  # names the settings for all brokers


def existing_topic(ctx: RequestContext, name: str) -> TopicImage:
    """The topic; INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
    topic = ctx.image.topics.get(name)
    if topic is None:
        check_name(name)
        raise WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def check_broker(ctx: RequestContext, name: str) -> None:
    """INVALID_REQUEST unless the name is this broker's id or stands for all brokers."""
    if name in (DEFAULT_BROKER, str(ctx.broker_id)):
        return
    raise WireError(
        ErrorCode.INVALID_REQUEST,
        f"Broker '{name[:100]}' cannot be asked here: name broker {ctx.broker_id}, or the empty"
        " string for the settings of all brokers.",
    )


def check_group(name: str) -> None:
    """INVALID_REQUEST for the empty name; any other group may have settings, now or later."""
    if not name:
        raise WireError(ErrorCode.INVALID_REQUEST, "There are no settings for all groups.")


def unsupported(resource_type: int) -> WireError:
    return WireError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {resource_type} have no settings here: use a topic (2), a broker (4) or"
        " a group (32).",
    )
