"""Counts compared: what is complete, late, lost or there twice."""

from __future__ import annotations

import json

import pytest

from kbroker.spark.audit.counter import AuditCounter
from kbroker.spark.audit.report import COMPLETE, MISSING, SURPLUS, WAITING, Count, compared

pytestmark = pytest.mark.unit

BUCKET = 600_000


def states(counts: list[Count], *, now_ms: int, threshold: float = 1.0) -> dict[int, str]:
    found = compared(
        counts,
        references={"t": "producer"},
        tiers={"producer": {"t"}, "load": {"t"}},
        bucket_ms=BUCKET,
        threshold=threshold,
        deadline_ms=60_000,
        now_ms=now_ms,
    )
    return {one.bucket_ms: one.state for one in found}


@pytest.mark.parametrize(
    ("loaded", "after_ms", "threshold", "state"),
    [
        (100, 0, 1.0, COMPLETE),
        (99, 59_999, 1.0, WAITING),
        (99, 60_000, 1.0, MISSING),
        (99, 60_000, 0.99, COMPLETE),
        (101, 0, 1.0, SURPLUS),
        (0, 60_000, 1.0, MISSING),
    ],
)
def test_bucket_has_the_state_of_its_counts_and_its_time(
    loaded: int, after_ms: int, threshold: float, state: str
) -> None:
    counts = [Count("t", 0, "producer", 60, 1), Count("t", 0, "producer", 40, 2)]
    counts += [Count("t", 0, "load", loaded, 3)] if loaded else []

    assert states(counts, now_ms=BUCKET + after_ms, threshold=threshold) == {0: state}


def test_lag_is_from_the_end_of_the_bucket_to_the_last_word() -> None:
    counts = [Count("t", 0, "producer", 1, BUCKET), Count("t", 0, "load", 1, BUCKET + 7_000)]

    (line,) = compared(
        counts,
        references={"t": "producer"},
        tiers={"load": {"t"}},
        bucket_ms=BUCKET,
        threshold=1.0,
        deadline_ms=0,
        now_ms=BUCKET,
    )

    assert (line.lag_ms, line.completeness) == (7_000, 1.0)


def test_counter_that_is_full_sends_what_it_has() -> None:
    sent: list[bytes] = []
    counter = AuditCounter("producer", "shop", send=sent.extend, counts_max=3)

    for bucket in range(10):
        counter.add("t", bucket * BUCKET, 2)

    assert [json.loads(one)["bucket_start"] // BUCKET for one in sent] == list(range(9))
    assert [json.loads(one)["count"] for one in counter.take()] == [2]
    assert counter.dropped == 0


def test_counter_that_nobody_takes_from_drops_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = AuditCounter("producer", "shop", counts_max=2)

    for bucket in (0, 1, 2, 3, 1):
        counter.add("t", bucket * BUCKET)

    assert counter.dropped == 2
    assert [record.message[:19] for record in caplog.records] == ["counts are dropped:"]
    assert [json.loads(one)["count"] for one in counter.take()] == [1, 2]


def test_counter_tells_each_bucket_once_and_begins_anew() -> None:
    counter = AuditCounter("producer", "shop", clock=lambda: 5.0)
    for time_ms in (0, 1, BUCKET - 1, BUCKET):
        counter.add("t", time_ms)

    found = [json.loads(one) for one in counter.take()]

    assert [(one["bucket_start"], one["count"]) for one in found] == [(0, 3), (BUCKET, 1)]
    assert len({one["guid"] for one in found}) == 2
    assert counter.take() == []
