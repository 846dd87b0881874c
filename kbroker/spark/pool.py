"""Connections that outlive a task: one cluster for each configuration and Python worker.

Spark reuses its Python workers, so a micro-batch of a few records need not connect first. A cluster
serves one user at a time: it is taken out, and goes back only after it was used without an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from kbroker.client.connections.cluster import Cluster

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """BOUND: of idle clusters. capacity: per process. idle_s: after this time one is closed when
    the next one is requested. Connections are checked by the client before they are reused.
    """

    capacity: int = 64
    idle_s: float = 300.0


DEFAULT_LIMITS = PoolLimits()


class ClusterPool:
    """Thread-safe; drops its content after a fork. All jobs of a process share it: the limits are
    those of the job that returns a cluster.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Its expiry, its key, the cluster.
        self._idle: list[tuple[float, _Key, Cluster]] = []
        self._pid = os.getpid()

    def take(self, bootstrap: str, settings: Mapping[str, str]) -> Cluster:
        """A cluster for the caller alone: an idle one, or a new one that has no connection yet."""
        key = _key(bootstrap, settings)
        with self._lock:
            if self._pid != os.getpid():
                self._idle, self._pid = [], os.getpid()
            now = time.monotonic()
            expired = [entry for entry in self._idle if entry[0] < now]
            self._idle = [entry for entry in self._idle if entry[0] >= now]
            idle = next((entry for entry in reversed(self._idle) if entry[1] == key), None)
            if idle is not None:
                self._idle.remove(idle)
        for _, _, cluster in expired:
            cluster.close()
        if idle is not None:
            return idle[2]
        return Cluster.from_options({**settings, "bootstrap.servers": bootstrap})

    def give_back(
        self, bootstrap: str, settings: Mapping[str, str], cluster: Cluster, limits: PoolLimits
    ) -> None:
        """Give a client back for reuse; only one that was used without an error."""
        until = time.monotonic() + limits.idle_s
        with self._lock:
            full = len(self._idle) >= limits.capacity or self._pid != os.getpid()
            if not full:
                self._idle.append((until, _key(bootstrap, settings), cluster))
        if full:
            cluster.close()


def _key(bootstrap: str, settings: Mapping[str, str]) -> _Key:
    return bootstrap, tuple(sorted(settings.items()))


_POOL = ClusterPool()


@contextmanager
def borrowed(
    bootstrap: str,
    settings: Mapping[str, str],
    pool: ClusterPool | None = None,
    *,
    limits: PoolLimits = DEFAULT_LIMITS,
) -> Iterator[Cluster]:
    """A cluster of this process's pool. An exception closes it, as its connections may be in the
    middle of something."""
    place = pool or _POOL
    cluster = place.take(bootstrap, settings)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    place.give_back(bootstrap, settings, cluster, limits)
