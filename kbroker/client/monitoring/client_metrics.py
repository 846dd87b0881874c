"""Metrics of clients under Java's names, from counters."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.client.settings.client_settings import ClientSettings

logger = logging.getLogger("kbroker.client.client_metrics")

# What is counted, since the start or as the largest since it was taken last.
Counts = dict[str, int]
Values = dict[str, float]


class Metric(NamedTuple):
    """What a reporter is told of. value: a call that returns the present one."""

    name: str
    group: str
    tags: dict[str, str]
    value: Any


class MetricGroup(NamedTuple):
    """Present values under the name of Java's group. tags: besides the client's id."""

    name: str
    tags: tuple[tuple[str, str], ...]
    values: Values


class MetricNames(NamedTuple):
    """How the counts of a group of metrics become values. rates: (name, counter). means: (name,
    what is counted, of what it is the mean, factor). maxima: (name, what the largest of is known,
    factor).
    """

    rates: tuple[tuple[str, str], ...]
    means: tuple[tuple[str, str, str, float], ...] = ()
    maxima: tuple[tuple[str, str, float], ...] = ()


class Lately(NamedTuple):
    """What was counted since the oldest sample began."""

    seconds: float
    counts: Counts  # since the start
    since: Counts
    largest: Counts

    def values(self, names: MetricNames) -> Values:
        """Rates, also since the start, means and maxima."""
        values: Values = {}
        for name, counter in names.rates:
            values[f"{name}-total"] = self.counts[counter]
            values[f"{name}-rate"] = self.since[counter] / self.seconds
        for name, counted, of, factor in names.means:
            of_them = self.since[of]
            values[name] = factor * self.since[counted] / of_them if of_them else 0.0
        for name, of, factor in names.maxima:
            values[name] = factor * self.largest.get(of, 0)
        return values


class Samples:
    """``metrics.num.samples`` of the length ``metrics.sample.window.ms``. A sample begins with the
    first call of ``lately`` after the last one's window is over.

    take: the present counts, by what is counted apart. take_largest: what was the largest since it
    was taken last; with True it is taken.
    """

    def __init__(
        self,
        settings: ClientSettings,
        take: Callable[[], dict[Any, Counts]],
        take_largest: Callable[[bool], dict[Any, Counts]] | None = None,
    ) -> None:
        self._take = take
        self._take_largest = take_largest or (lambda taken: {})
        self._window_s: float = settings["metrics.sample.window.ms"] / 1000
        self._lock = threading.Lock()
        most: int = settings["metrics.num.samples"]
        self._begun: deque[tuple[float, dict[Any, Counts]]] = deque(maxlen=most)
        # Of the samples that have ended.
        self._largest: deque[dict[Any, Counts]] = deque(maxlen=most - 1)
        self._take_largest(True)
        self._begun.append((time.monotonic(), take()))

    def lately(self) -> dict[Any, Lately]:
        """Of everything that is counted apart."""
        with self._lock:
            now, counts = time.monotonic(), self._take()
            ended = now - self._begun[-1][0] >= self._window_s
            largest = self._take_largest(ended)
            began, before = self._begun[0]
            all_largest = [*self._largest, largest]
            if ended:
                self._begun.append((now, counts))
                self._largest.append(largest)
        seconds = max(now - began, 1e-3)
        return {
            key: Lately(
                seconds,
                row,
                _less(row, before.get(key, {})),
                _largest([some[key] for some in all_largest if key in some]),
            )
            for key, row in counts.items()
        }


def _less(now: Counts, before: Counts) -> Counts:
    return {name: count - before.get(name, 0) for name, count in now.items()}


def _largest(rows: list[Counts]) -> Counts:
    return {name: max(row[name] for row in rows) for name in rows[0]} if rows else {}


class ClientMetrics:
    """Rates, means and maxima are of the last samples. counts, largest: as of ``Samples``."""

    def __init__(
        self,
        settings: ClientSettings,
        client_id: str,
        group: str,
        counts: Callable[[], Counts],
        names: MetricNames,
        largest: Callable[[bool], Counts] | None = None,
    ) -> None:
        self._names = names
        self._samples = Samples(
            settings,
            lambda: {group: counts()},
            None if largest is None else lambda taken: {group: largest(taken)},
        )
        self._group = group
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

    def values(self) -> Values:
        """The present values."""
        lately = self._samples.lately()[self._group]
        return lately.values(self._names) | self._present(lately)

    def groups(self) -> Iterator[MetricGroup]:
        """All metrics, those without tags first. Any thread."""
        yield MetricGroup(self._group, (), self.values())

    def _present(self, lately: Lately) -> Values:
        """Values that are nothing of these."""
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
