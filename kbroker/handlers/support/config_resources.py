"""The kinds of resource that have configs, and which of them this broker serves."""

from __future__ import annotations

from kbroker.cluster.image import TopicImage
from kbroker.config.resource_types import GROUP, NAMES, TOPIC
from kbroker.controller.state.topics import check_name
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind

# Configs of any other resource are configs of the cluster.
KINDS = {TOPIC: Kind.TOPIC, GROUP: Kind.GROUP}
DEFAULT_BROKER = ""  # names the settings for all brokers


def check_allowed(
    ctx: RequestContext, operation: AclOperation, resource_type: int, name: str
) -> None:
    """Raise the error of its kind unless the client is authorized for the resource's settings."""
    kind = KINDS.get(resource_type, Kind.CLUSTER)
    if not ctx.allows(operation, kind, CLUSTER_NAME if kind is Kind.CLUSTER else name):
        raise WireError(kind.error)


def existing_topic(ctx: RequestContext, name: str) -> TopicImage:
    """The topic; INVALID_TOPIC_EXCEPTION or UNKNOWN_TOPIC_OR_PARTITION."""
    topic = ctx.image.topics.get(name)
    if topic is None:
        check_name(name)
        raise WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def check_broker(ctx: RequestContext, name: str, *, or_all: bool = True) -> None:
    """INVALID_REQUEST unless the name is this broker's id or stands for all brokers."""
    if name == str(ctx.broker_id) or (or_all and name == DEFAULT_BROKER):
        return
    or_all_brokers = ", or the empty string for the settings of all brokers" if or_all else ""
    raise WireError(
        ErrorCode.INVALID_REQUEST,
        f"This broker does not serve the settings of broker '{name[:100]}': use broker "
        f"{ctx.broker_id}{or_all_brokers}.",
    )


def check_group(name: str) -> None:
    """INVALID_REQUEST for the empty name; any other group may have settings, now or later."""
    if not name:
        raise WireError(ErrorCode.INVALID_REQUEST, "There are no default group settings.")


def article(resource_type: int) -> str:
    """A resource of that type, at the start of a sentence."""
    name = NAMES.get(resource_type)
    return f"A {name}" if name else f"A resource of the unknown type {resource_type}"


def unsupported(resource_type: int) -> WireError:
    return WireError(
        ErrorCode.INVALID_REQUEST,
        f"{article(resource_type)} has no settings in kbroker; topics, brokers, groups and client "
        "metrics do.",
    )
