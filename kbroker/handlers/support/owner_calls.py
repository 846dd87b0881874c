"""Questions about many partitions, sent to their owners in few calls.

A request may name thousands of partitions. A call for each costs both ends more than most answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.ipc.calls import CallOperation, Questions, Results
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Pending, run
from kbroker.types import SlotId


class SlotQuestion(Protocol):
    """slot: of the partition."""

    @property
    def slot(self) -> SlotId: ...


Q = TypeVar("Q", bound=SlotQuestion)
A = TypeVar("A")
P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")

# BOUND: partitions per call. Results that arrived before a timeout or a restart are kept.
CALL_PARTITIONS_MAX = 100
# BOUND: calls of one request in flight to an owner.
CALLS_MAX = 4


class OwnerCalls(Generic[Q, A]):
    """Collects the questions of one request with one operation; ``send`` sends them.

    The other end is ``workers/io/partition_calls``. call_partitions_max: less than usual where one
    answer may be long.
    """

    def __init__(
        self,
        ctx: RequestContext,
        operation: CallOperation[Questions[Q], Results[A]],
        timeout_ms: int | None = None,
        call_partitions_max: int = CALL_PARTITIONS_MAX,
    ) -> None:
        self._ctx = ctx
        self._operation = operation
        self._timeout_ms = timeout_ms
        self._call_partitions_max = call_partitions_max
        self._asked: dict[Address, list[tuple[Q, Pending[A]]]] = {}

    def ask(self, question: Q) -> Pending[A]:
        """The result for the partition, or its owner's WireError."""
        io_workers = self._ctx.io_workers
        pending: Pending[A] = Pending()
        owner = io_workers[question.slot % len(io_workers)]
        self._asked.setdefault(owner, []).append((question, pending))
        return pending

    def send(self) -> None:
        """Ask; the owners work side by side."""
        for owner, asked in self._asked.items():
            parts = iter(
                [
                    asked[first : first + self._call_partitions_max]
                    for first in range(0, len(asked), self._call_partitions_max)
                ]
            )
            for _ in range(CALLS_MAX):
                run(self._ask(owner, parts))
        self._asked = {}

    async def _ask(self, owner: Address, parts: Iterator[list[tuple[Q, Pending[A]]]]) -> None:
        """Ask about one part after the other. Raises nothing."""
        for part in parts:
            try:
                questions = Questions([question for question, _ in part])
                results = await self._ctx.io_worker(
                    owner, self._operation, questions, self._timeout_ms
                )
                if len(results.results) != len(part):
                    raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
            except Exception as error:
                if isinstance(error, WireError) and error.code == ErrorCode.REQUEST_TIMED_OUT:
                    part.extend(chain.from_iterable(parts))  # do not wait for more timeouts
                for _, pending in part:
                    pending.resolve(error=error)
                continue
            for number, code, text in results.failures:
                part[number][1].resolve(error=WireError(ErrorCode(code), text or ""))
            for (_, pending), result in zip(part, results.results, strict=True):
                pending.resolve(result)  # does nothing if there was a failure


async def each_partition(
    ctx: RequestContext,
    topics: Iterable[tuple[str, Iterable[P]]],
    start: Callable[[str, P], S],
    send: Callable[[], None],
    result: Callable[[P, S], Coroutine[object, None, R]],
) -> AsyncIterator[tuple[str, list[R]]]:
    """The results of all partitions, by topic and in order.

    topics: with what the request says of each partition. start: starts with one, and may ask its
    owner; ``send`` sends all questions. result: of one, from what ``start`` has returned.
    """
    started = [
        (name, [(partition, start(name, partition)) async for partition in ctx.each(partitions)])
        async for name, partitions in ctx.each(topics)
    ]
    send()
    async for name, begun in ctx.each(started):
        yield name, [await result(partition, one) async for partition, one in ctx.each(begun)]
