"""AlterReplicaLogDirs in an io worker: takes the requests, and carries moves on between turns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kbroker.ipc.calls import ALTER_REPLICA_LOG_DIRS, MoveReplicas
from kbroker.ipc.process_table import Address
from kbroker.storage.log_dir import LogDir
from kbroker.workers.base import now_ms

if TYPE_CHECKING:
    from kbroker.workers.io_worker import IoWorker

LOCK_NAME = "placement.lock"


def placement_lock(runtime_dir: str) -> str:
    """The file that io workers lock to choose a directory for a new partition."""
    return os.path.join(runtime_dir, LOCK_NAME)


class LogMovingService:
    """Made by the io worker, after its LogManager."""

    def __init__(self, worker: IoWorker) -> None:
        self._worker = worker
        self._moves = worker.logs.moves
        self._moves.is_held = worker.coordinators.is_loading
        self._moves.on_failed_dir = self._on_failed_dir
        worker.rpc.serve(ALTER_REPLICA_LOG_DIRS, self.serve_alter_replica_log_dirs)

    def serve_alter_replica_log_dirs(self, sender: Address, asked: MoveReplicas) -> list[int]:
        """The error code of each replica."""
        return [
            int(self._moves.request((topic, partition), slot, path))
            for topic, partition, slot, path in asked.replicas
        ]

    def end_turn(self) -> None:
        """Copy on; whoever waits at a log that was moved looks again."""
        if self._moves.is_active:
            for slot in self._moves.turn(now_ms()):
                self._worker.loop.wake(slot)

    def next_deadline_ms(self) -> int | None:
        """When to look again, on the clock of ``now_ms``."""
        return self._moves.next_deadline_ms(now_ms())

    def take_settings(self) -> None:
        """Follow the broker's dynamic settings."""
        self._worker.logs.placement.cordoned = self._worker.config["cordoned.log.dirs"]

    def _on_failed_dir(self, log_dir: LogDir, cause: object) -> None:
        self._worker.on_failed_slots(self._worker.logs.fail_log_dir(log_dir.path, cause))
