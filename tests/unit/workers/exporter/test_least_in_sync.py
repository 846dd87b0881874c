"""Partitions with few replicas in sync, as the exporter tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.workers.exporter.partitions import (
    AT_MIN_ISR,
    NOTHING,
    UNDER_MIN_ISR,
    LocalReplica,
    PartitionFigures,
    Seen,
)

pytestmark = pytest.mark.unit


def figures(least: int) -> PartitionFigures:
    image: Any = SimpleNamespace(topics={"t": SimpleNamespace(config={})})
    log_figures: Any = SimpleNamespace(lag=lambda *slot: -1)
    table: Any = None
    return PartitionFigures(image, table, log_figures, lambda configs: least, ["/data"])


def seen(replicas: list[int], isr: list[int]) -> Seen:
    image: Any = SimpleNamespace(replicas=replicas, isr=isr, slot=0, slot_incarnation=1, leader=0)
    return Seen(LocalReplica("t", 0, image), True, 0, 5, 5, 5, 100, 1, NOTHING)


@pytest.mark.parametrize(
    ("least", "replicas", "isr", "under", "at"),
    [
        (2, [0, 1, 2], [0], 1, 0),
        (2, [0, 1, 2], [0, 1], 0, 1),
        (2, [0, 1, 2], [0, 1, 2], 0, 0),
        (3, [0, 1], [0, 1], 0, 1),
        (3, [0, 1], [0], 1, 0),
        (2, [0], [0], 0, 1),
    ],
)
def test_min_isr_is_no_more_than_the_number_of_replicas(
    least: int, replicas: list[int], isr: list[int], under: int, at: int
) -> None:
    """As produces and coordinators count it, and Kafka since 3.9."""
    told = figures(least)
    rows = [seen(replicas, isr)]
    found = {
        bean: [value for _, value in samples]
        for bean, samples in told.partition_samples(rows)
        if bean in (UNDER_MIN_ISR, AT_MIN_ISR)
    }
    assert found == {UNDER_MIN_ISR: [under], AT_MIN_ISR: [at]}
    assert told.at_min_isr(rows) == at
