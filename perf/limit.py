"""kbroker's CPU compared with the minimum that a broker needs (bare.c), in turns, in one run.

    python perf/limit.py                        four cells, medians of five
    python perf/limit.py --cells 16k --runs 3

Both keep their data below --place, by default in memory: on a disk, large requests measure that.
The client is the same, the ratio is of CPU per request, or per MB read.
"""

import argparse
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import process_tree
from perf.arguments import Arguments, positive
from perf.bars import OURS, Bar, Cell, Figures, values_of
from perf.brokers import KbrokerBroker, Running
from perf.frames import (
    fetch_frame,
    produce_frame,
    produce_response_prefix,
    random_values,
    record_batch,
)
from perf.load_generator import LoadGenerator
from perf.process_tree import Meter
from perf.raw_client import RawClient, connect, wait_until_writable
from perf.runner import Report, silent, tell
from perf.topics import create_topic, delete_topic, fresh_name

SOURCE = Path(__file__).with_name("bare.c")
VERSION = 9
# Error code, offset, append time -1, log start, no record errors, no message, tags; throttle, tags.
RESPONSE_END = bytes(10) + b"\xff" * 8 + bytes(8) + b"\x01\x00\x00\x00" + bytes(5)
# The size of one read: whole batches of one size, so that offsets can be computed.
CHUNK_BATCHES = 60
CHUNKS = 64
CPU_OVERRIDES = {"log.segment.delete.delay.ms": "1000"}


SETTLE_S = 1.5
BARE = "bare"
RECORDS, PARTITIONS = 150, 8


class BareServer(Running):
    """A running bare.c; ``directory`` is emptied at the end."""

    def __init__(self, place: str, topic: str, batch: bytes) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="perf-bare-", dir=place))
        self._topic, self._batch = topic, batch
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ("127.0.0.1", 0)

    def start(self) -> None:
        program = self.home / "bare"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
        sent = self.home / "sent"
        sent.write_bytes(self._batch * CHUNK_BATCHES * CHUNKS)
        response = produce_response_prefix(VERSION, self._topic, 0) + RESPONSE_END
        self.process = subprocess.Popen(
            [program, self.home, sent, str(len(self._batch) * CHUNK_BATCHES), response.hex()],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))

    def cpu_seconds(self) -> float:
        assert self.process is not None
        return process_tree.cpu_seconds(self.process.pid)

    def empty(self) -> None:
        """Free the pages of the written data, as a deleted topic does."""
        for log in self.home.glob("*.log"):
            log.unlink()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


Server = BareServer | KbrokerBroker


def measure_produce(
    server: Server, topic: str, seconds: float, sockets: int = 8, records: int = RECORDS
) -> Figures:
    """CPU of the server for one request."""
    batch = record_batch(random_values(records, 100, seed=1))
    numbers = [0] * sockets
    if isinstance(server, KbrokerBroker):
        leaders = create_topic(server.bootstrap, topic, PARTITIONS)
        wait_until_writable(leaders, topic)
        numbers = [number % PARTITIONS for number in range(sockets)]
    with ExitStack() as stack:
        connections = connect(server.address, sockets, is_blocking=False)
        for one in connections:
            stack.enter_context(closing(one))
        generator = LoadGenerator(
            connections,
            [produce_frame(VERSION, topic, number, batch, acks=1) for number in numbers],
            [produce_response_prefix(VERSION, topic, number) for number in numbers],
            5,
            True,
        )
        generator.run(seconds / 4)
        with Meter(server.cpu_seconds) as used:
            result = generator.run(seconds)
    if set(result["codes"]) != {0}:
        raise RuntimeError(f"errors were answered: {result['codes']}")
    return {"cpu_us_per_request": used.cpu_s / result["requests"] * 1e6}


