"""Errors of the clients of 0.8, besides those of ``kbroker.client.errors``."""

from __future__ import annotations

from typing import Any

from kbroker._ext.legacy.old_messages import InvalidMessage
from kbroker.client.errors import ClientClosed, ClientError, RejectedError
from kbroker.errors import ErrorCode

__all__ = ["FailedToSendMessage", "InvalidMessage", "ProducerClosed", "QueueFull", "raise_for"]


class QueueFull(ClientError):
    """A message was dropped: the queue of an asynchronous producer had no room for it."""

    retriable = True

    def __init__(self, message: Any, queued: int, waited_ms: int) -> None:
        self.dropped = message
        self.queued = queued
        self.waited_ms = waited_ms
        waited = f", also not within {waited_ms} ms" if waited_ms else ""
        super().__init__(
            f"{message!r} is dropped: queue.buffering.max.messages, {queued}, are waiting to be "
            f"sent{waited}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dropped, self.queued, self.waited_ms)


class FailedToSendMessage(ClientError):
    """Messages were not acknowledged, after all attempts. Some of them may have been written.

    tries: how many. failed: how many messages. last: the last error.
    """

    retriable = True

    def __init__(self, tries: int, failed: int, last: str) -> None:
        self.tries = tries
        self.failed = failed
        self.last = last
        super().__init__(f"failed to send {failed} messages after {tries} tries; last: {last}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tries, self.failed, self.last)


class ProducerClosed(ClientClosed):
    """A message was sent through a producer that is closed, or whose thread has ended.

    why: the error that ended it, as text.
    """

    def __init__(self, why: str = "") -> None:
        self.why = why
        ended = f"; its thread ended with {why}: create another one" if why else ""
        super().__init__(f"the producer is closed{ended}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.why,)


def raise_for(code: int, what: str) -> None:
    """Raise the error that a response has, if it has one. what: the request, in words."""
    if code != ErrorCode.NONE:
        raise RejectedError(code, what)
