"""What a client pushes of its metrics (KIP-714): names, totals and sizes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import NamedTuple

from kbroker.client.monitoring.client_metrics import MetricGroup
from kbroker.client.monitoring.push_state import MetricSubscription
from kbroker.protocol.otlp_encoding import gauge, metrics_data, number, total
from kbroker.record.compression import compress

_PREFIX = "org.apache.kafka."
_TOTAL = "-total"
# BOUND: numbers of one push. What has tags comes last, and is left out first.
POINTS_MAX = 500

Key = tuple[str, tuple[tuple[str, str], ...]]


class PushedPoint(NamedTuple):
    """key: its name and its tags, as they are pushed."""

    key: Key
    value: float
    is_total: bool


def telemetry_name(group: str, name: str) -> str:
    """``producer-node-metrics`` and ``request-rate`` make
    ``org.apache.kafka.producer.node.request.rate``.
    """
    return _PREFIX + f"{group.removesuffix('-metrics')}.{name}".lower().replace("-", ".")


class PushContent:
    """Makes pushes, and remembers the totals that the last one had.

    resource: what is said of the client.
    """

    def __init__(self, resource: dict[str, str]) -> None:
        self._resource = resource
        self._told: dict[Key, float] = {}
        self._told_ns = self._began_ns = time.time_ns()

    def points(
        self, groups: Iterable[MetricGroup], wanted: MetricSubscription, is_slim: bool = False
    ) -> list[PushedPoint]:
        """What a broker asks for."""
        points = list(self._wanted(groups, wanted.prefixes, is_slim))
        points.sort(key=lambda point: bool(point.key[1]))
        return points[:POINTS_MAX]

    @staticmethod
    def _wanted(
        groups: Iterable[MetricGroup], prefixes: tuple[str, ...], is_slim: bool
    ) -> Iterator[PushedPoint]:
        for group in groups:
            if is_slim and group.tags:
                continue
            tags = tuple((key.replace("-", "_"), text) for key, text in group.tags)
            for name, value in group.values.items():
                shown = telemetry_name(group.name, name)
                if shown.startswith(prefixes) and isfinite(value):
                    yield PushedPoint((shown, tags), float(value), name.endswith(_TOTAL))

    def encoded(self, points: list[PushedPoint], wanted: MetricSubscription) -> bytes:
        """The bytes of a push; those of the points without tags, or none, if it were too large."""
        for some in (points, [point for point in points if not point.key[1]]):
            data = compress(wanted.codec, self._metrics(some, wanted.is_delta))
            if len(data) <= wanted.bytes_max:
                return data
        return b""

    def _metrics(self, points: list[PushedPoint], is_delta: bool) -> bytes:
        now_ns = time.time_ns()
        rows = []
        for (name, tags), value, is_total in points:
            if not is_total:
                rows.append(gauge(name, number(value, dict(tags), now_ns)))
                continue
            since_ns = self._told_ns if is_delta else self._began_ns
            told = self._told.get((name, tags), 0.0) if is_delta else 0.0
            point = number(max(0.0, value - told), dict(tags), now_ns, since_ns)
            rows.append(total(name, point, is_delta=is_delta))
        return metrics_data(rows, self._resource)

    def taken(self, points: list[PushedPoint]) -> None:
        """A broker has these now. What a lost push had is in the next one."""
        self._told.update({key: value for key, value, is_total in points if is_total})
        self._told_ns = time.time_ns()
