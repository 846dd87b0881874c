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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import process_tree
from perf.brokers import KbrokerBroker
from perf.frames import (
    fetch_frame,
    produce_frame,
    produce_response_prefix,
    random_values,
    record_batch,
)
from perf.load_generator import LoadGenerator
from perf.raw_client import RawClient, wait_until_writable
from perf.topics import create_topic, delete_topic, fresh_name

SOURCE = Path(__file__).with_name("bare.c")
VERSION = 9
# Error code, offset, append time -1, log start, no record errors, no message, tags; throttle, tags.
RESPONSE_END = bytes(10) + b"\xff" * 8 + bytes(8) + b"\x01\x00\x00\x00" + bytes(5)
# The size of one read: whole batches of one size, so that offsets can be computed.
CHUNK_BATCHES = 60
CHUNKS = 64
CPU_OVERRIDES = {"log.segment.delete.delay.ms": "1000"}


@dataclass(frozen=True, slots=True)
class Load:
    """One row: the load, and the maximum CPU for kbroker, in multiples of bare.c's."""

    title: str
    bar: float
    aim: float
    sockets: int = 8
    records: int = 150
    reads: bool = False


LOADS = {
    "16k": Load("16 KiB requests, 8 sockets", 1.6, 1.4),
    "160k": Load("160 KiB requests, 8 sockets", 2.0, 1.6, records=1500),
    "one16": Load("1-record requests, 16 sockets", 2.0, 1.7, sockets=16, records=1),
    "read": Load("reading 1 MiB at a time, 4 sockets", 1.3, 1.15, sockets=4, reads=True),
}


class BareServer:
    """A running bare.c; ``directory`` is emptied at the end."""

    def __init__(self, place: str, topic: str, batch: bytes) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="perf-bare-", dir=place))
        program = self.home / "bare"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
        sent = self.home / "sent"
        sent.write_bytes(batch * CHUNK_BATCHES * CHUNKS)
        response = produce_response_prefix(VERSION, topic, 0) + RESPONSE_END
        self.process = subprocess.Popen(
            [program, self.home, sent, str(len(batch) * CHUNK_BATCHES), response.hex()],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))

    def cpu_seconds(self) -> float:
        return process_tree.cpu_seconds(self.process.pid)

    def empty(self) -> None:
        """Free the pages of the written data, as a deleted topic does."""
        for log in self.home.glob("*.log"):
            log.unlink()

    def __enter__(self) -> "BareServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home)