def measure_read(server: Server, topic: str, seconds: float, sockets: int) -> Figures:
    """CPU of the server for one MB read; every socket has one request out."""
    batch = record_batch(random_values(RECORDS, 100, seed=1))
    if isinstance(server, KbrokerBroker):
        fill(server, topic, batch)
    frames = [
        # Behind the record that showed that the partition takes some.
        fetch_frame(topic, 0, 1 + RECORDS * CHUNK_BATCHES * chunk, len(batch) * CHUNK_BATCHES)
        for chunk in range(CHUNKS)
    ]
    room = memoryview(bytearray(4 << 20))
    wanted = read_bytes = 0
    with ExitStack() as stack:
        connections = connect(server.address, sockets)
        for one in connections:
            stack.enter_context(closing(one))
        with Meter(server.cpu_seconds) as used:
            end = time.monotonic() + seconds
            for one in connections:
                one.sendall(frames[0])
            while time.monotonic() < end:
                wanted += 1
                for one in connections:
                    read_bytes += read_response(one, room)
                    one.sendall(frames[wanted % len(frames)])
            for one in connections:
                read_bytes += read_response(one, room)
    return {"cpu_us_per_mb": used.cpu_s / read_bytes * 1e12}


def fill(kbroker: KbrokerBroker, topic: str, batch: bytes) -> None:
    """A topic of a partition with all that is read, and a chunk more."""
    wait_until_writable(create_topic(kbroker.bootstrap, topic, 1), topic)
    with RawClient(kbroker.address) as client:
        for _ in range((CHUNKS + 1) * CHUNK_BATCHES):
            client.write(topic, 0, batch)


def read_response(one: socket.socket, room: memoryview) -> int:
    """Read one response; returns its size. A short one is an error and not counted."""
    head = one.recv(4, socket.MSG_WAITALL)
    (size,) = struct.unpack(">i", head)
    if size < 1 << 19:
        raise RuntimeError(f"a response of {size} bytes has no records")
    got = 0
    while got < size:
        got += one.recv_into(room[got:size])
    return int(size)


def _produce(rule: str) -> tuple[Bar, ...]:
    return (Bar("cpu_us_per_request", rule, is_paired=True),)


CELLS = (
    Cell("16k", "16 KiB requests, 8 sockets", measure_produce, _produce("<= 1.6x, aim 1.4x")),
    Cell(
        "160k",
        "160 KiB requests, 8 sockets",
        measure_produce,
        _produce("<= 2x, aim 1.6x"),
        {"records": 1500},
    ),
    Cell(
        "one16",
        "1-record requests, 16 sockets",
        measure_produce,
        _produce("<= 2x, aim 1.7x"),
        {"sockets": 16, "records": 1},
    ),
    Cell(
        "read",
        "reading 1 MiB at a time, 4 sockets",
        measure_read,
        (Bar("cpu_us_per_mb", "<= 1.3x, aim 1.15x", "CPU µs/MB", is_paired=True),),
        {"sockets": 4},
    ),
)


def measure(options: argparse.Namespace, report: Report) -> None:
    """All cells, the two servers in turns."""
    batch = record_batch(random_values(RECORDS, 100, seed=1))
    topic = fresh_name("limit")
    with (
        BareServer(options.place, topic, batch) as bare,
        KbrokerBroker(options.place, CPU_OVERRIDES) as kbroker,
    ):

        def take(cell: Cell, name: str) -> Figures:
            server = bare if name == BARE else kbroker
            try:
                figures: Figures = cell.measure(server, topic, options.seconds, **cell.parameters)
            finally:
                if name == BARE:
                    bare.empty()
                else:
                    delete_topic(kbroker.bootstrap, topic)
            return figures

        cells = [cell for cell in CELLS if cell.name in options.cells]
        report.measure(cells, (BARE, OURS), options.runs, take, SETTLE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    options = Arguments(__doc__)
    options.add_names("--cells", [cell.name for cell in CELLS])
    options.add_argument("--runs", type=positive(int), default=5)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_place("/dev/shm")
    options.add_output()
    options.add_argument("--json", action="store_true", help="all figures instead of the table")
    chosen = options.parse(arguments)
    columns = {BARE: BARE, OURS: OURS}
    report = Report(chosen, columns, say=silent if chosen.json else tell)
    measure(chosen, report)
    if chosen.json:
        print(json.dumps({name: figures_of(cell) for name, cell in report.cells.items()}))
    return report.end()


def figures_of(cell: dict[str, Any]) -> dict[str, list[float]]:
    """The one figure that there is, of all runs."""
    (figure,) = {one["figure"] for one in cell["conditions"]}
    return {name: values_of(runs, figure) for name, runs in cell["results"].items()}


if __name__ == "__main__":
    sys.exit(main())
