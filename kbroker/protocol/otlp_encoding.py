"""Writes what a client pushes of its metrics: OpenTelemetry's MetricsData (KIP-714), in protobuf.

``otlp`` reads it, and has the numbers of the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

_NUMBER = {int: (0x31, struct.Struct("<Bq")), float: (0x21, struct.Struct("<Bd"))}
_TIME = struct.Struct("<BQ")
_SINCE_TAG, _AT_TAG = 0x11, 0x19
_DELTA, _CUMULATIVE = 1, 2  # AggregationTemporality


def varint(value: int) -> bytes:
    """A number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(field: int, data: bytes) -> bytes:
    """A field that is a message, or text."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(key: str, value: str) -> bytes:
    """A KeyValue."""
    return message(1, _utf8(key)) + message(2, message(1, _utf8(value)))


def number(
    value: float, attributes: Mapping[str, str], at_ns: int = 1, since_ns: int | None = None
) -> bytes:
    """A NumberDataPoint. at_ns, since_ns: since 1970."""
    out = b"".join(message(7, attribute(*pair)) for pair in attributes.items())
    if since_ns is not None:
        out += _TIME.pack(_SINCE_TAG, since_ns)
    tag, packing = _NUMBER[int if isinstance(value, int) else float]
    return out + _TIME.pack(_AT_TAG, at_ns) + packing.pack(tag, value)


def gauge(name: str, *points: bytes) -> bytes:
    """A Metric that goes up and down."""
    body = b"".join(message(1, point) for point in points)
    return message(1, _utf8(name)) + message(5, body)


def total(name: str, *points: bytes, is_delta: bool, is_monotonic: bool = True) -> bytes:
    """A Metric that is a sum. is_delta: of what was added since the last time."""
    body = b"".join(message(1, point) for point in points)
    body += bytes([0x10, _DELTA if is_delta else _CUMULATIVE, 0x18, is_monotonic])
    return message(1, _utf8(name)) + message(7, body)


def metrics_data(metrics: Iterable[bytes], resource: Mapping[str, str] | None = None) -> bytes:
    """MetricsData. resource: what is said of the client."""
    scope = b"".join(message(2, metric) for metric in metrics)
    group = message(2, scope)
    if resource is not None:
        body = b"".join(message(1, attribute(*pair)) for pair in resource.items())
        group = message(1, body) + group
    return message(1, group)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
