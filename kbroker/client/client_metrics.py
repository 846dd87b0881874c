"""Metrics of clients under Java's names, from counters."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.client.client_settings import Settings

logger = logging.getLogger(__name__)


class Metric(NamedTuple):
    """What a reporter is told of. value: a call that returns the present one."""

    name: str
    group: str
    tags: dict[str, str]
    value: Any


class ClientMetrics:
    """Rates and means are of the last samples: ``metrics.num.samples`` of the length
    ``metrics.sample.window.ms``.

    counts: the present counters. rates: (name, counter). means: (name, what is counted, of what it
    is the mean, factor). A sample begins with the first call of ``values`` after the last one's
    window is over.
    """

    def __init__(
        self,
        settings: Settings,
        client_id: str,
        group: str,
        counts: Callable[[], dict[str, int]],
        rates: Iterable[tuple[str, str]],
        means: Iterable[tuple[str, str, str, float]],
    ) -> None:
        self._take = counts
        self._rates = tuple(rates)
        self._means = tuple(means)
        self._window_s: float = settings["metrics.sample.window.ms"] / 1000
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, dict[str, int]]] = deque(
            maxlen=settings["metrics.num.samples"]
        )
        self._samples.append((time.monotonic(), counts()))
        self._reporters = settings["metric.reporters"]
        tags = {"client-id": client_id}
        made = [
            Metric(name, group, tags, lambda name=name: self.values()[name])
            for name in self.values()
        ]
        for reporter in self._reporters:
            self._tell(reporter, "init", made)
            for metric in made:
                self._tell(reporter, "metric_change", metric)

    def values(self) -> dict[str, float]:
        """The present values."""
        now, counts = time.monotonic(), self._take()
        with self._lock:
            began, before = self._samples[0]
            if now - self._samples[-1][0] >= self._window_s:
                self._samples.append((now, counts))
        seconds = max(now - began, 1e-3)
        since = {name: counts[name] - before[name] for name in counts}
        found: dict[str, float] = {}
        for name, counter in self._rates:
            found[f"{name}-total"] = counts[counter]
            found[f"{name}-rate"] = since[counter] / seconds
        for name, counted, of, factor in self._means:
            found[name] = factor * since[counted] / since[of] if since[of] else 0.0
        found.update(self._present(since, seconds))
        return found

    def _present(self, since: dict[str, int], seconds: float) -> dict[str, float]:
        """Values that are neither."""
        return {}

    def close(self) -> None:
        """Tell the reporters that there will be no more."""
        for reporter in self._reporters:
            if hasattr(reporter, "close"):
                self._tell(reporter, "close")

    @staticmethod
    def _tell(reporter: Any, what: str, *arguments: Any) -> None:
        try:
            getattr(reporter, what)(*arguments)
        except Exception:
            logger.exception("%s of metric reporter %r raised an error", what, reporter)
