"""How the calls of an admin client reach the cluster: one at a time, each with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientClosed

P = ParamSpec("P")
R = TypeVar("R")


class AdminCalls:
    """cluster: used by one thread at a time, which has the lock. seconds: that a call may take."""

    def __init__(self, cluster: Cluster, lock: threading.Lock, seconds: float) -> None:
        self._cluster = cluster
        self._lock = lock
        self._seconds = seconds

    def _do(
        self, call: Callable[Concatenate[Cluster, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with self._lock:
            if self._is_closed():
                raise ClientClosed("the admin client is closed")
            self._cluster.deadline = self._seconds
            with self._cluster.within(self._seconds):
                return call(self._cluster, *args, **kwargs)

    def _is_closed(self) -> bool:
        raise NotImplementedError
