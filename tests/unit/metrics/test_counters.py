"""Counters, their cells and their text."""

from __future__ import annotations

import pytest

from kbroker.exposition.text import escape
from kbroker.metrics import catalog
from kbroker.metrics.catalog import (
    API_WIDTH,
    CELL_COUNT,
    CONNECTIONS_OPEN,
    METRICS,
    PRODUCE_BYTES,
    REQUESTS,
    TOLD_FROM_START,
)
from kbroker.metrics.export import prometheus_text
from kbroker.metrics.slots import ROW_CELLS, Counters, region_size

pytestmark = pytest.mark.unit


def test_every_metric_has_cells_of_its_own() -> None:
    cells = [cell for m in METRICS for cell in range(m.index, m.index + m.width)]

    assert cells == list(range(CELL_COUNT))


def test_names_are_unique_and_follow_the_convention() -> None:
    names = [metric.name for metric in METRICS]

    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("kbroker_")
        assert metric.name.endswith("_total") == (metric.kind == catalog.COUNTER)


def test_rows_do_not_touch_each_other() -> None:
    region = bytearray(region_size(3))
    rows = [Counters(region, row) for row in range(3)]

    for number, row in enumerate(rows):
        for metric in METRICS:
            row.add(metric, number + 1, metric.width - 1)

    assert [row.get(METRICS[-1]) for row in rows] == [1, 2, 3]
    assert [row.get(REQUESTS, API_WIDTH - 1) for row in rows] == [1, 2, 3]
    assert ROW_CELLS % 8 == 0


@pytest.mark.parametrize("label", [-1, API_WIDTH, 10**6])
def test_label_outside_the_row_counts_in_its_last_cell(label: int) -> None:
    counters = Counters(bytearray(region_size(1)), 0)

    counters.add(REQUESTS, 1, label)

    assert counters.get(REQUESTS, API_WIDTH - 1) == 1
    assert sum(counters.cells) == 1


def test_restart_keeps_counters_and_clears_gauges() -> None:
    region = bytearray(region_size(1))
    before = Counters(region, 0)
    before.add(PRODUCE_BYTES, 5)
    before.set(CONNECTIONS_OPEN, 3)

    after = Counters(region, 0)
    after.reset_gauges()

    assert after.get(PRODUCE_BYTES) == 5
    assert after.get(CONNECTIONS_OPEN) == 0


def test_text_has_a_line_for_each_cell_that_counted() -> None:
    counters = Counters(bytearray(region_size(1)), 0)
    counters.add(REQUESTS, 7, 18)
    counters.add(PRODUCE_BYTES, 9)

    text = prometheus_text([("network-0", counters)], {"api": lambda key: f"Api{key}"})

    assert 'kbroker_requests_total{process="network-0",api="Api18"} 7\n' in text
    assert 'kbroker_produce_bytes_total{process="network-0"} 9\n' in text
    assert text.count("{process=") == 2 + len(TOLD_FROM_START)
    assert 'kbroker_transactions_hanging{process="network-0"} 0\n' in text
    assert text.count("# TYPE ") == len(METRICS)


def test_label_values_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
