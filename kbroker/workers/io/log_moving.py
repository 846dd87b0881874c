"""AlterReplicaLogDirs in an io worker: takes the requests, and continues moves between turns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kbroker.ipc.calls import ALTER_REPLICA_LOG_DIRS, MoveReplicas
from kbroker.ipc.process_table import Address
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.workers.base import now_ms

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.config.loader import BrokerConfig
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.manager.log_manager import LogManager

LOCK_NAME = "placement.lock"


def placement_lock(runtime_dir: str) -> str:
    """The file that io workers lock to choose a directory for a new partition."""
    return os.path.join(runtime_dir, LOCK_NAME)


class MovingProcess(Protocol):
    """What the service needs from its io worker, besides logs and loop."""

    rpc: Rpc

    @property
    def config(self) -> BrokerConfig: ...

    def is_loading(self, slot: int) -> bool:
        """Whether a coordinator is loading this log, whose files must not change."""

    def on_failed_slots(self, slots: Sequence[int]) -> None:
        """The log directory of these slots is offline."""


class LogMovingService:
    """Made by the io worker, after its loop and its LogManager."""

    def __init__(self, process: MovingProcess, logs: LogManager, loop: IoLoop) -> None:
        self._process = process
        self._logs = logs
        self._loop = loop
        self._moves = logs.moves
        self._moves.is_held = process.is_loading
        self._moves.on_failed_dir = self._on_failed_dir
        process.rpc.serve(ALTER_REPLICA_LOG_DIRS, self.serve_alter_replica_log_dirs)

    def serve_alter_replica_log_dirs(self, sender: Address, asked: MoveReplicas) -> list[int]:
        """The error code of each replica."""
        return [
            int(self._moves.request((topic, partition), slot, path))
            for topic, partition, slot, path in asked.replicas
        ]

    def end_turn(self) -> None:
        """Continue the copies; waiting readers of a log that has moved look again."""
        if self._moves.is_active:
            for slot in self._moves.turn(now_ms()):
                self._loop.wake(slot)

    def next_deadline_ms(self) -> int | None:
        """The time of the next check, on the clock of ``now_ms``."""
        return self._moves.next_deadline_ms(now_ms())

    def take_settings(self) -> None:
        """Follow the broker's dynamic settings."""
        self._logs.placement.cordoned = self._process.config["cordoned.log.dirs"]

    def _on_failed_dir(self, log_dir: LocalLogDir, cause: object) -> None:
        self._process.on_failed_slots(self._logs.fail_log_dir(log_dir.path, cause))
