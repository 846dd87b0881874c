"""The lag of groups that the exporter does not know by itself: those that other brokers coordinate,
and those that read partitions of which this broker has no replica.

They are asked for while somebody uses the console, every 30 s, with the rights of who uses it.
Whoever wants to see a curve must have the right to see its group and topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from kbroker.client.admin.groups import list_groups, offsets_of_groups
from kbroker.client.batches.offsets import ends_of_existing
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.console.local_broker import LagKeeper
from kbroker.console.problems import Problem

# BOUND: groups that are looked at, and seconds in which new ones are.
GROUPS_MAX = 500
LOOK_S = 10.0


class LagsElsewhere:
    """Used by any thread; close it in the end."""

    def __init__(self, keeper: LagKeeper) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "console-lags")

    def maybe_look(self, open_cluster: Callable[[], AbstractContextManager[Cluster]]) -> None:
        """Begin to look, if it is time, in a thread of its own."""
        if self._keeper.is_due(_now_ms()) and self._lock.acquire(blocking=False):
            self._thread.submit(self._look, open_cluster)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self, open_cluster: Callable[[], AbstractContextManager[Cluster]]) -> None:
        try:
            with open_cluster() as cluster:
                lags = lags_of(cluster) if len(cluster.nodes()) > 1 else {}
            self._keeper.maybe_add(lags.items(), _now_ms())
            self._keeper.note((group, lag) for (group, _), lag in lags.items())
        except (ClientError, Problem):
            self._keeper.maybe_add((), _now_ms())  # a gap; the next look is as late
        finally:
            self._lock.release()


def lags_of(cluster: Cluster) -> dict[tuple[str, str], int]:
    """By group and topic; of groups that do not tell, none. Raises ClientError."""
    until = time.monotonic() + LOOK_S
    offsets = offsets_of_groups(cluster, list_groups(cluster)[:GROUPS_MAX], until)
    ends = ends_of_existing(cluster, list({key for rows in offsets.values() for key in rows}))
    lags: dict[tuple[str, str], int] = {}
    for group, rows in offsets.items():
        for key, at in rows.items():
            if key in ends:
                pair = group, key[0]
                lags[pair] = lags.get(pair, 0) + max(ends[key] - at, 0)
    return lags


def _now_ms() -> int:
    return int(time.time() * 1000)
