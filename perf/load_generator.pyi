"""Sends ready-made Produce frames over many sockets and checks every response; used by perf/
only.
"""

import socket
from collections.abc import Sequence
from typing import TypedDict

class LoadError(RuntimeError): ...

class RunResult(TypedDict):
    requests: int
    elapsed_ns: int
    codes: dict[int, int]
    histogram: list[int]
    max_ns: int
    sum_ns: int

def latency_bucket(value_ns: int) -> int: ...

class LoadGenerator:
    """Keeps ``in_flight`` requests out on each socket.

    sockets: connected and non-blocking. frames: one request each, its length included; the
    correlation id in bytes 8 to 11 is overwritten. prefixes: the bytes of a response between its
    correlation id and error code. expects_responses: False for acks=0; sent requests are counted
    then, and there is no latency.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        frames: Sequence[bytes],
        prefixes: Sequence[bytes],
        in_flight: int,
        expects_responses: bool = True,
    ) -> None: ...
    def run(self, seconds: float, drain_seconds: float = 30.0) -> RunResult:
        """Run the load for ``seconds``, then wait for the last responses. Raises LoadError."""

class DeliveryCounter:
    """Counts librdkafka's delivery reports without a Python object for each.

    latency_address: of ``rd_kafka_message_latency``, or of another function of its type.
    """

    def __init__(self, latency_address: int) -> None: ...
    def count(self, messages_address: int, number: int) -> None:
        """``messages_address`` is that of an array of pointers to rd_kafka_message_t."""

    def take_window(self) -> tuple[int, int, int]:
        """(delivered, sum of their latencies in us, the longest) since the last call."""

    def totals(self) -> tuple[int, int, int, int, int, list[int]]:
        """(delivered, failed, last error code, sum of latencies in us, the longest, histogram)"""
