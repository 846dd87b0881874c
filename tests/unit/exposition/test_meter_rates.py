"""Rates of meters, from what is counted between one look and the next."""

from __future__ import annotations

import os
import time

import pytest

from kbroker.exposition.meter_rates import METERS_MAX, MeterRates, started_s

pytestmark = pytest.mark.unit
ALL = ("MeanRate", "OneMinuteRate", "FiveMinuteRate", "FifteenMinuteRate")


def looked(rates: MeterRates, now_s: float, count: int, name: str = "m") -> list[float]:
    rates.look(now_s)
    found = rates.attributes(name, count)
    return [found[key] for key in ALL]


def test_first_look_has_the_rate_since_the_start() -> None:
    assert looked(MeterRates(100.0), 150.0, 500) == [10.0] * 4


def test_rates_of_late_follow_what_is_counted() -> None:
    """The shorter the sooner; the mean is that of all the time."""
    rates = MeterRates(0.0)
    looked(rates, 100.0, 1000)
    mean, one, five, fifteen = looked(rates, 160.0, 1000 + 60 * 100)
    assert mean == pytest.approx(7000 / 160)
    assert one == pytest.approx(10 + 90 * (1 - 2.718281828**-1))
    assert 10 < fifteen < five < one < 100
    for at in range(160, 2000, 10):
        found = looked(rates, at + 10.0, 7000 + (at - 150) * 100)
    assert found[1] == pytest.approx(100, rel=1e-3)


def test_looks_at_the_same_time_change_nothing() -> None:
    rates = MeterRates(0.0)
    looked(rates, 10.0, 100)
    before = looked(rates, 20.0, 300)
    assert looked(rates, 20.1, 301)[1:] == before[1:]


def test_meters_that_are_gone_or_begin_again_are_not_taken_for_others() -> None:
    rates = MeterRates(0.0)
    looked(rates, 10.0, 1000)
    assert looked(rates, 20.0, 5)[1] == 0.25, "a topic that was recreated"
    rates.look(30.0)
    rates.look(40.0)
    assert rates.attributes("m", 40)["OneMinuteRate"] == 1.0


def test_number_of_meters_is_bounded() -> None:
    rates = MeterRates(0.0)
    rates.look(10.0)
    for number in range(METERS_MAX + 10):
        rates.attributes(f"m-{number}", 10)
    assert len(rates._known) == METERS_MAX


def test_start_of_a_process_is_known() -> None:
    now = time.monotonic()
    assert 0 <= now - started_s(os.getpid(), now) < 86_400
    assert started_s(1 << 30, now) == now
