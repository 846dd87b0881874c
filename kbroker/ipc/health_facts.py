"""What the health of this broker is made of, as its own processes see it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from kbroker.health.broker import SUPERVISOR_NAME, BrokerFacts, ProcessFact
from kbroker.ipc.log_dir_table import LogDirTable, space_of
from kbroker.ipc.process_table import (
    HEARTBEAT_NS,
    PID,
    READY,
    STARTING,
    STATE,
    STOPPING,
    Address,
    ProcessKind,
    ProcessTable,
)

STATE_NAMES = {STARTING: "starting", READY: "ready", STOPPING: "stopping"}
_TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/<pid>/stat, behind the name: ticks from the start of the machine to that of the process.
_START_TIME = 19


class HealthFacts:
    """me: the process that this runs in, which shows a sign of life by asking. paths: of the log
    directories. Any thread may ask.
    """

    def __init__(
        self,
        processes: ProcessTable,
        me: Address,
        parent_pid: int,
        broker_id: int,
        directories: LogDirTable,
        paths: Sequence[str],
    ) -> None:
        self.processes = processes
        self._me = me
        self._parent_pid = parent_pid
        self._broker_id = broker_id
        self._directories = directories
        self._paths = paths

    def facts(self, zookeeper: bool | None = None) -> BrokerFacts:
        """What is so now. zookeeper: whether it is connected; None if nobody knows."""
        return BrokerFacts(
            self._broker_id,
            int(time.time() * 1000),
            [self._process(address) for address in self.processes.addresses],
            [
                self._directories.fact(index, path, space_of(path))
                for index, path in enumerate(self._paths)
            ],
            os.getppid() == self._parent_pid,
            zookeeper,
        )

    def _process(self, address: Address) -> ProcessFact:
        table = self.processes
        state = table.get(address, STATE)
        silent_ms = (time.monotonic_ns() - table.get(address, HEARTBEAT_NS)) // 10**6
        return process_fact(
            address,
            STATE_NAMES.get(state, str(state)),
            0 if address == self._me else max(0, silent_ms),
            table.incarnation(address),
            table.get(address, PID),
        )


def process_fact(
    address: Address, state: str, silent_ms: int | None, incarnation: int, pid: int
) -> ProcessFact:
    """pid: 0 if it cannot be looked at."""
    name = SUPERVISOR_NAME if address.kind == ProcessKind.SUPERVISOR else address.title
    restarts = max(0, incarnation - 1)
    age_s = started_ago_s(pid) if restarts and pid else None
    return ProcessFact(name, state, silent_ms, restarts, age_s)


def started_ago_s(pid: int) -> float | None:
    """How long a process has run; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS)
