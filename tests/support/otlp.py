"""Writes OpenTelemetry's MetricsData, as clients push it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(field: int, data: bytes) -> bytes:
    """A field that is a message, or text."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(key: str, value: str) -> bytes:
    return message(1, key.encode()) + message(2, message(1, value.encode()))


def number(value: float, attributes: Mapping[str, str]) -> bytes:
    """A NumberDataPoint."""
    out = b"".join(message(7, attribute(*pair)) for pair in attributes.items())
    out += struct.pack("<Bq", 0x19, 1)  # its time
    if isinstance(value, int):
        return out + struct.pack("<Bq", 0x31, value)
    return out + struct.pack("<Bd", 0x21, value)


def gauge(name: str, *points: bytes) -> bytes:
    """A Metric."""
    body = b"".join(message(1, point) for point in points)
    return message(1, name.encode()) + message(5, body)


def total(name: str, *points: bytes, is_delta: bool, is_monotonic: bool = True) -> bytes:
    body = b"".join(message(1, point) for point in points)
    body += bytes([0x10, 1 if is_delta else 2, 0x18, is_monotonic])
    return message(1, name.encode()) + message(7, body)


def distribution(
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float | None,
    attributes: Mapping[str, str],
    *,
    packed: bool = True,
) -> bytes:
    """A HistogramDataPoint."""
    out = struct.pack("<Bq", 0x19, 1)  # its time
    out += struct.pack("<BQ", 0x21, sum(counts))
    if total is not None:
        out += struct.pack("<Bd", 0x29, total)
    if packed:
        out += message(6, struct.pack(f"<{len(counts)}Q", *counts))
        out += message(7, struct.pack(f"<{len(bounds)}d", *bounds))
    else:
        out += b"".join(struct.pack("<BQ", 0x31, count) for count in counts)
        out += b"".join(struct.pack("<Bd", 0x39, bound) for bound in bounds)
    return out + b"".join(message(9, attribute(*pair)) for pair in attributes.items())


def histogram(name: str, *points: bytes, is_delta: bool) -> bytes:
    body = b"".join(message(1, point) for point in points)
    body += bytes([0x10, 1 if is_delta else 2])
    return message(1, name.encode()) + message(9, body)


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def exponential(
    scale: int,
    positive: tuple[int, Sequence[int]] = (0, ()),
    negative: tuple[int, Sequence[int]] = (0, ()),
    *,
    zeros: int = 0,
    threshold: float = 0.0,
    total: float | None = None,
    attributes: Mapping[str, str] | None = None,
    packed: bool = True,
) -> bytes:
    """An ExponentialHistogramDataPoint. positive, negative: the index of the first bucket, and
    what is in them.
    """
    out = b"".join(message(1, attribute(*pair)) for pair in (attributes or {}).items())
    out += struct.pack("<Bq", 0x19, 1)  # its time
    out += struct.pack("<BQ", 0x21, zeros + sum(positive[1]) + sum(negative[1]))
    if total is not None:
        out += struct.pack("<Bd", 0x29, total)
    out += b"\x30" + zigzag(scale) + struct.pack("<BQ", 0x39, zeros)
    for field, (offset, counts) in ((8, positive), (9, negative)):
        buckets = b"\x08" + zigzag(offset)
        if packed:
            buckets += message(2, b"".join(map(varint, counts)))
        else:
            buckets += b"".join(b"\x10" + varint(count) for count in counts)
        out += message(field, buckets)
    return out + struct.pack("<Bd", 0x71, threshold)


def exponential_histogram(name: str, *points: bytes, is_delta: bool) -> bytes:
    body = b"".join(message(1, point) for point in points)
    body += bytes([0x10, 1 if is_delta else 2])
    return message(1, name.encode()) + message(10, body)


def summary(name: str) -> bytes:
    return message(1, name.encode()) + message(11, b"")


def metrics_data(metrics: Iterable[bytes], resource: Mapping[str, str] | None = None) -> bytes:
    scope = b"".join(message(2, metric) for metric in metrics)
    group = message(2, scope)
    if resource is not None:
        body = b"".join(message(1, attribute(*pair)) for pair in resource.items())
        group = message(1, body) + group
    return message(1, group)
