"""The limit of bytes per second."""

from __future__ import annotations

import pytest

from kbroker.storage.throttle import AHEAD_S, Throttle

pytestmark = pytest.mark.unit


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("piece", [10, 1000, 5000])
def test_throttle_keeps_the_rate(piece):
    time = Time()
    throttle = Throttle(1000, time.pause, lambda: time.now)
    for _ in range(20_000 // piece):
        throttle.take(piece)

    assert time.now == pytest.approx(20, abs=AHEAD_S + piece / 1000)


def test_throttle_does_not_save_up_idle_time():
    time = Time()
    throttle = Throttle(1000, time.pause, lambda: time.now)
    time.now = 100
    throttle.take(1000)

    assert time.now == pytest.approx(101, abs=AHEAD_S)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_throttle_without_a_rate_goes_on_slowly(rate):
    time = Time()
    Throttle(rate, time.pause, lambda: time.now).take(5)

    assert time.now == 5
