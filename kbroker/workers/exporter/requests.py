"""What requests took, by API: ``kafka.network:type=RequestMetrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kbroker._ext.shared import request_times
from kbroker._ext.shared.request_times import (
    ELECTION_ROW,
    FLUSH_ROW,
    FOLLOWER_ROW,
    ROW_COUNT,
    ZOOKEEPER_ROW,
    TimesView,
    powers,
    summary,
)
from kbroker.errors import ErrorCode
from kbroker.exposition.mbeans import (
    METER,
    NO_TAGS,
    QUANTILES,
    TIMES,
    Bean,
    Distribution,
    Sample,
    Samples,
    Tags,
)
from kbroker.metrics.window import Window
from kbroker.protocol.api import ApiKey, title

Histograms = dict[tuple[int, int], bytes]  # by row and stage

TOTAL: Final = request_times.TOTAL
# The stages in which most times are 0, and zeros are not recorded: the total has all.
SPARSE: Final = (request_times.REMOTE, request_times.THROTTLE)
# The buckets of ``histogram_lines``: powers of two of a microsecond, from 64 us to 17 s.
BUCKET_POWERS: Final = range(6, 25)
# Requests whose time waiting for others is measured apart.
WAITING: Final = (ApiKey.PRODUCE, ApiKey.FETCH, FOLLOWER_ROW)
# Requests that alert rules and dashboards ask for before there are any.
FROM_START: Final = (ApiKey.PRODUCE, ApiKey.FETCH)


def _times(name: str, help: str) -> Bean:
    return Bean("kafka.network", "RequestMetrics", name, TIMES, help)


REQUESTS = Bean(
    "kafka.network", "RequestMetrics", "RequestsPerSec", METER, "Requests, by API and its version."
)
ERRORS = Bean(
    "kafka.network",
    "RequestMetrics",
    "ErrorsPerSec",
    METER,
    "Results of requests, by API and error code; NONE is none.",
)
FLUSHES = Bean(
    "kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs", TIMES, "Time that syncs of logs take."
)
ZOOKEEPER = Bean(
    "kafka.server",
    "ZooKeeperClientMetrics",
    "ZooKeeperRequestLatencyMs",
    TIMES,
    "Time that requests to ZooKeeper take.",
)
ELECTIONS = Bean(
    "kafka.controller",
    "ControllerStats",
    "LeaderElectionRateAndTimeMs",
    TIMES,
    "Time until partitions that lost their leader have others, as often as that was needed.",
)
# Rows that are no requests of clients.
OTHERS = ((FLUSHES, FLUSH_ROW), (ZOOKEEPER, ZOOKEEPER_ROW), (ELECTIONS, ELECTION_ROW))
STAGES: dict[int, Bean] = {
    TOTAL: _times("TotalTimeMs", "Time from the receipt of a request to the end of its response."),
    request_times.QUEUE: _times("RequestQueueTimeMs", "Time until a request was begun with."),
    request_times.LOCAL: _times("LocalTimeMs", "Time for which this broker worked on a request."),
    request_times.REMOTE: _times("RemoteTimeMs", "Time waiting for other brokers, or for data."),
    request_times.THROTTLE: _times("ThrottleTimeMs", "Throttle time of quotas in a response."),
    request_times.RESPONSE_QUEUE: _times(
        "ResponseQueueTimeMs", "Time until a response was begun to be sent."
    ),
    request_times.SEND: _times("ResponseSendTimeMs", "Time for which a response was sent."),
}


class RequestFigures:
    """Reads the histograms of all processes."""

    def __init__(
        self, view: TimesView, now_ns: Callable[[], int], sample_count: int, sample_ms: int
    ) -> None:
        self._view = view
        self._now_ns = now_ns
        self._tags = {row: Tags(("request", name)) for row, name in row_names().items()}
        # Until there is a later sample, quantiles are those of all requests so far.
        self._window: Window[Histograms] = Window(
            self._take, now_ns(), sample_count, sample_ms, first={}
        )

    def tick(self) -> None:
        self._window.tick(self._now_ns())

    def _take(self) -> Histograms:
        return {
            (row, stage): self._view.histogram(row, stage)
            for row in range(ROW_COUNT)
            if self._view.count(row, TOTAL)
            for stage in STAGES
        }

    def samples(self) -> Iterator[Samples]:
        """All MBeans that there are figures for."""
        rows = [row for row in self._tags if row in FROM_START or self._view.count(row, TOTAL)]
        yield REQUESTS, list(self._by_version(rows))
        yield ERRORS, list(self._errors())
        for stage, bean in STAGES.items():
            yield bean, self._stage(stage, rows)
        for bean, row in OTHERS:
            total = self._view.count(row, TOTAL)
            if total:
                before = self._window.oldest.value.get((row, TOTAL))
                totals = summary(self._view.histogram(row, TOTAL), before, QUANTILES)
                yield bean, [(NO_TAGS, self._lately(total, totals))]

    def _lately(self, total: int, totals: tuple[int, float, list[float]]) -> Distribution:
        """found: of ``summary``, since the oldest sample."""
        count, mean_us, quantiles_us = totals
        then = self._window.oldest
        # The first sample is empty, and was not taken when the counts were 0.
        rate = count * 1e9 / max(self._now_ns() - then.at_ns, 1) if then.value else None
        return Distribution(total, mean_us / 1000, [value / 1000 for value in quantiles_us], rate)

    def histogram_lines(self) -> Iterator[str]:
        """The total times as a histogram of Prometheus, since the start."""
        name = "kbroker_request_duration_seconds"
        lines = [f"# HELP {name} Time from the receipt of a request to the end of its response."]
        lines.append(f"# TYPE {name} histogram")
        for row, tags in self._tags.items():
            if not self._view.count(row, TOTAL):
                continue
            sum_us, below = powers(self._view.histogram(row, TOTAL))
            for power in BUCKET_POWERS:
                le = (1 << power) / 1e6
                lines.append(f'{name}_bucket{{{tags.text},le="{le}"}} {below[power - 4]}')
            lines.append(f'{name}_bucket{{{tags.text},le="+Inf"}} {below[-1]}')
            lines.append(f"{name}_sum{{{tags.text}}} {sum_us / 1e6}")
            lines.append(f"{name}_count{{{tags.text}}} {below[-1]}")
        yield "\n".join([*lines, ""])

    def _by_version(self, rows: list[int]) -> Iterator[Sample]:
        for row in rows:
            pairs = self._tags[row].pairs
            for version, count in self._view.versions(row):
                yield Tags(*pairs, ("version", str(version))), count

    def _errors(self) -> Iterator[Sample]:
        for row, tags in self._tags.items():
            for code, count in self._view.errors(row):
                yield Tags(*tags.pairs, ("error", error_name(code))), count

    def _stage(self, stage: int, rows: list[int]) -> Iterator[Sample]:
        then = self._window.oldest.value
        for row in rows:
            if stage == request_times.REMOTE and row not in WAITING:
                continue
            total = self._view.count(row, TOTAL)
            before = then.get((row, stage))
            count = -1
            if stage in SPARSE:
                all_before = then.get((row, TOTAL))
                count = total - (summary(all_before)[0] if all_before is not None else 0)
            totals = summary(self._view.histogram(row, stage), before, QUANTILES, count)
            ever = total if stage in SPARSE else self._view.count(row, stage)
            yield self._tags[row], self._lately(ever, totals)


def row_names() -> dict[int, str]:
    """The ``request`` of each row, as in Kafka: fetches of consumers and followers are apart."""
    names = {int(key): title(key) for key in ApiKey if key < FOLLOWER_ROW - 1}
    names[int(ApiKey.FETCH)] = "FetchConsumer"
    names[FOLLOWER_ROW] = "FetchFollower"
    return names


def error_name(code: int) -> str:
    """``NONE``, or the name of an error code; its number if there is no such error."""
    if code == 0:
        return "NONE"
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
