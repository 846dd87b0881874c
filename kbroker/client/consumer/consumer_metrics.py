"""Metrics of a consumer under Java's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.client.monitoring.client_metrics import (
    ClientMetrics,
    Lately,
    MetricGroup,
    MetricNames,
    Values,
)
from kbroker.client.settings.client_settings import ClientSettings

if TYPE_CHECKING:
    from kbroker.client.consumer.core import Core
    from kbroker.client.consumer.partitions import ReadPartition

# Groups of Java's, and how the names of the second begin.
FETCHES, COORDINATOR = "consumer-fetch-manager-metrics", "consumer-coordinator-metrics"
_OF_COORDINATOR = ("commit-", "heartbeat-", "rebalance-", "assigned-")
_NAMES = MetricNames(
    rates=(
        ("records-consumed", "fetched_records"),
        ("bytes-consumed", "fetched_bytes"),
        ("fetch", "fetches"),
        ("commit", "commits"),
        ("heartbeat", "heartbeats"),
        ("rebalance", "rebalances"),
    ),
    means=(
        ("fetch-latency-avg", "latency_us", "fetches", 1e-3),
        ("fetch-size-avg", "fetched_bytes", "fetches", 1.0),
        ("records-per-request-avg", "fetched_records", "fetches", 1.0),
        ("fetch-throttle-time-avg", "throttled_ms", "fetches", 1.0),
        ("commit-latency-avg", "commit_us", "commits", 1e-3),
    ),
)


class ConsumerMetrics(ClientMetrics):
    """Counts of the consumer's parts, and what they are at now."""

    def __init__(self, settings: ClientSettings, core: Core) -> None:
        self._core = core
        super().__init__(settings, core.client_id, FETCHES, self._counts, _NAMES)

    def _counts(self) -> dict[str, int]:
        core = self._core
        counts = dict(core.fetcher.counts)
        commits = core.commits.counts if core.commits is not None else {}
        counts["commits"] = commits.get("commits", 0)
        counts["commit_us"] = commits.get("latency_us", 0)
        membership = core.membership
        counts["heartbeats"] = membership.heartbeats if membership is not None else 0
        counts["rebalances"] = membership.rebalances if membership is not None else 0
        return counts

    def _present(self, lately: Lately) -> Values:
        parts = list(self._core.fetcher.parts.values())
        lags = [lag for lag in map(_lag, parts) if lag is not None]
        return {"assigned-partitions": len(parts), "records-lag-max": max([0, *lags])}

    def groups(self) -> Iterator[MetricGroup]:
        values = self.values()
        yield MetricGroup(
            FETCHES, (), {name: values[name] for name in values if _is_of_fetches(name)}
        )
        yield MetricGroup(
            COORDINATOR, (), {name: values[name] for name in values if not _is_of_fetches(name)}
        )
        for part in list(self._core.fetcher.parts.values()):
            lag = _lag(part)
            if lag is not None:
                topic, number = part.key
                tags = ("topic", topic), ("partition", str(number))
                yield MetricGroup(FETCHES, tags, {"records-lag": lag})


def _is_of_fetches(name: str) -> bool:
    return not name.startswith(_OF_COORDINATOR)


def _lag(part: ReadPartition) -> int | None:
    """None: nothing is known yet. The thread that polls may change it meanwhile."""
    end, position = part.high_watermark, part.position
    return None if end is None or position is None else max(0, end - position)
