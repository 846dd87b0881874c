"""Histograms of request times in shared memory."""

from __future__ import annotations

import pytest

from kbroker._ext.shared.request_times import (
    FOLLOWER_ROW,
    LOCAL,
    REMOTE,
    ROW_COUNT,
    TOTAL,
    RequestTimes,
    TimesView,
    bounds,
    bucket_number,
    powers,
    region_size,
    summary,
)

pytestmark = pytest.mark.unit


def times_of(*us: int) -> TimesView:
    region = bytearray(region_size(1))
    times = RequestTimes(region, 0)
    for value in us:
        times.note(0, TOTAL, value * 1000)
    return TimesView(region, 1)


@pytest.mark.parametrize("us", [0, 1, 15, 16, 17, 31, 32, 33, 1000, 65_535, 65_536, 2**31 - 1])
def test_value_lies_in_its_bucket_of_bounded_relative_error(us: int) -> None:
    bucket = bucket_number(us)
    upper = bounds()[bucket]
    lower = bounds()[bucket - 1] if bucket else 0

    assert lower <= us < upper
    assert upper - lower == 1 or (upper - lower) * 16 <= lower


@pytest.mark.parametrize("us", [2**31, 2**62])
def test_value_above_all_bounds_is_in_the_last_bucket(us: int) -> None:
    assert bucket_number(us) == len(bounds()) - 1


def test_quantiles_are_within_a_thirty_second() -> None:
    values = [round(1.01**power) for power in range(1, 1500)]
    view = times_of(*values)

    count, mean, quantiles = summary(view.histogram(0, TOTAL), None, (0.5, 0.99, 1.0))

    assert count == len(values)
    assert mean == pytest.approx(sum(values) / len(values))
    exact = [values[int(len(values) * share + 0.9999999) - 1] for share in (0.5, 0.99, 1.0)]
    assert quantiles == pytest.approx(exact, rel=1 / 32)


def test_window_has_only_what_came_after_its_begin() -> None:
    region = bytearray(region_size(1))
    times = RequestTimes(region, 0)
    view = TimesView(region, 1)
    times.note(0, TOTAL, 10_000_000)
    before = view.histogram(0, TOTAL)
    times.note(0, TOTAL, 5_000)

    count, mean, quantiles = summary(view.histogram(0, TOTAL), before, (0.99,))

    assert (count, mean, quantiles) == (1, 5.0, [5.0])


def test_zeros_that_were_not_recorded_count_in_quantiles() -> None:
    region = bytearray(region_size(1))
    RequestTimes(region, 0).note(0, REMOTE, 8_000)

    found = summary(TimesView(region, 1).histogram(0, REMOTE), None, (0.5, 1.0), 4)

    assert found == (4, 2.0, [0.0, 8.0])


def test_rows_of_processes_are_added_and_survive_their_process() -> None:
    region = bytearray(region_size(2))
    RequestTimes(region, 0).note(FOLLOWER_ROW, LOCAL, 1_000)
    RequestTimes(region, 1).note(FOLLOWER_ROW, LOCAL, 2_000)
    RequestTimes(region, 1).note(FOLLOWER_ROW, LOCAL, 3_000)  # the next incarnation

    view = TimesView(region, 2)

    assert view.count(FOLLOWER_ROW, LOCAL) == 3
    assert summary(view.histogram(FOLLOWER_ROW, LOCAL))[1] == 2.0
    assert view.count(0, LOCAL) == 0


def test_values_below_powers_of_two_are_exact() -> None:
    view = times_of(3, 15, 16, 63, 64, 1_000_000)

    sum_us, below = powers(view.histogram(0, TOTAL))

    assert sum_us == 1_000_161
    assert below[:4] == [2, 3, 4, 5]  # below 16, 32, 64, 128 us
    assert below[15] == 5  # 2**19 us
    assert below[16:] == [6] * 12


def test_error_codes_are_counted_by_api() -> None:
    region = bytearray(region_size(1))
    times = RequestTimes(region, 0)
    for code in (0, 0, -1, 3, 10_000):
        times.note_error(18, code)

    view = TimesView(region, 1)

    assert view.errors(18) == [(-1, 1), (0, 2), (3, 1), (158, 1)]
    assert view.errors(17) == []


def test_nothing_outside_the_region_is_reached() -> None:
    region = bytearray(region_size(1))

    with pytest.raises(ValueError, match="no row for process 1"):
        RequestTimes(region, 1)
    with pytest.raises(ValueError, match="no rows for 2"):
        TimesView(region, 2)
    with pytest.raises(IndexError):
        RequestTimes(region, 0).note(ROW_COUNT, TOTAL, 0)
