"""Replicas of this broker that cannot be served, and whether the controller knows.

The slots say which they are: their log directory has failed, or their files are damaged. The
controller hears of them in the response to LeaderAndIsr, and is told to ask where it has not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from kbroker._ext.shared.partition_table import OFFLINE
from kbroker.cluster.control_requests import PartitionKey
from kbroker.hosting.replicas import HostedReplica, HostedReplicas
from kbroker.ipc.pending import Pending
from kbroker.storage.dirs.log_dirs import FAILED

logger = logging.getLogger(__name__)

# Replicas checked in one tick while no log directory fails.
STEP = 500


class OfflineSlots(Protocol):
    """The partition table."""

    @property
    def offline_changes(self) -> int:
        """How often a slot has gone offline or come back."""

    def read(self, slot: int) -> Any: ...


class ReportOffline(Protocol):
    """The way to the controller."""

    def __call__(self) -> Pending[None]:
        """Have the controller ask this broker for its offline replicas."""


class OfflineReplicas:
    """Of one broker. failed_dirs: a byte for each log directory, shared with the io workers."""

    def __init__(
        self,
        replicas: HostedReplicas,
        table: OfflineSlots,
        failed_dirs: Sequence[int],
        report: ReportOffline,
    ) -> None:
        self._replicas = replicas
        self._table = table
        self._failed_dirs = failed_dirs
        self._report = report
        self._told: set[PartitionKey] = set()
        self._dirs_before = bytes(failed_dirs)
        self._walk: Iterator[HostedReplica] = iter(())
        self._walked_for: tuple[int, int] | None = None  # ``_changes`` when the last walk began
        self._is_reporting = False

    def has(self, key: PartitionKey) -> bool:
        """Whether this broker cannot serve its replica."""
        replica = self._replicas.replica(key)
        return replica is not None and self._is_offline(replica)

    def _is_offline(self, replica: HostedReplica) -> bool:
        slot = self._table.read(replica.slot)
        if slot is None or slot["slot_incarnation"] != replica.slot_incarnation:
            return False  # its log is not opened yet
        is_offline: bool = slot["state"] == OFFLINE
        return is_offline or self._failed_dirs[slot["log_dir_index"]] == FAILED

    def note_told(self, keys: Iterable[PartitionKey]) -> None:
        """The controller has a response with KAFKA_STORAGE_ERROR for these."""
        self._told.update(keys)

    def tick(self) -> None:
        """Report replicas that have gone offline: at once with a log directory, else bit by bit. If
        nothing has changed since all were looked at, none is.
        """
        dirs = bytes(self._failed_dirs)
        if dirs != self._dirs_before:
            self._dirs_before = dirs
            self._look_at(list(self._replicas))
            return
        some = list(islice(self._walk, STEP))
        self._look_at(some)
        if len(some) < STEP and self._walked_for != (changes := self._changes()):
            self._walked_for = changes
            self._walk = iter(list(self._replicas))

    def _changes(self) -> tuple[int, int]:
        return self._table.offline_changes, self._replicas.changes

    def _look_at(self, replicas: Iterable[HostedReplica]) -> None:
        fresh = False
        for replica in replicas:
            if not self._is_offline(replica):
                self._told.discard(replica.told.key)
            elif replica.told.key not in self._told:
                fresh = True
        if fresh and not self._is_reporting:
            self._is_reporting = True
            self._report().then(self._reported)

    def _reported(self, outcome: Pending[None]) -> None:
        self._is_reporting = False
        if outcome.error is not None:
            text = "cannot report offline replicas to the controller: %s; trying again"
            logger.warning(text, outcome.error)
            self._walked_for = None
            return
        self._told |= {one.told.key for one in self._replicas if self._is_offline(one)}
