"""What passes through partitions, by slot."""

from __future__ import annotations

import pytest

from kbroker._ext.shared.log_figures import LogFigures, region_size
from kbroker._ext.shared.partition_table import LOADING, ONLINE, PartitionTable
from kbroker._ext.shared.partition_table import region_size as table_size

pytestmark = pytest.mark.unit


def test_sizes_are_told_once_for_each_change_of_segments() -> None:
    table = PartitionTable(bytearray(table_size(6)), 6)
    figures = LogFigures(bytearray(region_size(6, 0)), 6, 0)
    table.reset(4, state=ONLINE, slot_incarnation=2)

    assert figures.resized(table) == [4]
    assert figures.resized(table) == []
    figures.show_size(table, 4, 3, 1000)
    table.set_swapping(4, True)
    assert figures.resized(table) == [4]

    assert figures.get(4, 2)[5:7] == (3, 1000)


def test_log_that_is_loading_is_told_when_it_is_served() -> None:
    table = PartitionTable(bytearray(table_size(6)), 6)
    figures = LogFigures(bytearray(region_size(6, 0)), 6, 0)
    table.reset(4, state=LOADING, slot_incarnation=2)
    assert figures.resized(table) == []

    table.set_state(4, ONLINE)

    assert figures.resized(table) == [4]


def test_only_slots_whose_segments_have_changed_are_looked_at() -> None:
    """An idle io worker has thousands, and looks four times a second."""
    table = PartitionTable(bytearray(table_size(6)), 6)
    for slot in range(6):
        table.reset(slot, state=ONLINE, slot_incarnation=1)
    assert table.take_segments_changed() == set(range(6))

    table.publish(2, log_start_offset=0, log_end=(5, 0, 300))
    assert table.take_segments_changed() == set()
    table.publish(2, log_start_offset=0, log_end=(6, 5, 60), segments_changed=True)
    table.set_log_dir(3, 1)

    assert table.take_segments_changed() == {2, 3}


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
