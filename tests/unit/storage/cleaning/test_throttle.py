"""The limit of bytes per second."""

from __future__ import annotations

import pytest

from kbroker.storage.cleaning.throttle import AHEAD_S, Throttle

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
def test_throttle_without_a_rate_continues_slowly(rate):
    time = Time()
    Throttle(rate, time.pause, lambda: time.now).take(5)

    assert time.now == 5


def test_throttle_ends_a_sleep_when_the_rate_changes_or_the_work_is_over():
    time = Time()
    throttle = Throttle(1.0, lambda s: (time.pause(s), throttle.set_rate(1e9)), lambda: time.now)
    throttle.take(1000)
    assert time.now <= 1

    slow = Throttle(1.0, time.pause, lambda: time.now)
    slow.take(1000, is_over=lambda: time.now > 5)
    assert time.now < 7
