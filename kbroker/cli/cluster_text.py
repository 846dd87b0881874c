"""How the verbs of ``kbroker`` show brokers that are missing."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kbroker.health.cluster import MissingFact, UnreachableFact, missing_cost, missing_text


def since_text(since_ms: int | None) -> str:
    """`` since 2026-11-27 08:00:00 (5 min)``, in local time; empty if nobody knows."""
    if since_ms is None:
        return ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since_ms / 1000))
    return f" since {moment} ({age_text(time.time() - since_ms / 1000)})"


def age_text(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def missing_lines(missing: Iterable[MissingFact]) -> list[str]:
    """A line for each broker that is missing."""
    return [
        f"{missing_text(one)} is missing{since_text(one.since_ms)}: {missing_cost(one)}"
        for one in missing
    ]


def unreachable_lines(away: Iterable[UnreachableFact]) -> list[str]:
    """A line for each broker that is registered but does not answer."""
    return [f"{one.subject} ({one.address}) cannot be reached from here: {one.why}" for one in away]
