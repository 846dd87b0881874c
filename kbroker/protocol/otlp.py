"""Reads what clients push of their metrics: OpenTelemetry's MetricsData (KIP-714), in protobuf.

The bytes come from anybody. Every length is checked against what is there before it is used, the
depth is that of the message definitions, and what is kept of one push is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from kbroker.protocol.exponential_histogram import SCALES, Buckets, explicit
from kbroker.protocol.primitives import DecodeError

# BOUND: points of one push, attributes of a point or a resource, bounds of a histogram, bytes of a
# text.
POINTS_MAX = 2_000
ATTRIBUTES_MAX = 16
BOUNDS_MAX = 100
# BOUND: protobuf fields that are looked at, and buckets, which take a microsecond each.
FIELDS_MAX = 60_000
TEXT_BYTES_MAX = 256
# Points between two pauses.
SLICE_POINTS = 100

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_DOUBLE, _INT64, _UINT64 = struct.Struct("<d"), struct.Struct("<q"), struct.Struct("<Q")
# Fields of the messages.
RESOURCE_METRICS = 1  # MetricsData
RESOURCE, SCOPE_METRICS = 1, 2  # ResourceMetrics
RESOURCE_ATTRIBUTES = 1  # Resource
METRICS = 2  # ScopeMetrics
NAME, GAUGE, SUM, HISTOGRAM, EXPONENTIAL_HISTOGRAM = 1, 5, 7, 9, 10  # Metric
DATA_POINTS, TEMPORALITY, IS_MONOTONIC = 1, 2, 3  # Gauge, Sum, Histogram, ExponentialHistogram
AS_DOUBLE, AS_INT, ATTRIBUTES = 4, 6, 7  # NumberDataPoint
COUNT, TOTAL, COUNTS, BOUNDS, HISTOGRAM_ATTRIBUTES = 4, 5, 6, 7, 9  # HistogramDataPoint
# ExponentialHistogramDataPoint, which has COUNT and TOTAL, too
EXPONENTIAL_ATTRIBUTES, SCALE, ZEROS, POSITIVE, NEGATIVE, ZERO_THRESHOLD = 1, 6, 7, 8, 9, 14
OFFSET, BUCKET_COUNTS = 1, 2  # Buckets
KEY, VALUE = 1, 2  # KeyValue
STRING_VALUE, BOOL_VALUE, INT_VALUE, DOUBLE_VALUE = 1, 2, 3, 4  # AnyValue
DELTA = 1  # of AggregationTemporality

Field = tuple[int, int, int | memoryview]  # number, wire type, value
Attributes = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """A number of a gauge or a sum. is_counter: it only grows. is_delta: it is what was added."""

    name: str
    attributes: Attributes
    value: float
    is_counter: bool
    is_delta: bool


class Histogram(NamedTuple):
    """bounds: upper ones, inclusive, in order. counts: of values up to each bound and above the one
    before; the last are above all bounds. total: the sum of the values; None if it is not told.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float | None


class HistogramPoint(NamedTuple):
    """is_delta: it is what was added."""

    name: str
    attributes: Attributes
    value: Histogram
    is_delta: bool


class Pushed(NamedTuple):
    """resource: what is said of the client. left_out: summaries, which Kafka's clients do not push,
    values that are no numbers, and what is too much.
    """

    resource: dict[str, str]
    points: list[Point]
    histograms: list[HistogramPoint]
    left_out: int


def read_metrics(data: bytes) -> Generator[None, None, Pushed]:
    """Steps of reading a push, between which others may run; returns it. Raises DecodeError."""
    return _Reader().read(memoryview(data))


