"""The embedded metadata store of a standalone broker: a ``NodeFile`` behind the interface.

Every Pending it returns is already resolved, so a coroutine that awaits it is not suspended. Its
session lasts while the file is open: it is never suspended and never expires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kbroker.ipc.pending import Pending
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store import (
    Node,
    NodeStat,
    SessionCallback,
    SessionState,
    Store,
    StoreOperation,
    WatchCallback,
)
from kbroker.metastore.watches import Watches

P = ParamSpec("P")
T = TypeVar("T")


class EmbeddedStore(Store):
    """Owns the file; used by one thread of one process."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file
        self._watches = Watches()

    @property
    def session_id(self) -> int:
        return self._file.session_id

    @property
    def is_shared(self) -> bool:
        return False

    def get(self, path: str) -> Pending[Node]:
        return at_once(self._file.get, path)

    def exists(self, path: str) -> Pending[NodeStat | None]:
        return at_once(self._file.exists, path)

    def children(self, path: str) -> Pending[list[str]]:
        return at_once(self._file.children, path)

    def subtree(self, path: str) -> Pending[list[Node]]:
        return at_once(self._file.subtree, path)

    def apply(self, operations: list[StoreOperation]) -> Pending[list[str]]:
        return at_once(self._apply, operations)

    def _apply(self, operations: list[StoreOperation]) -> list[str]:
        made, events = self._file.transact(operations)
        for event in events:
            self._watches.report(event)
        return made

    def watch(self, path: str, callback: WatchCallback) -> Pending[Callable[[], None]]:
        return at_once(self._watches.add, path, callback)

    def watch_session(self, callback: SessionCallback) -> None:
        callback(SessionState.CONNECTED)

    def settle(self, now_ms: int) -> None:
        """See ``NodeFile.settle``. Call it several times a second. now_ms: monotonic."""
        self._file.settle(now_ms)

    def close(self) -> Pending[None]:
        return at_once(self._file.close)


def at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
    """Call the function now, and return its result or error as a resolved Pending."""
    pending: Pending[T] = Pending()
    try:
        pending.resolve(function(*args, **kwargs))
    except Exception as error:
        pending.resolve(error=error)
    return pending
