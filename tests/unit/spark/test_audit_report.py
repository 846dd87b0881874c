"""Compared counts: complete, late, lost or duplicate records."""

from __future__ import annotations

import json

import pytest
from support.spark.load_source import MadeUp

from kbroker.spark.audit.counter import BUCKET_MS_MAX, AuditCounter
from kbroker.spark.audit.counts import Misfit, told
from kbroker.spark.audit.report import COMPLETE, MISSING, SURPLUS, WAITING, Count, compared
from kbroker.spark.direct import InlineRunner

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
    assert [record.message[:16] for record in caplog.records] == ["dropping counts:"]
    assert [json.loads(one)["count"] for one in counter.take()] == [1, 2]


def test_counter_tells_each_bucket_once_and_begins_again() -> None:
    counter = AuditCounter("producer", "shop", clock=lambda: 5.0)
    for time_ms in (0, 1, BUCKET - 1, BUCKET):
        counter.add("t", time_ms)

    found = [json.loads(one) for one in counter.take()]

    assert [(one["bucket_start"], one["count"]) for one in found] == [(0, 3), (BUCKET, 1)]
    assert len({one["guid"] for one in found}) == 2
    assert counter.take() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"bucket_end": 10**18},
        {"bucket_end": BUCKET_MS_MAX + 1},
        {"bucket_end": 0},
        {"bucket_start": 1 << 63, "bucket_end": (1 << 63) + 1},
        {"bucket_start": -BUCKET, "bucket_end": 0},
        {"count": -1},
        {"count": 10**400},
        {"time": 10**400},
        {"time": "now"},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_message_of_impossible_numbers_is_none_and_ends_no_report(wrong: dict[str, object]) -> None:
    """Anybody who may write to the audit topic could suppress all reports."""
    counter = AuditCounter("producer", "shop", clock=lambda: 5.0)
    counter.add("t", 0, 7)
    (sound,) = counter.take()
    hostile = json.dumps(json.loads(sound) | {"guid": "another"} | wrong).encode()
    source = MadeUp.of({"audit": [2]})
    source = MadeUp(source.logs, values={("audit", 0): {0: hostile, 1: sound}})

    found = told(source, {"t"}, InlineRunner(), BUCKET, None)  # type: ignore[arg-type]

    assert found == ([Count("t", 0, "producer", 7, 5_000)], 1, [])


@pytest.mark.parametrize(
    ("start", "end", "is_aligned"),
    [
        (0, 6 * BUCKET, True),
        (BUCKET // 2, BUCKET + BUCKET // 2, False),
        (BUCKET - 1, BUCKET + 1, False),
        (0, BUCKET + 1, True),
    ],
)
def test_message_of_a_bucket_that_does_not_fit_is_left_out_and_ends_no_report(
    start: int, end: int, is_aligned: bool
) -> None:
    """Even one that claims to be a repetition of a valid one."""
    counter = AuditCounter("producer", "shop", clock=lambda: 5.0)
    counter.add("t", 0, 7)
    (sound,) = counter.take()
    other = json.dumps(json.loads(sound) | {"bucket_start": start, "bucket_end": end}).encode()
    source = MadeUp.of({"audit": [3]})
    source = MadeUp(source.logs, values={("audit", 0): {0: other, 1: sound, 2: other}})

    found = told(source, {"t"}, InlineRunner(), BUCKET, None)  # type: ignore[arg-type]

    assert found == (
        [Count("t", 0, "producer", 7, 5_000)],
        0,
        [Misfit("producer", "t", start, end)],
    )
    assert found.misfits[0].is_aligned == is_aligned


def test_counter_of_buckets_that_nobody_would_read_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 1 to 86400000"):
        AuditCounter("producer", "shop", bucket_ms=BUCKET_MS_MAX + 1)
