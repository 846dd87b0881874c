"""The cell ``connections`` of ``perf/scale.py``: thousands of connections that are all in use.

Each of them produces one record a second over the one broker, plain and then over TLS 1.3, beside
Kafka 3.9.1. What is measured begins when all are connected: latency, CPU and memory.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from perf import secure_clients
from perf.bars import Bar, Cell, CellFailed, Figures
from perf.brokers import Broker
from perf.frames import produce_frame, produce_response_prefix, random_values, record_batch
from perf.machine import Needs
from perf.raw_client import wait_until_writable
from perf.security import BROKERS, PRODUCE_VERSION, listeners_of
from perf.topics import create_topic, fresh_name

PLAIN, TLS = "plain", "tls"
MEBIBYTE = 1 << 20
# As measured: of a connection with TLS, in Kafka's heap or a network process, and in the client.
CONNECTION_BYTES = 200 << 10
BROKER_BYTES = 2 << 30
# Of the requests that are due; the others found that the one before them had no answer yet.
SHARE_MIN = 0.99
# The data of a small load, in little memory, so that it is not about the disk.
SETTINGS = {
    "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "500",
    "log.retention.bytes": str(64 << 20),
    "log.segment.delete.delay.ms": "1000",
}


def _bars(way: str) -> tuple[Bar, ...]:
    return (
        Bar(f"{way}_p99_us", "<= 1x", f"{way}: p99, µs"),
        Bar(f"{way}_cpu_percent", "<= 1x", f"{way}: broker, % of a core"),
        Bar(f"{way}_pss_mib", "<= 1x", f"{way}: broker, MiB"),
    )


@dataclass(frozen=True, slots=True)
class ConnectionsSize:
    """seconds: measured, after ``warmup_s`` in which requests flow, too. kafka: 0 leaves it out."""

    connections: int = 10_000
    partitions: int = 16
    seconds: float = 60.0
    warmup_s: float = 30.0
    kafka: int = 1

    def needs(self, place: Path) -> Needs:
        return Needs(
            memory_bytes=BROKER_BYTES + 2 * self.connections * CONNECTION_BYTES,
            descriptors=self.connections + 2000,
            ports=self.connections + 1000,
            place=place,
            place_bytes=2 << 30,
        )


SMALL = ConnectionsSize(connections=200, partitions=2, seconds=2.0, warmup_s=1.0, kafka=0)


def measure(size: ConnectionsSize, place: Path, overrides: dict[str, str]) -> dict[str, Figures]:
    """The figures of each broker. Raises MachineTooSmall, CellFailed."""
    size.needs(place).require()
    results = {}
    for name in BROKERS if size.kafka else ("kbroker",):
        own = overrides if name == "kbroker" else {}
        with BROKERS[name](place, {**SETTINGS, **own}) as broker:
            results[name] = _measured(broker, size)
    return results


def _measured(broker: Broker, size: ConnectionsSize) -> Figures:
    topic, secured = fresh_name("connections"), listeners_of(broker)
    wait_until_writable(create_topic(broker.bootstrap, topic, size.partitions), topic)
    ways = {PLAIN: (broker.address, None), TLS: (("127.0.0.1", secured.tls_port), secured.ca_file)}
    return {
        f"{way}_{name}": value
        for way, (address, ca_file) in ways.items()
        for name, value in _loaded(broker, size, topic, address, ca_file).items()
    }


def _loaded(
    broker: Broker,
    size: ConnectionsSize,
    topic: str,
    address: tuple[str, int],
    ca_file: Path | None,
) -> Figures:
    """The figures of one way to connect."""
    batch = record_batch(random_values(1, 100, seed=1))
    frames = [
        produce_frame(PRODUCE_VERSION, topic, number, batch, acks=1)
        for number in range(size.partitions)
    ]
    prefix = produce_response_prefix(PRODUCE_VERSION, topic, 0)
    began = time.monotonic()
    marks: list[tuple[float, float, int]] = []

    def mark() -> None:
        marks.append((time.monotonic(), broker.cpu_seconds(), broker.pss_bytes()))

    found = secure_clients.tls_load(
        address, ca_file, frames, prefix, size.connections, size.seconds, size.warmup_s, mark,
        what="paced",
    )  # fmt: skip
    (connected_at, *_), (warm_at, warm_cpu, _), (done_at, done_cpu, pss_bytes) = marks
    rate = found["count"] / found["seconds"]
    if rate < SHARE_MIN * size.connections:
        raise CellFailed(
            f"{broker.name} answers {rate:.0f} requests/s of {size.connections}: its connections "
            f"wait for longer than a second, or the client is too slow"
        )
    return {
        "connect_s": connected_at - began,
        "requests_per_s": rate,
        "p50_us": found["p50_us"],
        "p99_us": found["p99_us"],
        "cpu_percent": 100 * (done_cpu - warm_cpu) / (done_at - warm_at),
        "client_cpu_percent": 100 * found["cpu_s"] / found["seconds"],
        "pss_mib": pss_bytes / MEBIBYTE,
    }


CELL = Cell(
    "connections",
    "thousands of connections that produce one record a second each",
    measure,
    _bars(PLAIN) + _bars(TLS),
)
