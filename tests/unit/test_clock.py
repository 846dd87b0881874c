"""When the wall clock may be used for deletions."""

from __future__ import annotations

import pytest

from kbroker.clock import CLOCK_JUMP_MS, CONFIRMED_MS, ClockGuard, ManualClock

pytestmark = pytest.mark.unit

INTERVAL_MS = 60_000
YEAR_MS = 365 * 86_400_000


def guard_of(clock: ManualClock, **options: bool) -> ClockGuard:
    return ClockGuard(clock.now_ms, clock.monotonic_ms, **options)


def test_guard_trusts_a_start_only_after_an_interval() -> None:
    clock = ManualClock()
    guard = guard_of(clock)
    assert not guard.is_trusted(INTERVAL_MS)
    clock.advance(INTERVAL_MS - 1)
    assert not guard.is_trusted(INTERVAL_MS)
    clock.advance(1)
    assert guard.is_trusted(INTERVAL_MS)
    assert guard_of(clock, trust_start=True).is_trusted(CONFIRMED_MS)


@pytest.mark.parametrize("jump", [CLOCK_JUMP_MS + 1, -CLOCK_JUMP_MS - 1, 10 * YEAR_MS, -YEAR_MS])
def test_guard_waits_an_interval_after_each_jump(jump: int) -> None:
    clock = ManualClock(40 * YEAR_MS)
    guard = guard_of(clock, trust_start=True)
    for _ in range(2):
        clock.jump(jump)
        jump = -jump
        clock.advance(INTERVAL_MS)
        assert not guard.is_trusted(INTERVAL_MS)
    clock.advance(INTERVAL_MS)
    assert guard.is_trusted(INTERVAL_MS)


def test_guard_does_not_mind_a_small_step_nor_a_long_interval() -> None:
    clock = ManualClock()
    guard = guard_of(clock, trust_start=True)
    clock.jump(CLOCK_JUMP_MS)
    assert guard.is_trusted(INTERVAL_MS)
    clock.jump(2 * CLOCK_JUMP_MS)
    assert not guard.is_trusted(YEAR_MS)
    clock.advance(CONFIRMED_MS)
    assert guard.is_trusted(YEAR_MS)
