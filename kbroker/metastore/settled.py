"""Hides lost connections from users of a store: retries reads, and settles writes.

A write whose outcome is unknown is sent again once the store is connected. All its operations are
conditional, so the second attempt takes effect, or it fails because the first one did; reading the
nodes tells that from another client's write. A fence is a condition of every write: ``Fenced``
means that it no longer holds, or that ``stop`` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from kbroker.ipc.pending import Pending, in_window
from kbroker.metastore.store import (
    ANY_VERSION,
    BadVersion,
    ConnectionLoss,
    Node,
    NodeExists,
    NodeStat,
    NoNode,
    SessionState,
    Store,
    StoreError,
    StoreOperation,
    StoreTransaction,
    WatchCallback,
)

T = TypeVar("T")

# BOUND: reads in progress of one ``ensure``.
AT_ONCE = 100


class Fenced(Exception):
    """The caller must not write to the store any more."""


class SettledStore:
    """For coroutines that run one at a time, or that expect each other's writes."""

    def __init__(
        self,
        store: Store,
        fence: StoreOperation | None = None,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """fence: a ``check`` that every write includes. on_fenced: called when it fails."""
        self._store = store
        self._fence = [] if fence is None else [fence]
        self._on_fenced = on_fenced
        self._is_connected = False
        self._is_stopped = False
        self._waiting: list[Pending[None]] = []
        store.watch_session(self._on_session)

    # -- reads: the errors of ``Store``, without ConnectionLoss; Fenced after ``stop`` --

    async def get(self, path: str) -> Node:
        return await self._repeated(lambda: self._store.get(path))

    async def exists(self, path: str) -> NodeStat | None:
        return await self._repeated(lambda: self._store.exists(path))

    async def sync(self, path: str) -> None:
        await self._repeated(lambda: self._store.sync(path))

    async def children(self, path: str) -> list[str]:
        return await self._repeated(lambda: self._store.children(path))

    async def subtree(self, path: str) -> list[Node]:
        return await self._repeated(lambda: self._store.subtree(path))

    async def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        return await self._repeated(lambda: self._store.watch(path, callback))

    @property
    def is_shared(self) -> bool:
        return self._store.is_shared

    # -- writes --

    def multi(self) -> StoreTransaction[Coroutine[Any, Any, list[str]]]:
        """A transaction to fill; await its ``commit``."""
        return StoreTransaction(self.apply)

    async def apply(self, operations: list[StoreOperation]) -> list[str]:
        """Like ``Store.apply``; may also raise Fenced.

        A sequential create may take effect twice. Whoever sets or deletes whatever the version may
        undo what somebody else wrote in between.
        """
        fenced = self._fence + operations
        was_lost = False
        while True:
            self._check_open()
            try:
                made = await self._store.apply(fenced)
                return made[len(self._fence) :]
            except ConnectionLoss:
                was_lost = True
            except (BadVersion, NodeExists, NoNode) as error:
                self._check_fence(error)
                if was_lost and await self._took_effect(operations):
                    return [operation.path for operation in operations]
                raise
            await self._connected()

    async def apply_in_parts(self, operations: list[StoreOperation]) -> None:
        """Like ``apply``, but in several requests if one would be too large: each takes effect as
        a whole, in this order, and an error leaves those before it.
        """
        limit = self._store.request_bytes_max
        if limit is None:
            await self.apply(operations)
            return
        part, size = list[StoreOperation](), 0
        for operation in operations:
            # Half of the limit leaves room for the fence, and for others while it is handled.
            if part and size + operation.bytes > limit // 2:
                await self.apply(part)
                part, size = [], 0
            part.append(operation)
            size += operation.bytes
        await self.apply(part)

    async def ensure(self, paths: Iterable[str]) -> None:
        """Create those of these nodes that do not exist, in this order and in one transaction: a
        broker that starts waits for each sync of a disk.
        """
        wanted = list(paths)
        while True:
            existing = await in_window(map(self.exists, wanted), AT_ONCE)
            missing = [path for path, stat in zip(wanted, existing, strict=True) if stat is None]
            if not missing:
                return
            try:
                await self.apply_in_parts([StoreOperation("create", path) for path in missing])
                return
            except NodeExists:  # other clients create them, too
                continue

    def stop(self) -> None:
        """Stop: pending and later requests fail with Fenced."""
        self._is_stopped = True
        self._wake()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def _check_fence(self, error: StoreError) -> None:
        if self._fence and error.path == self._fence[0].path:
            if not self._is_stopped:
                self.stop()
                self._on_fenced()
            raise Fenced(error.path) from error

    def _check_open(self) -> None:
        if self._is_stopped:
            raise Fenced

    async def _took_effect(self, operations: list[StoreOperation]) -> bool:
        """Whether the nodes are in the state that these operations produce. The name of a
        sequential node is unknown: it exists if the others do.
        """
        last: dict[str, StoreOperation] = {}
        for operation in operations:
            if operation.kind != "check" and not operation.sequential:
                last[operation.path] = operation
        done = [await self._is_done(operation) for operation in last.values()]
        return bool(done) and all(done)

    async def _is_done(self, operation: StoreOperation) -> bool:
        try:
            node = await self.get(operation.path)
        except NoNode:
            return operation.kind == "delete"
        if operation.kind == "delete" or node.data != operation.data:
            return False
        if operation.kind == "create":
            owner = self._store.session_id if operation.ephemeral else 0
            return node.stat.owner_session == owner
        return operation.version in (ANY_VERSION, node.stat.version - 1)

    # -- the connection --

    async def _repeated(self, read: Callable[[], Pending[T]]) -> T:
        while True:
            self._check_open()
            try:
                return await read()
            except ConnectionLoss:
                await self._connected()

    async def _connected(self) -> None:
        while not (self._is_connected or self._is_stopped):
            waiting: Pending[None] = Pending()
            self._waiting.append(waiting)
            await waiting

    def _on_session(self, state: SessionState) -> None:
        self._is_connected = state == SessionState.CONNECTED
        if self._is_connected:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.resolve()
