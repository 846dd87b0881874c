"""When the controller is notified of the states written by this broker: with Kafka's delays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kbroker.hosting import isr_reports
from kbroker.hosting.isr_reports import CHECK_MS, LINGER_MS, LONGEST_MS, IsrReports
from kbroker.ipc.pending import Pending

pytestmark = pytest.mark.unit

FIRST, SECOND = ("t", 0), ("t", 1)
TICK_MS = 250


class Bench:
    def __init__(self) -> None:
        self.now = 1_000_000
        self.error: Exception | None = None
        self.sent: list[tuple[int, list[Any]]] = []
        self.reports = IsrReports(self.report, lambda: self.now)

    def report(self, keys: list[Any]) -> Pending[None]:
        done: Pending[None] = Pending()
        done.resolve(None, self.error)
        if self.error is None:
            self.sent.append((self.now, keys))
        return done

    def pass_time(self, ms: int) -> None:
        for _ in range(0, ms, TICK_MS):
            self.now += TICK_MS
            self.reports.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_changes_are_reported_together_once_there_are_no_more(bench: Bench) -> None:
    began = bench.now
    bench.reports.note([FIRST])
    bench.pass_time(3_000)
    bench.reports.note([SECOND, FIRST])
    bench.pass_time(60_000)

    ((when, keys),) = bench.sent
    assert keys == [FIRST, SECOND]
    assert LINGER_MS <= when - began - 3_000 <= LINGER_MS + CHECK_MS


def test_changes_that_never_end_are_reported_each_minute(bench: Bench) -> None:
    for _ in range(180):
        bench.reports.note([FIRST])
        bench.pass_time(1_000)

    whens = [when for when, _ in bench.sent]
    assert len(whens) == 3
    assert all(
        LONGEST_MS <= later - earlier <= LONGEST_MS + CHECK_MS for earlier, later in pairwise(whens)
    )


def test_report_that_could_not_be_written_is_written_later(bench: Bench) -> None:
    bench.error = RuntimeError("no store")
    bench.reports.note([FIRST])
    bench.pass_time(10_000)
    bench.error = None
    bench.pass_time(5_000)

    assert [keys for _, keys in bench.sent] == [[FIRST]]


def test_report_fits_into_a_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_reports, "GROUP", 2)
    keys = [("t", number) for number in range(5)]
    bench.reports.note(keys)
    bench.pass_time(10_000)

    assert [some for _, some in bench.sent] == [keys[:2], keys[2:4], keys[4:]]


def test_without_changes_nothing_is_reported(bench: Bench) -> None:
    bench.reports.note([])
    bench.pass_time(200_000)

    assert bench.sent == []
