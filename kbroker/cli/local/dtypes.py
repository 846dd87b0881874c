"""The rows of shared tables as numpy sees them, from the description that the extensions have."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kbroker.cli.local.runs import Run
from kbroker.ipc import layouts
from kbroker.ipc.layouts import LayoutField

Rows: TypeAlias = npt.NDArray[Any]

# BOUND: rows that are looked at at once; rows that are looked at again because they were being
# written, and how often. A writer holds a row for well under a microsecond.
BLOCK_ROWS = 16_384
_AGAIN_ROWS = 1_000
_AGAIN_TIMES = 20


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """The structured dtype of a row of ``layouts``. Arrays of bytes are text, padded with NULs."""
    return np.dtype([_entry(field) for field in layouts.BY_NAME[name].fields], align=True)


def _entry(field: LayoutField) -> tuple[Any, ...]:
    if field.type in layouts.BY_NAME:
        return field.name, dtype_of(field.type)
    if field.length > 1 and field.type == "uint8_t":
        return field.name, f"S{field.length}"
    plain = np.dtype(field.type.removesuffix("_t"))
    return (field.name, plain) if field.length == 1 else (field.name, plain, (field.length,))


class RegionTable:
    """Rows of a region that others write."""

    def __init__(self, run: Run, region: str, dtype: np.dtype[Any], start: int = 0) -> None:
        """start: the byte at which the first row begins."""
        self._run = run
        self._region = region
        self._dtype = dtype
        self._start = start

    def rows(self, first: int, count: int) -> Rows:
        """A copy of some rows, read as they are. Raises Failed."""
        size = self._dtype.itemsize
        data = self._run.read(self._region, self._start + first * size, count * size)
        return np.frombuffer(data, self._dtype)

    def settled(self, first: int, count: int, lock: str) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """A copy of some rows, and which of them nobody was writing. lock: the field that is odd
        during a write and differs after it.
        """
        rows, is_good = self._look(first, count, lock)
        bad = np.flatnonzero(~is_good)[:_AGAIN_ROWS]
        if bad.size:
            rows = rows.copy()
        for at in map(int, bad):
            for _ in range(_AGAIN_TIMES):
                one, good = self._look(first + at, 1, lock)
                if good[0]:
                    rows[at], is_good[at] = one[0], True
                    break
        return rows, is_good

    def _look(self, first: int, count: int, lock: str) -> tuple[Rows, npt.NDArray[np.bool_]]:
        # Each copy was read as a whole after the one before it. Nobody wrote a row while the second
        # one was read if the first and the third have the same even number.
        before = self.rows(first, count)[lock]
        rows = self.rows(first, count)
        after = self.rows(first, count)[lock]
        return rows, (before == after) & (after % 2 == 0)
