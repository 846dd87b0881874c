"""What passes through partitions, by slot."""

from __future__ import annotations

import pytest

from kbroker._ext.shared.log_figures import LogFigures, region_size
from kbroker._ext.shared.partition_table import ONLINE, PartitionTable
from kbroker._ext.shared.partition_table import region_size as table_size

pytestmark = pytest.mark.unit


def test_sizes_are_told_once_for_each_change_of_segments() -> None:
    table = PartitionTable(bytearray(table_size(6)), 6)
    figures = LogFigures(bytearray(region_size(6, 0)), 6, 0)
    table.reset(4, state=ONLINE, slot_incarnation=2)

    assert figures.resized(table, 0, 2) == [4]
    assert figures.resized(table, 1, 2) == []  # another owner's
    figures.show_size(table, 4, 3, 1000)
    assert figures.resized(table, 0, 2) == []
    table.set_swapping(4, True)
    assert figures.resized(table, 0, 2) == [4]

    assert figures.get(4, 2)[5:7] == (3, 1000)


def test_row_of_another_incarnation_is_empty() -> None:
    table = PartitionTable(bytearray(table_size(2)), 2)
    figures = LogFigures(bytearray(region_size(2, 1)), 2, 1)
    table.reset(0, state=ONLINE, slot_incarnation=1)
    figures.show_size(table, 0, 3, 1000)

    assert figures.get(0, 2) == (0,) * 11


def test_region_must_have_all_slots() -> None:
    with pytest.raises(ValueError, match="no 2 slots"):
        LogFigures(bytearray(region_size(2, 1)), 2, 2)
    with pytest.raises(IndexError):
        LogFigures(bytearray(region_size(2, 1)), 2, 1).get(2, 0)