class _Reader:
    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def read(self, data: memoryview) -> Generator[None, None, Pushed]:
        pushed: list[Point] = []
        histograms: list[HistogramPoint] = []
        resource: dict[str, str] = {}
        left_out = count = 0
        for metric, attributes in self._metrics(data):
            resource.update(attributes)
            for point in self._points(metric):
                count += 1
                if point is None or len(pushed) + len(histograms) >= POINTS_MAX:
                    left_out += 1
                elif isinstance(point, HistogramPoint):
                    histograms.append(point)
                else:
                    pushed.append(point)
                if count % SLICE_POINTS == 0:
                    yield
            yield
        return Pushed(resource, pushed, histograms, left_out)

    def _metrics(self, data: memoryview) -> Iterator[tuple[memoryview, dict[str, str]]]:
        """Each Metric, with the attributes of its resource."""
        for group in self._messages(data, RESOURCE_METRICS):
            attributes: dict[str, str] = {}
            for number, _, value in self._fields(group):
                if number == RESOURCE and isinstance(value, memoryview):
                    attributes.update(self._attributes(value, RESOURCE_ATTRIBUTES))
                elif number == SCOPE_METRICS and isinstance(value, memoryview):
                    for metric in self._messages(value, METRICS):
                        yield metric, attributes

    def _points(self, metric: memoryview) -> Iterator[Point | HistogramPoint | None]:
        """The points of a metric; None for one of a kind that is left out."""
        name = ""
        for number, _, value in self._fields(metric):
            if not isinstance(value, memoryview):
                continue
            if number == NAME:
                name = _text(value)
            elif number in (GAUGE, SUM):
                yield from self._numbers(name, value, number == SUM)
            elif number in (HISTOGRAM, EXPONENTIAL_HISTOGRAM):
                yield from self._histograms(name, value, number == EXPONENTIAL_HISTOGRAM)
            elif number > SUM:
                yield None

    def _numbers(self, name: str, data: memoryview, is_sum: bool) -> Iterator[Point | None]:
        temporality = monotonic = 0
        points: list[memoryview] = []
        for number, _, value in self._fields(data):
            if isinstance(value, memoryview):
                if number == DATA_POINTS:
                    points.append(value)
            elif is_sum and number == TEMPORALITY:
                temporality = value
            elif is_sum and number == IS_MONOTONIC:
                monotonic = value
        for point in points:
            yield self._point(name, point, bool(monotonic), temporality == DELTA)

    def _point(self, name: str, data: memoryview, is_counter: bool, is_delta: bool) -> Point | None:
        """None without a value that is a number."""
        amount: float | None = None
        for number, kind, value in self._fields(data):
            if kind == FIXED64 and isinstance(value, memoryview):
                if number == AS_DOUBLE:
                    amount = _DOUBLE.unpack(value)[0]
                elif number == AS_INT:
                    amount = _INT64.unpack(value)[0]
        if amount is None or not isfinite(amount) or not name:
            return None
        return Point(name, self._attributes(data, ATTRIBUTES), amount, is_counter, is_delta)

    def _histograms(
        self, name: str, data: memoryview, is_exponential: bool
    ) -> Iterator[HistogramPoint | None]:
        temporality = 0
        points: list[memoryview] = []
        for number, _, value in self._fields(data):
            if isinstance(value, memoryview):
                if number == DATA_POINTS:
                    points.append(value)
            elif number == TEMPORALITY:
                temporality = value
        field = EXPONENTIAL_ATTRIBUTES if is_exponential else HISTOGRAM_ATTRIBUTES
        read = self._exponential if is_exponential else self._histogram
        for point in points:
            histogram = read(point)
            if histogram is None or not name:
                yield None
            else:
                attributes = self._attributes(point, field)
                yield HistogramPoint(name, attributes, histogram, temporality == DELTA)

    def _histogram(self, data: memoryview) -> Histogram | None:
        """None if counts and bounds do not belong together, or are too many."""
        count, total = 0, None
        counts: list[int] = []
        bounds: list[float] = []
        for number, kind, value in self._fields(data):
            if not isinstance(value, memoryview) or kind not in (BYTES, FIXED64):
                continue
            if number == COUNT and kind == FIXED64:
                count = _UINT64.unpack(value)[0]
            elif number == TOTAL and kind == FIXED64:
                total = _DOUBLE.unpack(value)[0]
            elif number in (COUNTS, BOUNDS):
                if len(value) % 8 or len(value) > 8 * (BOUNDS_MAX + 1):
                    return None
                if number == COUNTS:
                    counts += (one for (one,) in _UINT64.iter_unpack(value))
                else:
                    bounds += (one for (one,) in _DOUBLE.iter_unpack(value))
                if len(counts) > BOUNDS_MAX + 1 or len(bounds) > BOUNDS_MAX:
                    return None
        if not counts and not bounds:
            counts = [count]
        in_order = all(low < high for low, high in pairwise(bounds))
        if len(counts) != len(bounds) + 1 or not in_order or not all(map(isfinite, bounds)):
            return None
        return Histogram(tuple(bounds), tuple(counts), _told(total))

    def _exponential(self, data: memoryview) -> Histogram | None:
        """As a histogram with bounds; None for a scale that nobody uses."""
        scale, zeros, threshold, total = 0, 0, 0.0, None
        positive = negative = Buckets(0, [])
        for number, kind, value in self._fields(data):
            if not isinstance(value, memoryview):
                if number == SCALE:
                    scale = _signed(value)
            elif kind == BYTES and number == POSITIVE:
                positive = self._buckets(value)
            elif kind == BYTES and number == NEGATIVE:
                negative = self._buckets(value)
            elif kind == FIXED64 and number == TOTAL:
                total = _DOUBLE.unpack(value)[0]
            elif kind == FIXED64 and number == ZEROS:
                zeros = _UINT64.unpack(value)[0]
            elif kind == FIXED64 and number == ZERO_THRESHOLD:
                threshold = _DOUBLE.unpack(value)[0]
        if scale not in SCALES or not 0 <= threshold or not isfinite(threshold):
            return None
        bounds, counts = explicit(scale, (threshold, zeros), positive, negative, BOUNDS_MAX)
        return Histogram(tuple(bounds), tuple(counts), _told(total))

    def _buckets(self, data: memoryview) -> Buckets:
        offset, counts = 0, list[int]()
        for number, _, value in self._fields(data):
            if not isinstance(value, memoryview):
                if number == BUCKET_COUNTS:
                    counts.append(value)
                elif number == OFFSET:
                    offset = _signed(value)
            elif number == BUCKET_COUNTS:
                at = 0
                while at < len(value):
                    self._look()
                    count, at = _varint(value, at)
                    counts.append(count)
        return Buckets(offset, counts)

    def _attributes(self, message: memoryview, field: int) -> Attributes:
        """Those with simple values; the first ATTRIBUTES_MAX."""
        attributes = []
        for pair in self._messages(message, field):
            key, text = "", None
            for number, _, value in self._fields(pair):
                if number == KEY and isinstance(value, memoryview):
                    key = _text(value)
                elif number == VALUE and isinstance(value, memoryview):
                    text = self._any_value(value)
            if key and text is not None:
                attributes.append((key, text))
                if len(attributes) >= ATTRIBUTES_MAX:
                    break
        return tuple(attributes)

    def _any_value(self, data: memoryview) -> str | None:
        """The text of an AnyValue that is a string, a boolean or a number."""
        for number, kind, value in self._fields(data):
            if isinstance(value, memoryview):
                if number == STRING_VALUE and kind == BYTES:
                    return _text(value)
                if number == DOUBLE_VALUE and kind == FIXED64:
                    return str(_DOUBLE.unpack(value)[0])
            elif number == BOOL_VALUE:
                return "true" if value else "false"
            elif number == INT_VALUE:
                return str(value - (1 << 64) if value >= 1 << 63 else value)
        return None

    def _messages(self, data: memoryview, field: int) -> Iterator[memoryview]:
        for number, kind, value in self._fields(data):
            if number == field and kind == BYTES and isinstance(value, memoryview):
                yield value

    def _look(self) -> None:
        """At one thing more. Raises DecodeError."""
        self._fields_left -= 1
        if self._fields_left < 0:
            raise DecodeError(f"metrics of more than {FIELDS_MAX} fields")

    def _fields(self, data: memoryview) -> Iterator[Field]:
        """The fields of a message; numbers, or their bytes. Raises DecodeError."""
        at, end = 0, len(data)
        while at < end:
            self._look()
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise DecodeError("a protobuf field with number 0")
            if kind == VARINT:
                value, at = _varint(data, at)
                yield number, kind, value
                continue
            if kind == BYTES:
                size, at = _varint(data, at)
            elif kind == FIXED64:
                size = 8
            elif kind == FIXED32:
                size = 4
            else:
                raise DecodeError(f"a protobuf field of wire type {kind}")
            if size > end - at:
                raise DecodeError(
                    f"a protobuf field of {size} bytes, of which there are {end - at}"
                )
            yield number, kind, data[at : at + size]
            at += size


def _told(total: float | None) -> float | None:
    return total if total is not None and isfinite(total) else None


def _signed(value: int) -> int:
    """A sint32."""
    return (value >> 1) ^ -(value & 1)


def _text(data: memoryview) -> str:
    """Longer texts are cut."""
    return bytes(data[:TEXT_BYTES_MAX]).decode("utf-8", "replace")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DecodeError("a protobuf number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
