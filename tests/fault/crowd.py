"""A crowd of greedy connections next to a well-behaved client: how long does that one wait?

    .venv/bin/python tests/fault/crowd.py                        every API, 100 connections
    .venv/bin/python tests/fault/crowd.py --apis 32,21 --large --connections 1

A line for each API: p50, p99 and longest wait in ms of a client that produces, fetches and asks for
metadata; the same in ms that the busiest process had a core meanwhile, which other work of the
machine does not change; and by how many MiB processes grew.
"""

from __future__ import annotations

import argparse
import multiprocessing
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from fault.crowd_requests import PARTITIONS, TOPIC, flood_frame, large_frames
from support.clients.wire_client import WireClient, batch_of

from kbroker.handlers import dispatch  # noqa: F401  all handlers, for what is announced
from kbroker.handlers.registry import announced
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.testing import Broker

MIB = 1 << 20
CONNECTIONS = 100
# The minimum of requests that a greedy connection has in flight.
AHEAD_BYTES = 65536
# All is quiet when this many requests in a row have waited for less work.
SETTLED_MS, SETTLED_REQUESTS = 20, 600
TOPICS = 100
# The maximum number of elements in a request (protocol.decoder.ELEMENTS_MAX), two for each entry.
LARGE_ENTRIES = 24_000
# Requests that a client sends once, or that would end what the exam needs.
LEFT_OUT = {ApiKey.SASL_HANDSHAKE}


class Outcome(NamedTuple):
    """Waits in ms; busy: waits in CPU time of the busiest process. growth: MiB by process."""

    p50: float
    p99: float
    longest: float
    busy_p50: float
    busy_p99: float
    busy_longest: float
    requests: int
    answers: int
    closed: int
    growth: dict[str, int]


# -- the crowd, in a process of its own


def crowd(
    address: tuple[str, int], frame: bytes, connections: int, seconds: float, report: Any
) -> None:
    """Keep requests in flight on each connection, and drop the responses."""
    selector = selectors.DefaultSelector()
    chunk = memoryview(frame * max(1, AHEAD_BYTES // len(frame)))
    left: dict[socket.socket, memoryview] = {}
    answers = closed = 0

    def connect() -> None:
        sock = socket.create_connection(address, 10)
        sock.setblocking(False)
        left[sock] = chunk
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)

    for _ in range(connections):
        connect()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for key, mask in selector.select(0.1):
            sock: Any = key.fileobj
            try:
                if mask & selectors.EVENT_READ:
                    data = sock.recv(1 << 18)
                    if not data:
                        raise ConnectionError
                    answers += len(data)
                if mask & selectors.EVENT_WRITE:
                    sent = sock.send(left[sock])
                    left[sock] = left[sock][sent:] or chunk
            except BlockingIOError:
                continue
            except OSError:
                closed += 1
                selector.unregister(sock)
                sock.close()
                with suppress(OSError):
                    connect()
    report.send((answers, closed))


# -- the normal client


def waits_of(broker: Broker, stopping: threading.Event) -> Iterator[tuple[float, float]]:
    """The waits of a client that produces, fetches and requests metadata, one by one: in ms, and in
    ms of CPU time of the broker's busiest process, which other load on the machine does not affect.
    """
    with ExitStack() as stack:
        # Some for each network process.
        clients = cycle(
            [stack.enter_context(WireClient((broker.host, broker.port), 60)) for _ in range(4)]
        )
        used = stack.enter_context(cpu_times(broker))
        metadata = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="normal")])
        offset = 0

        def produce(client: WireClient) -> None:
            nonlocal offset
            offset = client.produce("normal", {0: batch_of([b"x"])})[0].base_offset

        while not stopping.is_set():
            client = next(clients)
            for ask in (
                produce,
                lambda client: client.fetch("normal", 0, offset),
                lambda client: client.call(metadata, 9),
            ):
                before, began = used(), time.monotonic()
                ask(client)
                took = time.monotonic() - began
                busy = max(after - had for after, had in zip(used(), before, strict=True))
                yield took * 1000, busy / 1e6
            time.sleep(0.005)


