"""numpy's rows against what the C compiler made of the same description."""

from __future__ import annotations

import pytest

from kbroker._ext.shared.layouts import offsets
from kbroker.cli.local.dtypes import dtype_of
from kbroker.ipc import layouts, process_table

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", list(layouts.BY_NAME))
def test_every_offset_is_that_of_the_struct(name: str) -> None:
    size, fields = offsets()[name]
    dtype = dtype_of(name)

    assert dtype.itemsize == size
    assert dtype.fields is not None
    found = {field: (place[1], place[0].itemsize) for field, place in dtype.fields.items()}
    assert found == fields


def test_process_table_has_the_offsets_of_its_row() -> None:
    """It is written by Python, by the numbers of cells."""
    fields = dtype_of("ProcessRow").fields
    assert fields is not None
    cells = {name: place[1] // 8 for name, place in fields.items()}
    names = ("pid", "incarnation", "state", "heartbeat_ns", "connections", "handed_over")

    assert [cells[name] for name in names] == list(range(6))
    assert dtype_of("ProcessRow").itemsize == process_table.FIELDS * 8
    assert dtype_of("ProcessHead").itemsize == process_table.HEAD_CELLS * 8
