"""What clients push of their metrics to one network process (KIP-714), and what they are asked for.

Subscriptions are those of the image. What a client has pushed is kept while it pushes, as numbers
with bounded labels, and told to the exporter.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from kbroker.config.client_metrics_config import (
    ALL_METRICS,
    CLIENT_METRICS_KEYS,
    DEFAULT_INTERVAL_MS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    patterns,
)
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.ipc.calls import ClientSeries, TelemetryHistogram, TelemetrySeries
from kbroker.protocol.otlp import (
    BOUNDS_MAX,
    Attributes,
    Histogram,
    HistogramPoint,
    Point,
    Pushed,
)

# BOUND: clients that are remembered, the least recent is forgotten; series that are kept in all,
# and of one client. A histogram has one for each bucket, and two.
CLIENTS_MAX = 10_000
SERIES_MAX = 5_000
SERIES_OF_CLIENT_MAX = 500
# A client that has not pushed for so many intervals is gone.
INTERVALS_KEPT = 3
# Clocks differ: a push may come so much too early.
EARLY_SHARE = 0.1
NO_ID = bytes(16)
RESERVED_IDS = (NO_ID, bytes(15) + b"\1")
# Of Prometheus's histograms.
BOUND_LABEL = "le"
_UNSAFE = re.compile(r"[^a-zA-Z0-9_]")
_PREFIX = "org.apache.kafka."
# Attributes of a client's resource that become labels.
RESOURCE_LABELS = ("group_id", "transactional_id")


class Subscription(NamedTuple):
    """What a client is asked for. prefixes: of names of metrics; [""] means all."""

    number: int
    interval_ms: int
    prefixes: tuple[str, ...]


Key = tuple[str, Attributes]  # the name and the labels of a series


class Client:
    """A client instance, as this process knows it."""

    __slots__ = (
        "asked_ms",
        "error",
        "histograms",
        "interval_ms",
        "is_terminated",
        "labels",
        "pushed_ms",
        "series",
        "size",
    )

    def __init__(self) -> None:
        self.asked_ms = self.pushed_ms = -1
        self.interval_ms = DEFAULT_INTERVAL_MS
        self.is_terminated = False
        self.error = 0  # of its last request
        self.labels: tuple[tuple[str, str], ...] = ()
        # Is it a counter, and its value.
        self.series: dict[Key, tuple[bool, float]] = {}
        self.histograms: dict[Key, Histogram] = {}
        self.size = 0  # how many series it has, those of histograms included


class ClientTelemetry:
    """subscriptions: those of the image, which keeps changing."""

    def __init__(self, subscriptions: Mapping[str, Mapping[str, str]]) -> None:
        self._subscriptions = subscriptions
        self._clients: OrderedDict[bytes, Client] = OrderedDict()
        self._series_count = 0
        self._left_out = 0

    # -- requests ----------------------------------------------------------------------------

    def subscribe(
        self, instance_id: bytes, known_by: Mapping[str, str], now_ms: int
    ) -> tuple[bytes, Subscription]:
        """GetTelemetrySubscriptions: the id of the client, a new one if it has none, and what it
        is asked for. Raises WireError.
        """
        if instance_id in RESERVED_IDS:
            instance_id = os.urandom(16)
        client = self._client(instance_id)
        last_ms = max(client.asked_ms, client.pushed_ms)
        is_early = last_ms >= 0 and not self._is_due(client, last_ms, now_ms)
        if is_early and client.error != ErrorCode.UNKNOWN_SUBSCRIPTION_ID:
            raise WireError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.asked_ms, client.error = now_ms, 0
        subscription = self.subscription(instance_id, known_by)
        client.interval_ms = subscription.interval_ms
        return instance_id, subscription

    def begin_push(
        self,
        instance_id: bytes,
        known_by: Mapping[str, str],
        subscription_id: int,
        is_last: bool,
        now_ms: int,
    ) -> None:
        """PushTelemetry: check that it may push now. Raises WireError."""
        if instance_id in RESERVED_IDS:
            raise WireError(ErrorCode.INVALID_REQUEST, "the client instance id is invalid")
        client = self._client(instance_id)
        if client.is_terminated:
            raise WireError(ErrorCode.INVALID_REQUEST, "the client has pushed for the last time")
        may = client.asked_ms > client.pushed_ms or self._is_due(client, client.pushed_ms, now_ms)
        if not may and not is_last:
            raise WireError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.pushed_ms, client.is_terminated = now_ms, is_last
        subscription = self.subscription(instance_id, known_by)
        client.interval_ms = subscription.interval_ms
        client.error = 0
        if subscription_id != subscription.number:
            client.error = int(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
            raise WireError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)

    def subscription(self, instance_id: bytes, known_by: Mapping[str, str]) -> Subscription:
        """What all subscriptions together ask of a client. The number depends on nothing else, so
        every process of a broker, and every broker, gives the same.
        """
        by = {**known_by, "client_instance_id": instance_text(instance_id)}
        intervals, prefixes = [], set[str]()
        for configs in self._subscriptions.values():
            try:
                wanted = patterns(configs.get(MATCH, ""))
                names = CLIENT_METRICS_KEYS[METRICS].parse(configs.get(METRICS, ""))
                interval_ms = CLIENT_METRICS_KEYS[INTERVAL_MS].parse(
                    configs.get(INTERVAL_MS, str(DEFAULT_INTERVAL_MS))
                )
            except ConfigError:
                continue  # the log has said so
            if names and all(p.fullmatch(by.get(key, "")) for key, p in wanted.items()):
                intervals.append(interval_ms)
                prefixes.update(names)
        if ALL_METRICS in prefixes:
            prefixes = {""}
        found = tuple(sorted(prefixes))
        interval_ms = min(intervals, default=DEFAULT_INTERVAL_MS)
        text = "\n".join((instance_id.hex(), str(interval_ms), *found))
        number = zlib.crc32(text.encode())
        return Subscription(number - (1 << 32) if number >= 1 << 31 else number,
                            interval_ms, found)  # fmt: skip

    @staticmethod
    def _is_due(client: Client, last_ms: int, now_ms: int) -> bool:
        return last_ms < 0 or now_ms - last_ms >= client.interval_ms * (1 - EARLY_SHARE)

    # -- what was pushed ---------------------------------------------------------------------

    def take(
        self,
        instance_id: bytes,
        known_by: Mapping[str, str],
        pushed: Pushed,
        prefixes: Iterable[str],
    ) -> None:
        """Keep what a client has pushed of what it was asked for."""
        client = self._client(instance_id)
        wanted = tuple(prefixes)
        client.labels = (
            ("client_id", known_by.get("client_id", "")),
            ("client_instance_id", instance_text(instance_id)),
            ("client_software_name", known_by.get("client_software_name", "")),
            ("client_software_version", known_by.get("client_software_version", "")),
            *((key, pushed.resource[key]) for key in RESOURCE_LABELS if key in pushed.resource),
        )
        gauges = {key for key, (is_counter, _) in client.series.items() if not is_counter}
        for point in pushed.points:
            if point.name.startswith(wanted):
                gauges.discard(self._enter(client, point))
        for key in gauges:  # it has them no more
            del client.series[key]
            self._grow(client, -1)
        for histogram in pushed.histograms:
            if histogram.name.startswith(wanted):
                self._enter_histogram(client, histogram)
        self._left_out += pushed.left_out

    def _enter(self, client: Client, point: Point) -> Key:
        key = _key(client, point.name, point.attributes)
        known = client.series.get(key)
        if known is None and not self._grow(client, 1):
            return key
        value = point.value
        if point.is_delta and known is not None:
            value += known[1]
        client.series[key] = (point.is_counter, value)
        return key

    def _enter_histogram(self, client: Client, point: HistogramPoint) -> None:
        key = _key(client, point.name, point.attributes, BOUND_LABEL)
        known = client.histograms.get(key)
        value = point.value if known is None or not point.is_delta else _sum(known, point.value)
        if self._grow(client, _size(value) - (0 if known is None else _size(known))):
            client.histograms[key] = value

    def _grow(self, client: Client, count: int) -> bool:
        """Let a client have so many series more, if there is room."""
        has_room = (
            self._series_count + count <= SERIES_MAX and client.size + count <= SERIES_OF_CLIENT_MAX
        )
        if count > 0 and not has_room:
            self._left_out += 1
            return False
        self._series_count += count
        client.size += count
        return True

    def _client(self, instance_id: bytes) -> Client:
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = Client()
            if len(self._clients) > CLIENTS_MAX:
                self._forget(next(iter(self._clients)))
        else:
            self._clients.move_to_end(instance_id)
        return client

    def _forget(self, instance_id: bytes) -> None:
        self._series_count -= self._clients.pop(instance_id).size

    def tick(self, now_ms: int) -> None:
        """Forget clients that have not been heard of."""
        gone = [
            instance_id
            for instance_id, client in self._clients.items()
            if now_ms - max(client.asked_ms, client.pushed_ms)
            > (1 if client.is_terminated else INTERVALS_KEPT) * client.interval_ms
        ]
        for instance_id in gone:
            self._forget(instance_id)

    def figures(self) -> ClientSeries:
        """All series, and how many were left out so far."""
        series = [
            TelemetrySeries(
                series_name(name),
                is_counter,
                [list(pair) for pair in (*client.labels, *labels)],
                value,
            )
            for client in self._clients.values()
            for (name, labels), (is_counter, value) in client.series.items()
        ]
        histograms = [
            TelemetryHistogram(
                series_name(name),
                [list(pair) for pair in (*client.labels, *labels)],
                list(histogram.bounds),
                list(histogram.counts),
                histogram.total,
            )
            for client in self._clients.values()
            for (name, labels), histogram in client.histograms.items()
        ]
        return ClientSeries(series, histograms, self._left_out)


def _key(client: Client, name: str, attributes: Attributes, *taken: str) -> Key:
    """taken: names that no label may have, besides those of the client's labels."""
    own = {*taken, *(name for name, _ in client.labels)}
    labels = sorted((label_name(key), text) for key, text in attributes)
    return name, tuple(dict(pair for pair in labels if pair[0] not in own).items())


