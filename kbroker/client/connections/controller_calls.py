"""Requests to the controller of a cluster, which is looked up again when it has moved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.message import Message
from kbroker.protocol.messages.metadata import MetadataRequest

# Retriable for clients that wait for a topic. The controller knows all topics, and what has timed
# out there is still being done.
_FINAL = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.REQUEST_TIMED_OUT,
}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def check(result: Any, what: str) -> None:
    """Raises RejectedError if the result has an error code."""
    if result.error_code:
        raise RejectedError(result.error_code, what, getattr(result, "error_message", None))


def ask_controller(
    cluster: Cluster,
    request: Message | Callable[[Connection], Message],
    what: str,
    codes_of: Any,
) -> Any:
    """Ask the controller, until it responds without a retriable error. The request may be
    executed twice.

    request: itself, or what makes it for a connection, whose versions may decide. codes_of: the
    error codes in a response.
    """
    retry = cluster.retry(what)
    while True:
        try:
            connection = cluster.connection(controller(cluster, retry), retry)
            asked = request if isinstance(request, Message) else request(connection)
            response = connection.call(asked, retry.step(cluster.request_timeout))
            for code in codes_of(response):
                if is_moved_or_retriable(code):
                    raise RejectedError(code, what)
            return response
        except ClientError as error:
            retry.pause(error)


def ask_controller_for_each(
    cluster: Cluster,
    wanted: Mapping[K, V],
    request_of: Callable[[Connection, Mapping[K, V], int], Message],
    rows_of: Callable[[Any], Iterable[tuple[K, Any]]],
    what: str,
) -> dict[K, Any]:
    """Ask the controller for one result of each key; keys with a retriable error are sent again,
    the others are not.

    request_of: gets the connection, whose versions may decide, the keys that are left, and the
    milliseconds that the broker may take. rows_of: the results in a response, each with
    ``error_code``. Raises Timeout, UnreachableError, ...; RejectedError if a response leaves a key
    out.
    """
    retry = cluster.retry(what)
    left = dict(wanted)
    results: dict[K, Any] = {}
    while left:
        try:
            step_s = min(cluster.request_timeout, max(retry.left(), 0.1))
            connection = cluster.connection(controller(cluster, retry), retry)
            request = request_of(connection, left, int(step_s * 1000))
            response = connection.call(request, retry.step(cluster.request_timeout))
            trouble = None
            rows = dict(rows_of(response))
            for key in list(left):
                if key not in rows:
                    raise RejectedError(-1, f"{what}: {key}", "the response does not name it")
                if _is_sent_again(rows[key].error_code):
                    trouble = RejectedError(rows[key].error_code, f"{what}: {key}")
                    trouble.retriable = True
                else:
                    results[key] = rows[key]
                    del left[key]
            if trouble is not None:
                raise trouble
        except ClientError as error:
            retry.pause(error)
    return results


def is_moved_or_retriable(code: int) -> bool:
    """Whether the same request may succeed later, with the controller looked up again."""
    try:
        return code == ErrorCode.NOT_CONTROLLER or (bool(code) and ErrorCode(code).retriable)
    except ValueError:  # of a newer broker
        return False


def _is_sent_again(code: int) -> bool:
    return code not in _FINAL and is_moved_or_retriable(code)


def controller(cluster: Cluster, retry: Retry) -> int | None:
    """The node that is the controller; None, any, where brokers name none. One attempt."""
    connection = cluster.connection(None, retry)
    response = connection.call(MetadataRequest(topics=[]), cluster.attempt(retry))
    cluster.adopt_brokers(response.brokers)
    node = int(response.controller_id)
    return node if node in {row.node_id for row in response.brokers} else None
