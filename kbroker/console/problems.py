"""What goes wrong with a request, as status and JSON."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from kbroker.client.errors import AuthenticationFailed, ClientError, RejectedError
from kbroker.errors import ErrorCode

_FORBIDDEN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.POLICY_VIOLATION,
    }
)
_NOT_BY_RIGHT = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.POLICY_VIOLATION})
_NOT_THERE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
_CONFLICT = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
    }
)


MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """Becomes a response. text: what is wrong, and what is allowed."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    @property
    def document(self) -> dict[str, Any]:
        """Problem details (RFC 9457). code: for programs, most often the name of Kafka's error."""
        try:
            title = HTTPStatus(self.status).phrase
        except ValueError:
            title = "Error"
        return {
            "type": "about:blank",
            "title": title,
            "status": self.status,
            "detail": str(self),
            "code": self.code,
        }


class BadRequest(Problem):
    """The request is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(400, "BAD_REQUEST", text)


def check_partition(number: int, there: Collection[int], what: str = "the topic") -> None:
    """there: the partitions of the topic. Raises BadRequest."""
    if number not in there:
        raise BadRequest(f"{what} has no partition {number}, but 0 to {len(there) - 1}")


class NotThere(Problem):
    """The request names something that does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(404, "NOT_FOUND", text)


def problem_of(error: ClientError, needs: str = "") -> Problem:
    """An error of the client, for who asked. needs: the right that this takes."""
    status = _status_of(error)
    is_missing = status == 403 and error.code not in _NOT_BY_RIGHT
    text = f"{error}; this needs the right {needs}" if needs and is_missing else str(error)
    return Problem(status, error.name, text)


def _status_of(error: ClientError) -> int:
    if isinstance(error, AuthenticationFailed):
        return 401
    code = error.code
    if code in _FORBIDDEN:
        return 403
    if code in _NOT_THERE:
        return 404
    if code in _CONFLICT:
        return 409
    if isinstance(error, RejectedError) and not error.retriable:
        return 400
    return 503