def _size(histogram: Histogram) -> int:
    return len(histogram.counts) + 2


def _sum(one: Histogram, other: Histogram) -> Histogram:
    """With the bounds below which both tell how many values there are."""
    has_totals = one.total is not None and other.total is not None
    total = (one.total or 0.0) + (other.total or 0.0) if has_totals else None
    if one.bounds == other.bounds:
        bounds = one.bounds
        counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    else:
        bounds, counts = _common(one, other)
    return Histogram(bounds, counts, total)


def _common(one: Histogram, other: Histogram) -> tuple[tuple[float, ...], tuple[int, ...]]:
    every = sorted({*one.bounds, *other.bounds})
    known = [
        (bound, a + b)
        for bound, a, b in zip(every, _below(one, every), _below(other, every), strict=True)
        if a is not None and b is not None
    ]
    while len(known) > BOUNDS_MAX:
        del known[1:-1:2]
    below = [0, *(count for _, count in known), sum(one.counts) + sum(other.counts)]
    return tuple(bound for bound, _ in known), tuple(high - low for low, high in pairwise(below))


def _below(histogram: Histogram, every: list[float]) -> Iterator[int | None]:
    """How many values are not above each bound; None where that is not known: in a bucket."""
    at = below = 0
    bounds, counts = histogram.bounds, histogram.counts
    for bound in every:
        if at < len(bounds) and bound == bounds[at]:
            below += counts[at]
            at += 1
            yield below
        else:
            yield None if counts[at] else below


def instance_text(instance_id: bytes) -> str:
    """As Kafka writes ids."""
    import base64

    return base64.urlsafe_b64encode(instance_id).decode().rstrip("=")


def series_name(name: str) -> str:
    """``org.apache.kafka.producer.record.send.rate`` becomes
    ``kbroker_client_producer_record_send_rate``.
    """
    return "kbroker_client_" + _UNSAFE.sub("_", name.removeprefix(_PREFIX)).lower()


def label_name(key: str) -> str:
    """What Prometheus takes for the name of a label."""
    name = _UNSAFE.sub("_", key).lower()
    return name if name and not name[0].isdigit() and not name.startswith("__") else f"l_{name}"
