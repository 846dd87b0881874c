"""The process table: one shared row per process of the broker.

The supervisor writes pid and incarnation, each process writes its own state and heartbeat; everyone
reads. A field is one aligned int64, so a read sees an old or a new value, never a torn one. In
front of the rows is a head (``layouts.PROCESS_HEAD``): the table is the index of a run for programs
that look at it.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from array import array
from typing import NamedTuple

from kbroker.ipc import layouts
from kbroker.ipc.process_kinds import ProcessKind as ProcessKind
from kbroker.metrics.slots import ROW_CELLS

HEAD_CELLS = 8
FIELDS = 8
# HANDED_OVER: from the controller process, when the broker's controlled shutdown has ended.
PID, INCARNATION, STATE, HEARTBEAT_NS, CONNECTIONS, HANDED_OVER = range(6)

STARTING, READY, STOPPING = 0, 1, 2
# From the supervisor to the controller process: hand over leadership.
LEAVE = signal.SIGUSR1


class Address(NamedTuple):
    """Names a process of this broker: its kind and its index among processes of that kind."""

    kind: ProcessKind
    index: int  # type: ignore[assignment]  # tuple.index is not wanted of an address

    @property
    def title(self) -> str:
        """``io-0``, ``network-2``: the name in ``ps``, logs and metrics."""
        return f"{self.kind.title}-{self.index}"


CONTROLLER = Address(ProcessKind.CONTROLLER, 0)


def region_size(process_count: int) -> int:
    """Bytes of a region with one row for each process."""
    return max(mmap.PAGESIZE, (HEAD_CELLS + process_count * FIELDS) * 8)


def write_head(region: mmap.mmap, process_count: int, status_bytes: int) -> None:
    """Supervisor only, when all regions have their content: the run can be looked at from now
    on.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    cells = memoryview(region).cast("q")
    rest = layouts.LAYOUT, namespace, status_bytes, process_count, ROW_CELLS
    cells[1 : 1 + len(rest)] = memoryview(array("q", rest))
    cells[0] = layouts.MAGIC


class ProcessTable:
    """A view of the shared rows; ``addresses`` fixes their order for this run."""

    def __init__(self, region: mmap.mmap, addresses: list[Address]) -> None:
        self.addresses = addresses
        self._rows = {
            address: HEAD_CELLS + number * FIELDS for number, address in enumerate(addresses)
        }
        self._cells = memoryview(region).cast("q")

    def of_kind(self, kind: ProcessKind) -> list[Address]:
        """The addresses of one kind, in index order."""
        return [address for address in self.addresses if address.kind == kind]

    def get(self, address: Address, field: int) -> int:
        return self._cells[self._rows[address] + field]

    def set(self, address: Address, field: int, value: int) -> None:
        self._cells[self._rows[address] + field] = value

    def incarnation(self, address: Address) -> int:
        """The number of starts of the process; 0 before its first start."""
        return self._cells[self._rows[address] + INCARNATION]

    def incarnation_cell(self, address: Address) -> tuple[memoryview, int]:
        """All cells (int64) and the index of the process's incarnation, for code that reads it
        often.
        """
        return self._cells, self._rows[address] + INCARNATION

    def started(self, address: Address, pid: int) -> None:
        """Supervisor only: record the pid of a child that was forked after ``begin_start``."""
        self.set(address, PID, pid)

    def begin_start(self, address: Address) -> int:
        """Supervisor only: mark the process as starting and return its new incarnation."""
        incarnation = self.incarnation(address) + 1
        self.set(address, STATE, STARTING)
        self.set(address, CONNECTIONS, 0)
        self.set(address, HANDED_OVER, 0)
        self.set(address, HEARTBEAT_NS, time.monotonic_ns())
        self.set(address, INCARNATION, incarnation)
        return incarnation

    def heartbeat(self, address: Address) -> None:
        self.set(address, HEARTBEAT_NS, time.monotonic_ns())

    def is_ready(self, address: Address) -> bool:
        return self.get(address, STATE) == READY

    def endpoint(self, runtime_dir: str, address: Address) -> str:
        """The ZeroMQ endpoint of the process's current incarnation."""
        return "ipc://" + os.path.join(runtime_dir, f"{address.title}.{self.incarnation(address)}")
