"""Serves an io worker's calls about log directories: their content, and damage found by readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.ipc import calls
from kbroker.ipc.process_table import Address

if TYPE_CHECKING:
    from kbroker._ext.shared.partition_table import PartitionTable
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.manager.log_manager import LogManager

# BOUND: how long a description waits for logs that are being opened; no client gives up so soon.
OPENS_WITHIN_MS = 5_000
_LOOKS_AGAIN_MS = 20


class LogDirProcess(Protocol):
    """What these calls need from their io worker, besides logs. has_joined: its logs are open."""

    rpc: Rpc
    table: PartitionTable
    has_joined: bool


class LogDirCalls:
    """Made by the io worker, after its LogManager."""

    def __init__(self, process: LogDirProcess, logs: LogManager) -> None:
        self._process = process
        self._table = process.table
        self._logs = logs
        process.rpc.serve(calls.DESCRIBE_LOG_DIRS, self.serve_describe_log_dirs)
        process.rpc.serve(calls.REPORT_DAMAGE, self.serve_report_damage)

    async def serve_describe_log_dirs(
        self, sender: Address, wanted: calls.ReplicasToDescribe
    ) -> list[calls.LogDirDescription]:
        """All logs, as in Kafka, which opens them before it listens. After a crash they may take
        minutes: then what is open by now.
        """
        for _ in range(OPENS_WITHIN_MS // _LOOKS_AGAIN_MS):
            if self._process.has_joined:
                break
            await self._process.rpc.sleep(_LOOKS_AGAIN_MS)
        if wanted.totals:
            return [
                calls.LogDirDescription(**{**log_dir, "logs": []})
                for log_dir in self._logs.describe_totals()
            ]
        keys = None
        if wanted.topics is not None:
            keys = {(name, each) for name, numbers in wanted.topics.items() for each in numbers}
        return [
            calls.LogDirDescription(
                **{**log_dir, "logs": [calls.ReplicaSize(**entry) for entry in log_dir["logs"]]}
            )
            for log_dir in self._logs.describe(keys)
        ]

    def serve_report_damage(self, sender: Address, damage: calls.Damage) -> None:
        """A network process has found damage while reading."""
        log = self._logs.log(damage.slot)
        present = self._table.read(damage.slot)
        if log is not None and present and present["slot_incarnation"] == damage.incarnation:
            self._logs.check.damage_found(log, damage.segment, damage.position, damage.what)
