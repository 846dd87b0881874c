"""Questions about many partitions, put to their owners in few calls.

A request may name thousands of partitions. A call for each costs both ends more than most answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import DEFAULT_TIMEOUT_MS, Pending, run

# BOUND: partitions of one call. What was answered before a timeout or a restart stays answered.
CALL_PARTITIONS_MAX = 100
# BOUND: calls of one request that an owner has at a time.
CALLS_MAX = 4


class OwnerCalls:
    """Collects what one request asks with one operation; nothing is sent before ``send``.

    The other end is ``workers/partition_calls``. common: what is the same for all partitions.
    call_partitions_max: less than usual where one answer may be long.
    """

    def __init__(
        self,
        ctx: RequestContext,
        operation: str,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        call_partitions_max: int = CALL_PARTITIONS_MAX,
        **common: Any,
    ) -> None:
        self._ctx = ctx
        self._operation = operation
        self._timeout_ms = timeout_ms
        self._call_partitions_max = call_partitions_max
        self._common = common
        self._asked: dict[Address, list[tuple[tuple[Any, ...], Pending]]] = {}

    def ask(self, slot: int, *args: Any) -> Pending:
        """The partition's answer, or the WireError of its owner."""
        io_workers = self._ctx.io_workers
        pending = Pending()
        owner = io_workers[slot % len(io_workers)]
        self._asked.setdefault(owner, []).append(((slot, *args), pending))
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

    async def _ask(self, owner: Address, parts: Iterator[list[tuple[Any, Pending]]]) -> None:
        """Ask about one part after the other. Raises nothing."""
        for part in parts:
            try:
                answers = await self._ctx.io_worker(
                    owner,
                    self._operation,
                    timeout_ms=self._timeout_ms,
                    asked=[args for args, _ in part],
                    **self._common,
                )
            except Exception as error:
                if isinstance(error, WireError) and error.code == ErrorCode.REQUEST_TIMED_OUT:
                    part.extend(chain.from_iterable(parts))  # nobody waits for more timeouts
                for _, pending in part:
                    pending.resolve(error=error)
                continue
            for (_, pending), answer in zip(part, answers, strict=True):
                code = answer.get("error")
                if code is None:
                    pending.resolve(answer)
                else:
                    pending.resolve(error=WireError(ErrorCode(code), answer["message"]))
