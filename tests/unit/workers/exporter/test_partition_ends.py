"""Up to where partitions may be read, and which topics are led as a whole."""

from __future__ import annotations

import mmap
from array import array
from typing import Any

import pytest

from kbroker._ext.shared.partition_table import (
    FOLLOWER,
    LEADER,
    LOADING,
    ONLINE,
    PartitionTable,
    region_size,
)
from kbroker.cluster.image import NO_SLOT, ClusterImage
from kbroker.workers.exporter.partitions import PartitionFigures

pytestmark = pytest.mark.unit

INCARNATION = 7


def topic(*slots: int) -> dict[str, Any]:
    rows = [[0, 0, [0], [0], slot, INCARNATION] for slot in slots]
    return {"id": f"{slots[0] + 1:032x}", "internal": False, "config": {}, "partitions": rows}


def test_ends_are_those_of_replicas_that_are_online_here() -> None:
    image = ClusterImage()
    topics = {
        "led": topic(0, 1),
        "followed": topic(2),
        "partly": topic(NO_SLOT, 3),
        "old": topic(4),
    }
    image.apply({"snapshot": True, "version": 1, "topics": topics | {"loading": topic(5, 6)}})
    table = PartitionTable(mmap.mmap(-1, region_size(8)), 8)
    for slot, role in enumerate((LEADER, LEADER, FOLLOWER, LEADER, LEADER, LEADER, LEADER)):
        incarnation = INCARNATION + (slot == 4)
        state = LOADING if slot == 5 else ONLINE
        table.reset(slot, state=state, role=role, slot_incarnation=incarnation)
        end = (100 + slot, 0, 0)
        table.publish(slot, log_start_offset=0, log_end=(200, 0, 0), high_watermark=end)
    log_figures: Any = None
    figures = PartitionFigures(image, table, log_figures, lambda config: 1, ["/data"])

    ends, led = figures.ends()

    assert {name: list(array("q", data)) for name, data in ends.items()} == {
        "led": [100, 101],
        "followed": [102],
        "partly": [-1, 103],
        "loading": [-1, 106],
    }
    assert led == {"led"}
