"""Counters in shared memory: one row of int64 cells per process.

A row is written by its process only, and read by the exporter. It belongs to a place in the process
table, not to a process: a restarted process continues where the last one stopped, so counters never
go back.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

from kbroker.metrics.catalog import CELL_COUNT, GAUGE, METRICS, MetricRow

_CELL_SIZE = 8
_LINE_CELLS = 8  # rows start on their own cache line: two processes never write the same one
ROW_CELLS = (CELL_COUNT + _LINE_CELLS - 1) // _LINE_CELLS * _LINE_CELLS


class WritableBuffer(Protocol):
    """Anything ``memoryview`` takes and can write to."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


def region_size(row_count: int) -> int:
    """Bytes of a region with a row for each of ``row_count`` processes."""
    return max(mmap.PAGESIZE, row_count * ROW_CELLS * _CELL_SIZE)


class Counters:
    """The counters of one process.

    ``cells`` is a memoryview of int64 for Cython code (``cdef int64_t[::1]``).
    """

    __slots__ = ("cells",)

    def __init__(self, region: mmap.mmap | WritableBuffer, row: int) -> None:
        start = row * ROW_CELLS
        self.cells = memoryview(region).cast("q")[start : start + ROW_CELLS]

    def add(self, metric: MetricRow, count: int = 1, label: int = 0) -> None:
        """Add ``count``; a label value outside the row's width goes to its last cell."""
        if not 0 <= label < metric.width:
            label = metric.width - 1
        self.cells[metric.index + label] += count

    def set(self, metric: MetricRow, value: int, label: int = 0) -> None:
        """Give a gauge its value; a label value outside the row's width has the last cell."""
        self.cells[metric.index + min(label, metric.width - 1)] = value

    def get(self, metric: MetricRow, label: int = 0) -> int:
        return self.cells[metric.index + label]

    def reset_gauges(self) -> None:
        """Called by a process when it starts: resets the gauges of its predecessor."""
        for metric in METRICS:
            if metric.kind == GAUGE:
                for cell in range(metric.index, metric.index + metric.width):
                    self.cells[cell] = 0


class Totals:
    """Adds the growth of running totals, which code keeps for itself, to the counters."""

    __slots__ = ("_counters", "_last", "_rows")

    def __init__(self, counters: Counters, rows: list[tuple[MetricRow, Callable[[], int]]]) -> None:
        """rows: a metric and the function that reads its total."""
        self._counters = counters
        self._rows = rows
        self._last = [0] * len(rows)

    def publish(self) -> None:
        """Add the growth since the last call, and set gauges."""
        for row, (metric, read) in enumerate(self._rows):
            total = read()
            if metric.kind == GAUGE:
                self._counters.set(metric, total)
            elif total != self._last[row]:
                self._counters.add(metric, total - self._last[row])
                self._last[row] = total
