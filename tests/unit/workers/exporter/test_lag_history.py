"""The lag of groups over time: a ring of points for each pair of group and topic."""

from __future__ import annotations

import pytest

from kbroker.workers.exporter.lag_history import (
    EVERY_MS,
    PAIRS_MAX,
    POINTS_MAX,
    UNKNOWN,
    LagHistory,
)

pytestmark = pytest.mark.unit

START_MS = 1_700_000_000_000


def at(point: int) -> int:
    return START_MS + point * EVERY_MS


def filled(points: int, *pairs: tuple[str, str]) -> LagHistory:
    """Each lag is the number of its point."""
    history = LagHistory()
    for point in range(points):
        history.maybe_add(((pair, point) for pair in pairs), at(point))
    return history


def test_point_is_added_when_it_is_time_for_one() -> None:
    history = LagHistory()

    added = [
        history.maybe_add([(("g", "t"), lag)], START_MS + ms)
        for lag, ms in ((5, 0), (6, EVERY_MS - 1), (7, EVERY_MS))
    ]

    assert added == [True, False, True]
    assert history.of("g") == ([START_MS, START_MS + EVERY_MS], {"t": [5, 7]})


def test_clock_that_was_set_back_does_not_stop_the_curve() -> None:
    history = filled(1, ("g", "t"))

    assert history.maybe_add([(("g", "t"), 9)], START_MS - 3_600_000)
    assert history.of("g").by_topic == {"t": [0, 9]}


def test_curve_has_the_latest_points_in_order() -> None:
    history = filled(POINTS_MAX + 3, ("g", "t"))

    times, by_topic = history.of("g")

    assert times == [at(point) for point in range(3, POINTS_MAX + 3)]
    assert by_topic == {"t": list(range(3, POINTS_MAX + 3))}


def test_what_is_not_told_is_a_gap() -> None:
    history = filled(1, ("g", "t"))

    history.maybe_add([], at(1))
    history.maybe_add([(("g", "t"), UNKNOWN), (("g", "u"), 4)], at(2))

    assert history.of("g").by_topic == {"t": [0, UNKNOWN, UNKNOWN], "u": [UNKNOWN, UNKNOWN, 4]}
    assert history.of("other").by_topic == {}


def test_pair_without_a_point_left_is_forgotten() -> None:
    history = filled(1, ("gone", "t"))

    for point in range(1, POINTS_MAX):
        history.maybe_add([(("g", "t"), 1)], at(point))
    assert history.of("gone").by_topic
    history.maybe_add([(("g", "t"), 1)], at(POINTS_MAX))

    assert history.of("gone").by_topic == {}


def test_curves_are_bounded_and_the_largest_lags_have_them() -> None:
    history = filled(1, ("first", "t"))
    many = [((f"g{number}", "t"), number) for number in range(PAIRS_MAX + 10)]

    history.maybe_add([*many, (("first", "t"), 0)], at(1))

    known = [name for (name, _), _ in many if history.of(name).by_topic]
    assert len(known) == PAIRS_MAX - 1
    assert known[0] == "g11"
    assert history.of("first").by_topic == {"t": [0, 0]}
