"""Calls between the processes of one broker: JSON over mailboxes, and coroutines that await them.

Every call ends: with a result, with the callee's error, when its deadline passes, or when the
callee is restarted. There is no event loop; a process's own loop passes messages to ``on_message``
and time to ``tick``. A coroutine awaits ``Pending`` objects only, and is resumed on the stack of
whatever resolved them.
"""

from __future__ import annotations

import heapq
import json
import logging
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any

from kbroker.errors import ErrorCode, ShortageError, WireError
from kbroker.ipc.mailbox import ENVELOPE, MSG_CALL, MSG_REPLY, Mailbox, Message
from kbroker.ipc.process_table import Address, ProcessTable
from kbroker.logcontext import RateLimit

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 10_000


class Pending:
    """A value that is not there yet. Awaited by one coroutine at the most."""

    __slots__ = ("_callback", "done", "error", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._callback: Callable[[Pending], None] | None = None

    def resolve(self, value: Any = None, error: BaseException | None = None) -> None:
        """Give the value or the error; a second call does nothing."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        if self._callback is not None:
            self._callback(self)

    def then(self, callback: Callable[[Pending], None]) -> None:
        """Call back when done, at once if it is."""
        if self.done:
            callback(self)
        else:
            self._callback = callback

    def __await__(self) -> Generator[Pending, None, Any]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


def run(coroutine: Coroutine[Pending, None, Any]) -> Pending:
    """Start a coroutine; the returned Pending is resolved with its outcome."""
    outcome = Pending()

    def step(_: Pending | None) -> None:
        try:
            waiting = coroutine.send(None)
        except StopIteration as stop:
            outcome.resolve(stop.value)
        except Exception as error:
            outcome.resolve(error=error)
        else:
            waiting.then(step)

    step(None)
    return outcome


class Rpc:
    """Both ends of the calls of one process."""

    def __init__(
        self, mailbox: Mailbox, processes: ProcessTable, now_ms: Callable[[], int]
    ) -> None:
        self._mailbox = mailbox
        self._processes = processes
        self._now_ms = now_ms
        self._ids = count(1)
        self._calls: dict[int, tuple[Address, int, Pending]] = {}
        # How many of them each incarnation of a callee has. There may be thousands for a handful.
        self._callees: Counter[tuple[Address, int]] = Counter()
        self._deadlines: list[tuple[int, int]] = []
        self._sleepers: list[tuple[int, int, Pending]] = []
        self._operations: dict[str, Callable[..., Any]] = {}
        self._shortages = RateLimit()

    def serve(self, operation: str, function: Callable[..., Any]) -> None:
        """Answer calls of ``operation`` with ``function(sender, **args)``, plain or async."""
        self._operations[operation] = function

    def call(
        self, to: Address, operation: str, timeout_ms: int = DEFAULT_TIMEOUT_MS, **args: Any
    ) -> Pending:
        """Send a call now; await the result (or WireError) at leisure."""
        pending = Pending()
        number = next(self._ids)
        body = json.dumps({"id": number, "op": operation, "args": args}).encode()
        incarnation = self._mailbox.send(to, MSG_CALL, body)
        if not incarnation:
            pending.resolve(error=unavailable(to))
            return pending
        self._calls[number] = (to, incarnation, pending)
        self._callees[to, incarnation] += 1
        heapq.heappush(self._deadlines, (self._now_ms() + timeout_ms, number))
        return pending

    def sleep(self, delay_ms: int) -> Pending:
        """A Pending that resolves by itself after ``delay_ms``."""
        pending = Pending()
        heapq.heappush(self._sleepers, (self._now_ms() + delay_ms, next(self._ids), pending))
        return pending

    def on_message(self, message: Message) -> None:
        """Take a MSG_CALL or MSG_REPLY."""
        document = json.loads(memoryview(message.data)[ENVELOPE.size :].tobytes())
        if message.kind == MSG_REPLY:
            known = self._take(document["id"])
            if known is None:
                return
            error = document.get("error")
            if error is None:
                known[2].resolve(document.get("result"))
            else:
                known[2].resolve(error=WireError(ErrorCode(error), document.get("message")))
        elif message.kind == MSG_CALL:
            self._answer(message.sender, document)

    def _answer(self, sender: Address, document: dict[str, Any]) -> None:
        number = document["id"]
        function = self._operations.get(document["op"])
        if function is None:
            self._reply(sender, {"id": number, "error": int(ErrorCode.UNKNOWN_SERVER_ERROR),
                                 "message": f"no operation {document['op']}"})  # fmt: skip
            return
        try:
            result = function(sender, **document["args"])
        except Exception as error:
            self._reply_error(sender, number, error)
            return
        if isinstance(result, types.CoroutineType):
            run(result).then(lambda outcome: self._reply_outcome(sender, number, outcome))
        else:
            self._reply(sender, {"id": number, "result": result})

    def _reply_outcome(self, sender: Address, number: int, outcome: Pending) -> None:
        if outcome.error is not None:
            self._reply_error(sender, number, outcome.error)
        else:
            self._reply(sender, {"id": number, "result": outcome.value})

    def _reply_error(self, sender: Address, number: int, error: BaseException) -> None:
        code, text = self.refusal(sender, error)
        self._reply(sender, {"id": number, "error": int(code), "message": text})

    def refusal(self, sender: Address, error: BaseException) -> tuple[ErrorCode, str]:
        """The code and words for ``error``; logged if nobody expected it."""
        if isinstance(error, WireError):
            return error.code, error.message
        if isinstance(error, ShortageError):
            times = self._shortages.due(error.errno)
            if times:
                log.error("refused a call of %s (%d times): %s", sender.title, times, error)
            return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        log.error("call from %s failed", sender.title, exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)

    def _reply(self, sender: Address, document: dict[str, Any]) -> None:
        self._mailbox.send(sender, MSG_REPLY, json.dumps(document).encode())

    def tick(self, now_ms: int) -> None:
        """Fail calls whose deadline has passed or whose callee was restarted; wake sleepers."""
        while self._sleepers and self._sleepers[0][0] <= now_ms:
            heapq.heappop(self._sleepers)[2].resolve()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heapq.heappop(self._deadlines)
            known = self._take(number)
            if known is not None:
                text = f"{known[0].title} did not answer in time"
                known[2].resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, text))
        gone = {
            (to, incarnation)
            for to, incarnation in self._callees
            if self._processes.incarnation(to) != incarnation
        }
        if not gone:
            return
        for number, (to, incarnation, _) in list(self._calls.items()):
            if (to, incarnation) in gone:
                known = self._take(number)
                if known is not None:
                    known[2].resolve(error=unavailable(to))

    def _take(self, number: int) -> tuple[Address, int, Pending] | None:
        """A call that ends now; None when it has ended already."""
        known = self._calls.pop(number, None)
        if known is not None:
            callee = known[:2]
            self._callees[callee] -= 1
            if not self._callees[callee]:
                del self._callees[callee]
        return known

    def next_deadline_ms(self) -> int | None:
        """When ``tick`` has something to do next."""
        times = [heap[0][0] for heap in (self._deadlines, self._sleepers) if heap]
        return min(times) if times else None


def unavailable(to: Address) -> WireError:
    """The retriable error of a call to a process that is not there."""
    return WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{to.title} is restarting, try again")
