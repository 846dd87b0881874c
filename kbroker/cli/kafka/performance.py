"""What the performance tests share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from kbroker.cli.kafka.running import ToolFailed

# It sleeps when it is that far ahead: sleeping for less costs more than it is worth.
_AHEAD_S = 0.002


class Pace:
    """No more than so many a second; negative: as many as possible, 0: none after the first."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.monotonic()

    def wait(self, count: int) -> None:
        """Sleep if this many since the beginning are too many."""
        if self._rate < 0:
            return
        while self._rate == 0:
            time.sleep(1.0)
        ahead = count / self._rate - (time.monotonic() - self._began)
        if ahead > _AHEAD_S:
            time.sleep(ahead)


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` words. Raises ToolFailed for others."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise ToolFailed(f"Invalid property: {text}")
        pairs[key] = value
    return pairs


def say_deprecated(used: bool, old: str, new: str) -> None:
    """On stdout, as Kafka's tools do."""
    if used:
        print(
            f"Option --{old} has been deprecated and will be removed in a future version. Use "
            f"--{new} instead."
        )


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Names and values, in columns."""
    width = max(map(len, metrics), default=0)
    print(f"\n{'Metric Name':<{width}}   Value")
    for name in sorted(metrics):
        print(f"{name:<{width}} : {metrics[name]:.3f}")
