"""What figures were some time ago, so that what happened lately can be told from totals.

As Kafka's metrics library, a window has ``metrics.num.samples`` samples of
``metrics.sample.window.ms``: what is told of it covers between one and all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Sample(NamedTuple, Generic[T]):
    at_ns: int
    value: T


class Window(Generic[T]):
    """take: the present totals. first: the first sample; taken at once if it is None."""

    def __init__(
        self,
        take: Callable[[], T],
        now_ns: int,
        sample_count: int,
        sample_ms: int,
        first: T | None = None,
    ) -> None:
        self._take = take
        self._sample_ns = sample_ms * 1_000_000
        self._samples: deque[Sample[T]] = deque(
            [Sample(now_ns, take() if first is None else first)], maxlen=sample_count
        )

    def tick(self, now_ns: int) -> None:
        """Begin another sample if it is time for one; the oldest is forgotten."""
        if now_ns - self._samples[-1].at_ns >= self._sample_ns:
            self._samples.append(Sample(now_ns, self._take()))

    @property
    def oldest(self) -> Sample[T]:
        """What the figures of the window are compared with."""
        return self._samples[0]
