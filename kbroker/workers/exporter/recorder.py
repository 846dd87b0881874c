"""What the history is made of: figures of shared memory, one step after the other.

Those of the broker as a whole need nobody and no names, so they are there from its start. Those of
topics, groups and clients begin with the first scrape, or the first page of the console.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kbroker._ext.shared.request_times import TOTAL, TimesView, summary
from kbroker.health.broker import DirectoryFact
from kbroker.metrics import catalog
from kbroker.metrics.catalog import MetricRow
from kbroker.metrics.measured import (
    CLIENT_IN,
    CLIENT_OUT,
    CONNECTIONS,
    FREE,
    LAG,
    RATES,
    REQUESTS,
    TIMES,
    TOPIC_IN,
    TOPIC_OUT,
)
from kbroker.metrics.slots import Counters
from kbroker.workers.exporter.history import (
    CLIENTS_MAX,
    GROUPS_MAX,
    TOPICS_MAX,
    Key,
    MetricHistory,
    busiest,
)

if TYPE_CHECKING:
    from kbroker.workers.exporter.partitions import Seen

# Bytes in and out, by name.
Totals = dict[str, tuple[int, int]]
# Of ``Seen.figures``; that module is not needed before somebody asks.
BYTES_IN, BYTES_OUT = 1, 7
P99 = (0.99,)


class Recorder:
    """rows: the counters of each process. times: of requests. directories: of the broker. lags: of
    groups, as far as they are known. clients: of each row the client id, bytes in, out.
    """

    def __init__(
        self,
        history: MetricHistory,
        rows: Sequence[Counters],
        times: TimesView,
        directories: Callable[[], Iterable[DirectoryFact]],
        lags: Callable[[], Mapping[str, int]],
        clients: Callable[[], Iterable[tuple[str, int, int]]],
    ) -> None:
        self.history = history
        self._rows = rows
        self._times = times
        self._directories = directories
        self._before: dict[str, int] = {}
        self._histograms: dict[str, bytes] = {}
        self._topics, self._clients = _Rates(), _Rates()
        self._at_ns = 0
        self._lags = lags
        self._read_clients = clients

    def step(self, seen: Callable[[], Iterable[Seen]] | None, now_ms: int) -> None:
        """Add a point. seen: replicas, if anybody follows the image."""
        now_ns = time.monotonic_ns()
        values: dict[Key, float] = {}
        passed_s = (now_ns - self._at_ns) / 1e9
        is_first, self._at_ns = not self._at_ns, now_ns
        for name, total in self._totals().items():
            if not is_first:
                values[name, ""] = max(0.0, (total - self._before[name]) / passed_s)
            self._before[name] = total
        values[CONNECTIONS, ""] = self._sum(catalog.CONNECTIONS_OPEN)
        for name, row in TIMES.items():
            histogram = self._times.histogram(row, TOTAL)
            count, _, quantiles = summary(histogram, self._histograms.get(name), P99)
            if count and not is_first:
                values[name, ""] = quantiles[0] / 1000
            self._histograms[name] = histogram
        for one in self._directories():
            if one.free_bytes is not None:
                values[FREE, one.path] = one.free_bytes
        left_out = 0
        if seen is not None:
            left_out = self._add_topics(values, seen, now_ns) + self._add_clients(values, now_ns)
        left_out += self._add_groups(values)
        self.history.add(values, now_ms, left_out)

    def _totals(self) -> dict[str, int]:
        totals = {
            name: sum(self._sum(metric) for metric in metrics) for name, metrics in RATES.items()
        }
        totals[REQUESTS] = sum(
            counters.get(catalog.REQUESTS, key)
            for counters in self._rows
            for key in range(catalog.API_WIDTH)
        )
        return totals

    def _sum(self, metric: MetricRow) -> int:
        return sum(counters.get(metric) for counters in self._rows)

    def _add_topics(
        self, values: dict[Key, float], seen: Callable[[], Iterable[Seen]], now_ns: int
    ) -> int:
        """The busiest ones; returns how many others there are."""
        totals: Totals = {}
        names: dict[str, None] = {}
        for one in seen():
            name, figures = one.replica.topic, one.figures
            names[name] = None
            if figures[BYTES_IN] or figures[BYTES_OUT]:
                taken, given = totals.get(name, (0, 0))
                totals[name] = (taken + figures[BYTES_IN], given + figures[BYTES_OUT])
        rates = self._topics.since_before(totals, now_ns)
        if rates is None:
            return 0
        kept = busiest({name: sum(both) for name, both in rates.items()}, TOPICS_MAX)
        kept.update(islice((name for name in names if name not in rates), TOPICS_MAX - len(kept)))
        for name in kept:
            values[TOPIC_IN, name], values[TOPIC_OUT, name] = rates.get(name, (0.0, 0.0))
        return len(names) - len(kept)

    def _add_clients(self, values: dict[Key, float], now_ns: int) -> int:
        """The busiest ones, by client id; returns how many others there are."""
        totals: Totals = {}
        for name, more_in, more_out in self._read_clients():
            taken, given = totals.get(name, (0, 0))
            totals[name] = (taken + more_in, given + more_out)
        rates = self._clients.since_before(totals, now_ns)
        if rates is None:
            return 0
        kept = busiest({name: sum(both) for name, both in rates.items()}, CLIENTS_MAX)
        for name in kept:
            values[CLIENT_IN, name], values[CLIENT_OUT, name] = rates[name]
        return len(rates) - len(kept)

    def _add_groups(self, values: dict[Key, float]) -> int:
        """Those with the largest lag; returns how many others there are."""
        lags = self._lags()
        kept = busiest(lags, GROUPS_MAX)
        for name in kept:
            values[LAG, name] = lags[name]
        return len(lags) - len(kept)


class _Rates:
    """Bytes a second, from two looks at the totals. Of what nothing has passed through there is
    nothing.
    """

    def __init__(self) -> None:
        self._before: Totals | None = None
        self._at_ns = 0

    def since_before(self, totals: Totals, now_ns: int) -> dict[str, tuple[float, float]] | None:
        """None at the first look. What was not there before counts from nothing."""
        before, passed_s = self._before, (now_ns - self._at_ns) / 1e9
        self._before, self._at_ns = totals, now_ns
        if before is None:
            return None
        rates = {}
        for name, (taken, given) in totals.items():
            then = before.get(name, (0, 0))
            rates[name] = max(0, taken - then[0]) / passed_s, max(0, given - then[1]) / passed_s
        return rates