@contextmanager
def cpu_times(broker: Broker) -> Iterator[Callable[[], list[int]]]:
    """Returns a function for the CPU time in ns of each process that serves this client."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(open(f"/proc/{pid}/schedstat", "rb", buffering=0))
            for title, pid in broker.pids.items()
            if title.startswith(("network", "io"))
        ]

        def read() -> list[int]:
            found = []
            for file in files:
                file.seek(0)
                with suppress(ProcessLookupError):
                    found.append(int(file.read().split()[0]))
            return found

        yield read


def memory_of(broker: Broker) -> dict[str, int]:
    """Resident bytes by process, without pages of files."""
    found = {}
    for title, pid in broker.pids.items():
        with suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as file:
            sizes = {line.split()[0]: line.split()[1] for line in file if line.startswith("Rss")}
            found[title] = (int(sizes["RssAnon:"]) + int(sizes["RssShmem:"])) * 1024
    return found


@contextmanager
def peaks_of(broker: Broker) -> Iterator[dict[str, int]]:
    """The maximum growth of each process's resident memory in MiB."""
    before, growth, stopping = memory_of(broker), {}, threading.Event()

    def watch() -> None:
        while not stopping.wait(0.05):
            for title, size in memory_of(broker).items():
                grown = (size - before.get(title, 0)) // MIB
                growth[title] = max(growth.get(title, 0), grown)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield growth
    stopping.set()
    thread.join()


def beside(broker: Broker, frame: bytes, connections: int, seconds: float) -> Outcome:
    """The normal client's waits next to so many connections that repeat a frame."""
    address = (broker.host, broker.port)
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.Process(
        target=crowd, args=(address, frame, connections, seconds, theirs), daemon=True
    )
    waits: list[float] = []
    busy: list[float] = []
    stopping = threading.Event()
    with peaks_of(broker) as growth:
        other.start()
        theirs.close()
        began = time.monotonic()
        for wait, worked in waits_of(broker, stopping):
            waits.append(wait)
            busy.append(worked)
            if time.monotonic() - began > seconds:
                stopping.set()
        other.join(30)
    other.kill()
    answers, closed = ours.recv()  # EOFError: there was no crowd
    return Outcome(*quantiles(waits), *quantiles(busy), len(waits), answers, closed, growth)


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """The median, the 99th percentile and the maximum."""
    values.sort()
    return values[len(values) // 2], values[int(len(values) * 0.99)], values[-1]


@contextmanager
def crowded_broker(**settings: Any) -> Iterator[Broker]:
    """A broker with topics for the crowd and for the normal client."""
    with Broker(**settings) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic("normal")
            client.create_topic(TOPIC, partitions=PARTITIONS)
            for number in range(TOPICS):
                client.create_topic(f"other-{number}", partitions=PARTITIONS)
            for _ in range(20):
                client.produce(TOPIC, {0: batch_of([b"x" * 100] * 50)})
        settle(broker)
        yield broker


def settle(broker: Broker) -> None:
    """Wait until a thousand new partitions are flushed, so that only the crowd is measured."""
    stopping = threading.Event()
    short = 0
    for _, busy in waits_of(broker, stopping):
        short = short + 1 if busy < SETTLED_MS else 0
        if short == SETTLED_REQUESTS:
            stopping.set()


def apis(wanted: str) -> list[tuple[int, int]]:
    """Keys and last versions of the served APIs."""
    keys = {int(key) for key in wanted.split(",")} if wanted else None
    return [
        (key, last)
        for key, _, last in announced()
        if ApiKey(key) not in LEFT_OUT and (keys is None or key in keys)
    ]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--apis", default="", help="keys, divided by commas; all without it")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--large", action="store_true", help="the largest requests instead")
    parser.add_argument("--entries", type=int, default=LARGE_ENTRIES)
    options = parser.parse_args()
    with crowded_broker() as broker:
        for key, version in apis(options.apis):
            frames = {"": flood_frame(key, version)}
            if options.large:
                frames = large_frames(key, version, options.entries)
            for title, frame in frames.items():
                pids = broker.pids
                found = beside(broker, frame, options.connections, options.seconds)
                name = f"{ApiKey(key).name} {title}"
                died = "" if broker.pids == pids else "  a process died"
                print(f"{name:36} {len(frame):8} B  {line_of(found)}{died}", flush=True)
    return 0


def line_of(found: Outcome) -> str:
    """The numbers, for people."""
    grown = " ".join(f"{k}+{v}" for k, v in sorted(found.growth.items()) if v > 8)
    return (
        f"wall {found.p50:7.1f} {found.p99:7.1f} {found.longest:7.1f}  busy {found.busy_p50:7.2f}"
        f" {found.busy_p99:7.2f} {found.busy_longest:7.2f}  n {found.requests:5}"
        f"  answers {found.answers // 1024:7} KiB  closed {found.closed:5}  {grown}"
    )


if __name__ == "__main__":
    sys.exit(main())
