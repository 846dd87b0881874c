"""Compares the counts of tiers: completeness and lag by topic and bucket. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

COMPLETE, WAITING, MISSING, SURPLUS = "complete", "waiting", "missing", "surplus"


@dataclass(frozen=True, slots=True)
class Count:
    """A tier's record count for a bucket; seen_ms: when the last of them was reported."""

    topic: str
    bucket_ms: int
    tier: str
    count: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Line:
    """One tier's part of one bucket.

    expected: what the tier ``reference`` has. completeness: count / expected, None if nothing is
        expected. lag_ms: from the end of the bucket to the last word of it.
    """

    topic: str
    bucket_ms: int
    tier: str
    count: int
    expected: int
    completeness: float | None
    lag_ms: int | None
    state: str
    reference: str

    @property
    def is_alert(self) -> bool:
        return self.state == MISSING


def summed(counts: Iterable[Count]) -> dict[tuple[str, int, str], Count]:
    """Add up counts of the same topic, bucket and tier, with their latest time."""
    sums: dict[tuple[str, int, str], Count] = {}
    for one in counts:
        key = (one.topic, one.bucket_ms, one.tier)
        old = sums.get(key)
        if old is not None:
            one = Count(*key, old.count + one.count, max(old.seen_ms, one.seen_ms))
        sums[key] = one
    return sums


def compared(
    counts: Iterable[Count],
    *,
    references: Mapping[str, str],
    tiers: Mapping[str, Container[str]],
    bucket_ms: int,
    threshold: float,
    deadline_ms: int,
    now_ms: int,
) -> Iterator[Line]:
    """A line for each tier of a topic in each bucket that any tier has seen, in order.

    references: by topic, the tier that the others are held against. tiers: and the topics that each
    of them is about, also where it has counted nothing.

    MISSING: below ``threshold`` although the bucket ended ``deadline_ms`` ago; WAITING: below it,
    and there is time. SURPLUS: more than the reference tier has (records that came twice, or a
    reference that lost counts).
    """
    sums = summed(counts)
    for topic, bucket in sorted({(topic, bucket) for topic, bucket, _ in sums}):
        reference = references[topic]
        base = sums.get((topic, bucket, reference))
        expected = base.count if base else 0
        for tier, topics in tiers.items():
            if tier == reference or topic not in topics:
                continue
            one = sums.get((topic, bucket, tier))
            count = one.count if one else 0
            completeness = count / expected if expected else None
            end = bucket + bucket_ms
            if count > expected:
                state = SURPLUS
            elif completeness is None or completeness >= threshold:
                state = COMPLETE
            else:
                state = MISSING if now_ms >= end + deadline_ms else WAITING
            yield Line(
                topic,
                bucket,
                tier,
                count,
                expected,
                completeness,
                max(0, one.seen_ms - end) if one else None,
                state,
                reference,
            )
