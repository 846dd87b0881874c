"""The leader epochs in a slot are as in the owner's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._ext.shared.partition_table import PartitionTable, region_size
from kbroker.handlers.list_offsets import epoch_of_start
from kbroker.handlers.offset_for_leader_epoch import end_by_slot
from kbroker.storage.segments.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.property

RISING = st.lists(st.integers(0, 9), max_size=5, unique=True).map(sorted)


@given(
    epochs=RISING,
    starts=st.lists(st.integers(0, 20), min_size=5, max_size=5),
    start=st.integers(0, 20),
    asked=st.integers(-1, 10),
)
def test_slot_returns_the_owners_result_or_none(
    epochs: list[int], starts: list[int], start: int, asked: int
) -> None:
    known = LeaderEpochs("/nonexistent")
    for epoch, first in zip(epochs, sorted(starts), strict=False):
        known.assign(epoch, first, write=False)
    log_end = 30
    table = PartitionTable(bytearray(region_size(1)), 1)
    table.set_epochs(0, *known.newest)
    table.publish(0, log_start_offset=start, log_end=(log_end, 0, 0))
    table.set_role(0, 1, epochs[-1] if epochs else 10, 0)
    slot = table.read(0)
    assert slot is not None

    found = end_by_slot(slot, asked)

    expected = known.end_offset_for(asked, log_end) or (-1, -1)
    assert found is None or (found.leader_epoch, found.end_offset) == expected
    assert found is not None or asked < known.entries[-2][0], "it knows the last two"
    epoch = epoch_of_start(slot)
    assert epoch is None or epoch == known.epoch_for(start) or slot["leader_epoch"] == 0
