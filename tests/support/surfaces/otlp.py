"""Writes what clients push of OpenTelemetry's metrics, besides what ours do (``otlp_encoding``)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from kbroker.protocol.otlp_encoding import (
    attribute,
    gauge,
    message,
    metrics_data,
    number,
    total,
    varint,
)

__all__ = ["attribute", "gauge", "message", "metrics_data", "number", "total", "varint"]


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
