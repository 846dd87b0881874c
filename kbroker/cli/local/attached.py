"""A broker on this machine, seen through the memory that its processes share.

It is asked nothing, so all of this works while it is stuck, or stopped. Its tables are copied for
each look (``runs`` says why), and read with numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kbroker.cli.local.dtypes import BLOCK_ROWS, RegionTable, Rows, dtype_of
from kbroker.cli.local.runs import Run
from kbroker.ipc.named_memory import INDEX
from kbroker.ipc.process_kinds import ProcessKind
from kbroker.ipc.process_table import Address
from kbroker.metrics.slots import ROW_CELLS

CLIENT_ROWS = 256  # of each network process


class AttachedBroker:
    """The tables of a run. Raises Failed if this command is of another version."""

    def __init__(self, run: Run) -> None:
        run.check_version()
        self.run = run
        self.pid = run.pid
        self.status: dict[str, Any] = run.status
        self.addresses = run.addresses
        self.listeners = list(run.status["listeners"])
        self.network_count = sum(a.kind == ProcessKind.NETWORK for a in self.addresses)
        head = dtype_of("ProcessHead").itemsize
        self._processes = RegionTable(run, INDEX, dtype_of("ProcessRow"), head)
        self._counters = RegionTable(run, "counters", np.dtype((np.int64, (ROW_CELLS,))))
        self._clients = RegionTable(run, "clients", dtype_of("ClientRow"))
        self._names = RegionTable(run, "slot-names", dtype_of("SlotName"))
        self._slots = RegionTable(
            run, "partitions", dtype_of("Slot"), dtype_of("TableHeader").itemsize
        )  # fmt: skip
        self._written = RegionTable(run, "log-figures", dtype_of("Written"))
        written_bytes = self.status["slots"] * dtype_of("Written").itemsize
        self._read = RegionTable(run, "log-figures", dtype_of("Read"), written_bytes)

    @property
    def is_running(self) -> bool:
        return self.run.is_running

    def processes(self) -> dict[Address, Any]:
        """A ``ProcessRow`` of each process. Raises Failed, as all of these do."""
        rows = self._processes.rows(0, len(self.addresses))
        return dict(zip(self.addresses, rows, strict=True))

    def counters(self) -> npt.NDArray[np.int64]:
        """A row of cells (``metrics.slots``) for each process."""
        count = len(self.addresses)
        return self._counters.rows(0, count).reshape(count, ROW_CELLS)

    def clients(self) -> Rows:
        """A ``ClientRow`` of each client of each network process."""
        rows, is_good = self._clients.settled(0, self.network_count * CLIENT_ROWS, "version")
        in_use: Rows = rows[is_good & (rows["version"] != 0)]
        return in_use

    def replicas(self) -> Iterator[tuple[Rows, Rows, npt.NDArray[np.bool_], Rows, list[Rows]]]:
        """Of the slots in use, a block at a time: ``SlotName``, ``Slot``, whether this is a
        consistent slot of that partition, ``Written``, and ``Read`` of each network process.
        """
        capacity = self.status["slots"]
        for first in range(0, capacity, BLOCK_ROWS):
            count = min(BLOCK_ROWS, capacity - first)
            names, is_named = self._names.settled(first, count, "sequence")
            is_named &= names["slot_incarnation"] != 0
            used = np.flatnonzero(is_named)
            if not used.size:
                continue
            names, begin, count = names[used], first + int(used[0]), int(used[-1] - used[0]) + 1
            used -= used[0]
            slots, is_good = self._slots.settled(begin, count, "sequence")
            slots, is_good = slots[used], is_good[used]
            is_good &= slots["data"]["slot_incarnation"] == names["slot_incarnation"]
            written = self._written.rows(begin, count)[used]
            reads = [
                self._read.rows(network * capacity + begin, count)[used]
                for network in range(self.network_count)
            ]
            yield names, slots, is_good, written, reads
