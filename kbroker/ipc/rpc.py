"""Calls between the processes of one broker: JSON over mailboxes, and coroutines that await them.

Every call ends: with a result, with the callee's error, when its deadline passes, or when the
callee is restarted. There is no event loop; a process's own loop passes messages to ``on_message``
and time to ``tick``.
"""

from __future__ import annotations

import heapq
import json
import logging
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from itertools import count
from typing import Any, NamedTuple, TypeVar

from kbroker.errors import ErrorCode, ShortageError, WireError
from kbroker.ipc import documents
from kbroker.ipc.calls import CallOperation
from kbroker.ipc.documents import DocumentError, Encoded
from kbroker.ipc.mailbox import ENVELOPE, MSG_CALL, MSG_REPLY, Mailbox, MailboxMessage
from kbroker.ipc.pending import Pending as Pending
from kbroker.ipc.pending import run as run
from kbroker.ipc.process_table import Address, ProcessTable
from kbroker.logcontext import RateLimit

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")


class PendingCall(NamedTuple):
    """A call in progress."""

    to: Address
    incarnation: int
    operation: CallOperation[Any, Any]
    pending: Pending[Any]


Serve = Callable[[Address, Q], A | Encoded | Coroutine[Any, Any, A | Encoded]]


class Rpc:
    """Both ends of the calls of a process."""

    def __init__(
        self, mailbox: Mailbox, processes: ProcessTable, now_ms: Callable[[], int]
    ) -> None:
        self._mailbox = mailbox
        self._processes = processes
        self._now_ms = now_ms
        self._ids = count(1)
        self._calls: dict[int, PendingCall] = {}
        # The number of calls to each incarnation of a callee. There may be thousands for a handful.
        self._callees: Counter[tuple[Address, int]] = Counter()
        self._deadlines: list[tuple[int, int]] = []
        self._sleepers: list[tuple[int, int, Pending[None]]] = []
        self._served: dict[str, tuple[CallOperation[Any, Any], Serve[Any, Any]]] = {}
        self._shortages = RateLimit()

    def serve(self, operation: CallOperation[Q, A], function: Serve[Q, A]) -> None:
        """Serve calls of ``operation`` with ``function(sender, request)``, plain or async."""
        assert self._mailbox.me.kind in operation.served_by, operation.name
        self._served[operation.name] = operation, function

    def call(
        self,
        to: Address,
        operation: CallOperation[Q, A],
        request: Q,
        timeout_ms: int | None = None,
    ) -> Pending[A]:
        """Send a call; the returned Pending gets the result or a WireError.

        timeout_ms: where the usual one of the operation is not right.
        """
        return self._call(to, operation, documents.encode(request), timeout_ms)

    def call_each(
        self,
        to: Iterable[Address],
        operation: CallOperation[Q, A],
        request: Q,
        timeout_ms: int | None = None,
    ) -> list[Pending[A]]:
        """The same call to several processes; the request may be large."""
        arguments = documents.encode(request)
        return [self._call(one, operation, arguments, timeout_ms) for one in to]

    def _call(
        self, to: Address, operation: CallOperation[Any, A], arguments: str, timeout_ms: int | None
    ) -> Pending[A]:
        """arguments: the request as JSON."""
        pending: Pending[A] = Pending()
        number = next(self._ids)
        body = f'{{"id":{number},"op":"{operation.name}","args":{arguments}}}'.encode()
        incarnation = self._mailbox.send(to, MSG_CALL, body)
        if not incarnation:
            pending.resolve(error=unavailable(to))
            return pending
        self._calls[number] = PendingCall(to, incarnation, operation, pending)
        self._callees[to, incarnation] += 1
        within_ms = operation.deadline_ms if timeout_ms is None else timeout_ms
        heapq.heappush(self._deadlines, (self._now_ms() + within_ms, number))
        return pending

    def sleep(self, delay_ms: int) -> Pending[None]:
        """A Pending that resolves after ``delay_ms``."""
        pending: Pending[None] = Pending()
        heapq.heappush(self._sleepers, (self._now_ms() + delay_ms, next(self._ids), pending))
        return pending

    def on_message(self, message: MailboxMessage) -> None:
        """Take a MSG_CALL or MSG_REPLY."""
        try:
            document = json.loads(str(memoryview(message.data)[ENVELOPE.size :], "utf-8"))
            number = int(document["id"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            logger.error("%s sent neither a call nor a reply", message.sender.title)
            return
        if message.kind == MSG_REPLY:
            self._take_reply(number, document)
        elif message.kind == MSG_CALL:
            self._serve_call(message.sender, number, document)

    def _take_reply(self, number: int, document: dict[str, Any]) -> None:
        call = self._take(number)
        if call is None:
            return
        reply, failure = None, None
        try:
            error = document.get("error")
            if error is None:
                reply = call.operation.read_reply(document.get("result"))
            else:
                failure = WireError(ErrorCode(error), document.get("message") or "")
        except ValueError as unread:
            text = f"the reply of {call.to.title} to {call.operation.name}: {unread}"
            logger.error("%s", text, extra={"event": "rpc.bad-reply"})
            failure = WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        call.pending.resolve(reply, failure)

    def _serve_call(self, sender: Address, number: int, document: dict[str, Any]) -> None:
        name = document.get("op")
        served = self._served.get(str(name))
        if served is None:
            text = f"{self._mailbox.me.title} has no operation {name}"
            self._reply_error(sender, number, WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
            return
        operation, function = served
        try:
            result = function(sender, operation.read_request(document.get("args")))
        except DocumentError as error:
            text = f"{name}: {error}"
            logger.error("rejected a call of %s: %s", sender.title, text)
            self._reply_error(sender, number, WireError(ErrorCode.INVALID_REQUEST, text))
        except Exception as error:
            self._reply_error(sender, number, error)
        else:
            if isinstance(result, types.CoroutineType):
                run(result).then(lambda outcome: self._reply_outcome(sender, number, outcome))
            else:
                self._reply_result(sender, number, result)

    def _reply_outcome(self, sender: Address, number: int, outcome: Pending[Any]) -> None:
        if outcome.error is not None:
            self._reply_error(sender, number, outcome.error)
        else:
            self._reply_result(sender, number, outcome.value)

    def _reply_result(self, sender: Address, number: int, result: Any) -> None:
        if isinstance(result, Encoded):
            body = f'{{"id":{number},"result":{result}}}'.encode()
            self._mailbox.send(sender, MSG_REPLY, body)
        else:
            self._reply(sender, {"id": number, "result": result})

    def _reply_error(self, sender: Address, number: int, error: BaseException) -> None:
        code, text = self.error_of(sender, error)
        self._reply(sender, {"id": number, "error": int(code), "message": text})

    def error_of(self, sender: Address, error: BaseException) -> tuple[ErrorCode, str]:
        """The code and text for ``error``; an unexpected one is logged."""
        if isinstance(error, WireError):
            return error.code, error.message
        if isinstance(error, ShortageError):
            times = self._shortages.due(error.errno)
            if times:
                logger.error("rejected a call of %s (%d times): %s", sender.title, times, error)
            return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        logger.error("call from %s failed", sender.title, exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)

    def _reply(self, sender: Address, document: dict[str, Any]) -> None:
        try:
            body = documents.encode(document).encode()
        except Exception as error:  # whatever a client has named: the caller gets an answer
            logger.error("cannot reply to %s", sender.title, exc_info=error)
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            failed = {"id": document["id"], "error": code, "message": "the reply has no JSON form"}
            body = documents.encode(failed).encode()
        self._mailbox.send(sender, MSG_REPLY, body)

    def tick(self, now_ms: int) -> None:
        """Fail calls whose deadline has passed or whose callee was restarted; wake sleeping
        coroutines.
        """
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            heapq.heappop(self._sleepers)[2].resolve()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heapq.heappop(self._deadlines)
            late = self._take(number)
            if late is not None:
                text = f"{late.to.title} did not respond in time"
                late.pending.resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, text))
        gone = {
            (to, incarnation)
            for to, incarnation in self._callees
            if self._processes.incarnation(to) != incarnation
        }
        if not gone:
            return
        for number, call in list(self._calls.items()):
            if call[:2] in gone and self._take(number) is not None:
                call.pending.resolve(error=unavailable(call.to))

    def _take(self, number: int) -> PendingCall | None:
        """Remove a call that ends now; None if it has already ended."""
        call = self._calls.pop(number, None)
        if call is not None:
            callee = call[:2]
            self._callees[callee] -= 1
            if not self._callees[callee]:
                del self._callees[callee]
        return call

    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to do next."""
        times = [heap[0][0] for heap in (self._deadlines, self._sleepers) if heap]
        return min(times) if times else None


def unavailable(to: Address) -> WireError:
    """The retriable error of a call to a process that is not running."""
    return WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{to.title} is restarting, try again")
