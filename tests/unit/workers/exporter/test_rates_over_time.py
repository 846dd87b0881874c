"""Rates and levels over time: two resolutions, in bounded memory."""

from __future__ import annotations

import sys

import pytest

from kbroker.metrics.measured import DAY, HOUR
from kbroker.workers.exporter.history import (
    COARSE_POINTS,
    COARSE_S,
    FINE_POINTS,
    FINE_S,
    SERIES_MAX,
    Key,
    MetricHistory,
    busiest,
)

pytestmark = pytest.mark.unit

START_MS = 1_700_000_000_000
IN: Key = ("bytes_in", "")


def steps(history: MetricHistory, count: int, first: int = 0, **values: float) -> None:
    for number in range(first, first + count):
        found = {(what, ""): value for what, value in values.items()} or {IN: float(number)}
        history.add(found, START_MS + number * FINE_S * 1000)


def test_hour_has_the_newest_points_in_order() -> None:
    history = MetricHistory()
    steps(history, FINE_POINTS + 5)

    found = history.of(HOUR, ["bytes_in"])

    assert found.step_s == FINE_S
    assert found.series[IN] == [float(number) for number in range(5, FINE_POINTS + 5)]
    assert found.times_ms == sorted(found.times_ms)
    assert len(found.times_ms) == FINE_POINTS


def test_day_has_the_means_of_five_minutes() -> None:
    history = MetricHistory()
    steps(history, COARSE_S // FINE_S * 3 + 1)

    row = history.of(DAY, ["bytes_in"]).series[IN]

    # The first one closes when five minutes have passed, with the point of that moment in it.
    assert row == [15.0, 45.5, 75.5]


def test_series_without_a_figure_has_a_gap_and_is_forgotten_with_its_last_point() -> None:
    history = MetricHistory()
    steps(history, 3)
    steps(history, 2, 3, connections=7.0)

    assert history.of(HOUR, ["bytes_in"]).series[IN] == [0.0, 1.0, 2.0, None, None]
    assert history.of(HOUR, ["connections"]).series["connections", ""][:3] == [None] * 3
    steps(history, FINE_POINTS + COARSE_S // FINE_S, 5, connections=7.0)
    assert IN not in history.of(HOUR, ["bytes_in"]).series


def test_series_are_bounded_and_those_left_out_are_counted() -> None:
    history = MetricHistory()
    history.add({("lag", f"g{number}"): 1.0 for number in range(SERIES_MAX + 20)}, START_MS, 3)

    found = history.of(HOUR, ["lag"])

    assert (len(found.series), found.left_out) == (SERIES_MAX, 23)


def test_full_history_takes_less_than_two_mebibytes() -> None:
    history = MetricHistory()
    values = {("lag", f"g{number}"): 1.0 for number in range(SERIES_MAX)}
    for number in range(FINE_POINTS):
        history.add(values, START_MS + number * FINE_S * 1000)
    # The rest of a day, of which only each thirtieth step is one.
    for number in range(1, COARSE_POINTS + 1):
        history.add(values, START_MS + (FINE_POINTS * FINE_S + number * COARSE_S) * 1000)

    rings = (history._fine, history._coarse)
    size = sum(sys.getsizeof(row) for ring in rings for row in ring.rows.values())
    assert [len(ring.times) for ring in rings] == [FINE_POINTS, COARSE_POINTS]
    assert size < 2 << 20


def test_points_are_due_every_ten_seconds_and_after_the_clock_was_set_back() -> None:
    history = MetricHistory()
    assert history.is_due(START_MS)
    history.add({IN: 1.0}, START_MS)

    assert not history.is_due(START_MS + 9_999)
    assert history.is_due(START_MS + 10_000)
    assert history.is_due(START_MS - 1)


def test_slope_of_a_level_that_falls_is_its_rate() -> None:
    history = MetricHistory()
    free: Key = ("free_bytes", "/data")
    for number in range(60):
        history.add({free: 1_000_000.0 - 500 * number}, START_MS + number * FINE_S * 1000)

    slope = history.slope_per_s(free)

    assert slope is not None
    assert abs(slope + 50) < 0.1


def test_slope_of_a_few_points_is_no_forecast() -> None:
    history = MetricHistory()
    steps(history, 3)

    assert history.slope_per_s(IN) is None
    assert history.slope_per_s(("free_bytes", "/other")) is None


def test_busiest_are_those_with_the_largest_values() -> None:
    assert busiest({"a": 1, "b": 3, "c": 2}, 2) == {"b", "c"}
