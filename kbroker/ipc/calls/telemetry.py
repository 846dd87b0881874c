"""What clients have pushed of their metrics (KIP-714)."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import NETWORK, Nothing
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation

TELEMETRY_DEADLINE_MS = 1_000


class TelemetrySeries(NamedTuple):
    """A number that a client has pushed. is_counter: it only grows. labels: name and value."""

    name: str
    is_counter: bool
    labels: list[list[str]]
    value: float


class TelemetryHistogram(NamedTuple):
    """A histogram that a client has pushed. bounds: upper ones. counts: of each bucket by itself,
    the last of what is above all bounds. total: the sum of the values; None if it is not told.
    """

    name: str
    labels: list[list[str]]
    bounds: list[float]
    counts: list[int]
    total: float | None


class ClientSeries(Document):
    """left_out: how many numbers were not kept since the process has started."""

    series: list[TelemetrySeries]
    histograms: list[TelemetryHistogram]
    left_out: int


CLIENT_TELEMETRY = CallOperation(
    "client_telemetry", Nothing, ClientSeries, (NETWORK,), TELEMETRY_DEADLINE_MS
)
