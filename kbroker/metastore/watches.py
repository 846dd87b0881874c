"""Who is to be told of changes of which node."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.metastore.store import WatchCallback, WatchEvent


class Watches:
    """The watches of one store object, by path."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[WatchCallback]] = {}

    def add(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Have the callback told of the node; returns what ends that."""
        self._callbacks.setdefault(path, []).append(callback)

        def cancel() -> None:
            callbacks = self._callbacks.get(path, [])
            if callback in callbacks:
                callbacks.remove(callback)
                if not callbacks:
                    del self._callbacks[path]

        return cancel

    def has(self, path: str) -> bool:
        """Whether anybody watches the node."""
        return path in self._callbacks

    def report(self, event: WatchEvent) -> None:
        """Tell everybody who watches the node."""
        for callback in list(self._callbacks.get(event.path, ())):
            callback(event)
