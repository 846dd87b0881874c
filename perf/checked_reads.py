"""The cost of checking batches before they are first sent, for a consumer reading from the page
cache.

A network process's CPU per GB: of records that the broker has just written (the owner vouches for
them), of the same after a clean restart when they are read for the first time, and when they are
read again. ``--other DIR`` adds a broker of another built checkout, in turns with this one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kbroker.protocol import codec
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.testing import Broker
from perf.frames import record_batch
from perf.process_tree import cpu_seconds_of
from perf.raw_client import RawClient, wait_for_leaders, wait_until_writable

TOPIC = "checked"
FETCH_KEY, FETCH_VERSION = 1, 11
RECORDS, RECORD_BYTES = 150, 100
MIB = 1 << 20
# The position of the record set's size in a response of that version for one partition.
SIZE_AT = 4 + 4 + 2 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4
SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 1,
    "log.check.io.max.bytes.per.second": 0,
    "log.segment.bytes": 256 * MIB,
}


class Subject:
    """A broker, and passes over all its data."""

    def __init__(self, directory: Path, checkout: str | None) -> None:
        settings = dict(SETTINGS)
        if checkout is not None:
            del settings["log.check.io.max.bytes.per.second"]  # of a checkout before it
        before = os.environ.get("PYTHONPATH")
        if checkout is not None:
            os.environ["PYTHONPATH"] = checkout
        try:
            self.broker = Broker(settings, directory=directory)
            self.broker.start()
        finally:
            os.environ.pop("PYTHONPATH", None)
            if before is not None:
                os.environ["PYTHONPATH"] = before
        self.batch = record_batch([b"v" * RECORD_BYTES] * RECORDS)
        self.end = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.broker.host, self.broker.port

    def fill(self, size: int) -> None:
        leaders = wait_for_leaders(self.address, TOPIC, auto_create=True)
        wait_until_writable(leaders, TOPIC)
        with RawClient(self.address) as client:
            for _ in range(size // len(self.batch)):
                assert client.produce(TOPIC, 0, self.batch) == 0
        self.end = 1 + size // len(self.batch) * RECORDS

    def read(self) -> float:
        """CPU seconds per GB of the network process, for one pass."""
        pid = next(pid for name, pid in self.broker.pids.items() if "network" in name)
        began = cpu_seconds_of(pid)
        offset, total = 1, 0  # behind the record that showed that it takes some
        with RawClient(self.address) as client:
            while offset < self.end:
                response = client.call(fetch_frame(offset))
                (size,) = struct.unpack_from(">i", response, SIZE_AT)
                assert size > 0, response[:SIZE_AT]
                total += size
                offset += max(size // len(self.batch), 1) * RECORDS
        return (cpu_seconds_of(pid) - began) / total * 1e9


def fetch_frame(offset: int) -> bytes:
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    topic = cls.FetchTopic(topic=TOPIC, partitions=[part])
    body = codec.encode(
        cls(max_wait_ms=0, min_bytes=1, max_bytes=MIB, topics=[topic]), FETCH_VERSION
    )
    head = struct.pack(">hhih", FETCH_KEY, FETCH_VERSION, 1, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def measure(size: int, passes: int, other: str | None) -> dict[str, list[float]]:
    """CPU s/GB of each pass, by kind of log."""
    found: dict[str, list[float]] = {"written": [], "other": [], "first": [], "again": []}
    with tempfile.TemporaryDirectory() as directory:
        subjects = [Subject(Path(directory) / "this", None)]
        if other is not None:
            subjects.append(Subject(Path(directory) / "other", other))
        try:
            for subject in subjects:
                subject.fill(size)
                subject.read()
            for _ in range(passes):
                for name, subject in zip(("written", "other"), subjects, strict=False):
                    found[name].append(subject.read())
            subjects[0].broker.restart()
            found["first"].append(subjects[0].read())
            for _ in range(passes):
                found["again"].append(subjects[0].read())
        finally:
            for subject in subjects:
                subject.broker.close()
    return {name: values for name, values in found.items() if values}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--other", help="a built checkout to compare with")
    options = parser.parse_args(arguments)
    found = measure(options.mib * MIB, options.passes, options.other)
    base = statistics.median(found["written"])
    for name, values in found.items():
        middle = statistics.median(values)
        ratio = middle / base if base else 0.0
        print(
            f"{name:8} {middle:.4f} CPU s/GB ({min(values):.4f} to {max(values):.4f},"
            f" {len(values)} passes), {ratio:.3f} of written"
        )


if __name__ == "__main__":
    main()
