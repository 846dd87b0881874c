"""Producer ids of this broker: blocks from the metadata store, given to its processes in parts.

A store that is shared may be away for a while, when producers still need ids. So there is a block
before anybody asks, and the next one is fetched when a tenth is left. When all are used up, the
answer is an error that clients retry, not a wait for the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kbroker.controller.store.persistence import PRODUCER_ID_BLOCK_SIZE
from kbroker.controller.store.store_failure import store_failure
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ProducerIdBlock
from kbroker.ipc.pending import Pending, TooLate, within
from kbroker.metastore.store import StoreError, StoreFailed

# The ids that a process of this broker gets at once from a shared store.
PART_SIZE = 100
FETCHED_AT = PRODUCER_ID_BLOCK_SIZE // 10
WAIT_MS = 2_000


class ProducerIdBlocks:
    """The producer ids of one broker.

    allocate: takes a block from the store; resolves to its first id. check_connected: raises the
    error for clients while the store cannot be reached. is_shared: with other brokers; a store of
    this broker alone is never away, and its blocks are given out as they are.
    """

    def __init__(
        self,
        allocate: Callable[[], Pending[int]],
        check_connected: Callable[[], None],
        sleep: Callable[[int], Pending[None]],
        *,
        is_shared: bool,
    ) -> None:
        self._allocate = allocate
        self._check_connected = check_connected
        self._sleep = sleep
        self._is_shared = is_shared
        self._part_size = PART_SIZE if is_shared else PRODUCER_ID_BLOCK_SIZE
        self._blocks: deque[ProducerIdBlock] = deque()
        self._is_fetching = False
        self._waiting: list[Pending[None]] = []

    @property
    def left(self) -> int:
        """Ids that are here."""
        return sum(block.count for block in self._blocks)

    async def take(self) -> ProducerIdBlock:
        """Some ids that nobody else gets; REQUEST_TIMED_OUT while the store is away."""
        while not self._blocks:
            self._check_connected()
            fetched: Pending[None] = Pending()
            self._waiting.append(fetched)
            self._fetch()
            await self._soon(fetched)
        block = self._blocks.popleft()
        part = ProducerIdBlock(block.first, min(block.count, self._part_size))
        if part.count < block.count:
            rest = ProducerIdBlock(block.first + part.count, block.count - part.count)
            self._blocks.appendleft(rest)
        self.fetch_ahead()
        return part

    async def _soon(self, fetched: Pending[None]) -> None:
        try:
            await (fetched if fetched.done else within(fetched, self._sleep(WAIT_MS)))
        except TooLate:
            text = "There are no producer ids, and the metadata store gives none; try again."
            raise WireError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    def fetch_ahead(self) -> None:
        """Fetch the next block if it may soon be needed."""
        if self._is_shared and self.left <= FETCHED_AT:
            self._fetch()

    def _fetch(self) -> None:
        if not self._is_fetching:
            self._is_fetching = True
            self._allocate().then(self._on_fetched)

    def _on_fetched(self, outcome: Pending[int]) -> None:
        self._is_fetching = False
        error = outcome.error
        if error is None:
            self._blocks.append(ProducerIdBlock(outcome.value, PRODUCER_ID_BLOCK_SIZE))
        elif isinstance(error, (StoreFailed, StoreError)):
            error = store_failure(error)
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.resolve(error=error)
