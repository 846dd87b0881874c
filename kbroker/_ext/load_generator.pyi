"""Sends ready-made Produce frames over many sockets and checks every answer; used by perf/ only."""

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
    correlation id in bytes 8 to 11 is overwritten. prefixes: what an answer holds between
    correlation id and error code. answered: False for acks=0, where requests count as sent and
    there is no latency.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        frames: Sequence[bytes],
        prefixes: Sequence[bytes],
        in_flight: int,
        answered: bool = True,
    ) -> None: ...
    def run(self, seconds: float, drain_seconds: float = 30.0) -> RunResult:
        """Load for ``seconds``, then wait for the last answers. Raises LoadError."""