@contextmanager
def connected(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    sockets = [socket.create_connection(address, timeout=10) for _ in range(count)]
    try:
        for one in sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sockets
    finally:
        for one in sockets:
            one.close()


def produced_us(
    server: BareServer | KbrokerBroker, load: Load, topic: str, partitions: int, seconds: float
) -> float:
    """CPU of the server for one request, in microseconds."""
    batch = record_batch(random_values(load.records, 100, seed=1))
    numbers = [number % partitions for number in range(load.sockets)]
    with connected(server.address, load.sockets) as sockets:
        for one in sockets:
            one.setblocking(False)
        generator = LoadGenerator(
            sockets,
            [produce_frame(VERSION, topic, number, batch, acks=1) for number in numbers],
            [produce_response_prefix(VERSION, topic, number) for number in numbers],
            5,
            True,
        )
        generator.run(seconds / 4)
        before = server.cpu_seconds()
        found = generator.run(seconds)
        spent = server.cpu_seconds() - before
    if set(found["codes"]) != {0}:
        raise RuntimeError(f"errors were answered: {found['codes']}")
    return spent / found["requests"] * 1e6


def read_us(
    server: BareServer | KbrokerBroker, load: Load, frames: list[bytes], seconds: float
) -> float:
    """CPU of the server for one MB read, in microseconds; every socket has one request out."""
    room = memoryview(bytearray(4 << 20))
    wanted = read_bytes = 0
    with connected(server.address, load.sockets) as sockets:
        before, end = server.cpu_seconds(), time.monotonic() + seconds
        for one in sockets:
            one.sendall(frames[0])
        while time.monotonic() < end:
            wanted += 1
            for one in sockets:
                read_bytes += read_response(one, room)
                one.sendall(frames[wanted % len(frames)])
        for one in sockets:
            read_bytes += read_response(one, room)
        spent = server.cpu_seconds() - before
    return spent / read_bytes * 1e12


def read_response(one: socket.socket, room: memoryview) -> int:
    """Read one response; returns its size. A short one is an error and not counted."""
    head = one.recv(4, socket.MSG_WAITALL)
    (size,) = struct.unpack(">i", head)
    if size < 1 << 19:
        raise RuntimeError(f"a response of {size} bytes has no records")
    got = 0
    while got < size:
        got += one.recv_into(room[got:size])
    return size


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """{cell: {"bare" or "kbroker": figures}}, the two in turns."""
    batch = record_batch(random_values(150, 100, seed=1))
    found: dict[str, dict[str, list[float]]] = {}
    topic = fresh_name("limit")
    with (
        BareServer(options.place, topic, batch) as bare,
        KbrokerBroker(options.place, CPU_OVERRIDES) as kbroker,
    ):
        for name in options.cells:
            load = LOADS[name]
            figures = found[name] = {"bare": [], "kbroker": []}
            for _ in range(options.runs):
                if load.reads:
                    frames = filled(kbroker, topic, batch)
                    figures["bare"].append(read_us(bare, load, frames, options.seconds))
                    figures["kbroker"].append(read_us(kbroker, load, frames, options.seconds))
                else:
                    wait_until_writable(create_topic(kbroker.bootstrap, topic, 8), topic)
                    figures["bare"].append(produced_us(bare, load, topic, 1, options.seconds))
                    bare.empty()
                    figures["kbroker"].append(produced_us(kbroker, load, topic, 8, options.seconds))
                delete_topic(kbroker.bootstrap, topic)
                time.sleep(1.5)
    return found


def filled(kbroker: KbrokerBroker, topic: str, batch: bytes) -> list[bytes]:
    """A topic of CHUNKS times CHUNK_BATCHES batches, and the requests that read it."""
    leaders = create_topic(kbroker.bootstrap, topic, 1)
    wait_until_writable(leaders, topic)
    with RawClient(kbroker.address) as client:
        start = 1  # behind the record of wait_until_writable
        for _ in range(CHUNKS * CHUNK_BATCHES + CHUNK_BATCHES):
            if code := client.produce(topic, 0, batch):
                raise RuntimeError(f"error {code}")
    return [
        fetch_frame(topic, 0, start + 150 * CHUNK_BATCHES * chunk, len(batch) * CHUNK_BATCHES)
        for chunk in range(CHUNKS)
    ]


def line(name: str, figures: dict[str, list[float]]) -> str:
    load = LOADS[name]
    bare, kbroker = median(figures["bare"]), median(figures["kbroker"])
    ratio = median(k / b for k, b in zip(figures["kbroker"], figures["bare"], strict=True))
    unit = "us/MB" if load.reads else "us"
    verdict = "pass" if ratio <= load.bar else "MISS"
    return (
        f"{load.title:<36} bare {bare:7.1f} {unit:<5}  kbroker {kbroker:7.1f} {unit:<5}"
        f"  {ratio:.2f}x  <= {load.bar:g}x {verdict}  (aim {load.aim:g}x)"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", default=",".join(LOADS), type=lambda text: text.split(","))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--place", default="/dev/shm", help="where the data directories go")
    parser.add_argument("--json", action="store_true", help="all figures instead of the table")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.cells) - set(LOADS)):
        parser.error(f"no cell {', '.join(unknown)}; there are {', '.join(LOADS)}")
    found = measure(options)
    print(json.dumps(found) if options.json else "\n".join(line(*one) for one in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
