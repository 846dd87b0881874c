"""Metrics of a consumer under Java's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.client.client_metrics import ClientMetrics, Lately, Names, Values
from kbroker.client.client_settings import Settings

if TYPE_CHECKING:
    from kbroker.client.consumer.core import Core

_NAMES = Names(
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

    def __init__(self, settings: Settings, core: Core) -> None:
        self._core = core
        super().__init__(
            settings, core.client_id, "consumer-fetch-manager-metrics", self._counts, _NAMES
        )

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
        lags = [
            part.high_watermark - part.position
            for part in parts
            if part.high_watermark is not None and part.position is not None
        ]
        return {"assigned-partitions": len(parts), "records-lag-max": max([0, *lags])}
