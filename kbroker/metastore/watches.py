"""Callbacks for changes of nodes."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.metastore.store import WatchCallback, WatchEvent


class Watches:
    """The watches of one store object, by path."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[WatchCallback]] = {}

    def add(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Add a callback for the node; returns a function that removes it."""
        self._callbacks.setdefault(path, []).append(callback)

        def cancel() -> None:
            callbacks = self._callbacks.get(path, [])
            if callback in callbacks:
                callbacks.remove(callback)
                if not callbacks:
                    del self._callbacks[path]

        return cancel

    def has(self, path: str) -> bool:
        """Whether the node has watches."""
        return path in self._callbacks

    def report(self, event: WatchEvent) -> None:
        """Call all callbacks of the node."""
        for callback in list(self._callbacks.get(event.path, ())):
            callback(event)
