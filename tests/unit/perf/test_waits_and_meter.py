"""Waiting, and the CPU time that passes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perf import process_tree, waiting
from perf.waiting import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second passes in each second of sleep, and in nothing else."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    yield


def test_time_is_that_when_it_is_so() -> None:
    answers = iter([False, False, True])

    assert wait_until(lambda: next(answers), "three looks", pause_s=0.5) == 101.0


def test_what_never_is_so_is_said_with_the_last_state() -> None:
    seen: list[int] = []

    with pytest.raises(TimeoutError, match=r"^not within 2 s: 3 looks$"):
        wait_until(lambda: seen.append(0), lambda: f"{len(seen)} looks", 2.0, 1.5)


@pytest.mark.parametrize(("is_costly", "second"), [(True, 106.0), (False, 103.5)])
def test_costly_look_is_followed_by_as_long_a_pause(is_costly: bool, second: float) -> None:
    began: list[float] = []

    def look() -> bool:
        began.append(waiting.time.monotonic())
        waiting.time.sleep(3.0)
        return len(began) == 2

    wait_until(look, "two looks", pause_s=0.5, is_costly=is_costly)

    assert began == [100.0, second]


def test_meter_counts_from_the_first_mark_to_the_last() -> None:
    spent = iter([5.0, 6.0, 8.0])
    used = process_tree.Meter(lambda: next(spent))

    for _ in range(3):
        used.mark()
        waiting.time.sleep(2.0)

    assert (used.cpu_s, used.seconds, used.percent) == (3.0, 4.0, 75.0)
