"""The cost of checking batches before they are first sent, for a consumer reading from the page
cache.

A network process's CPU per GB: of records that the broker has just written (the owner vouches for
them), of the same after a clean restart when they are read for the first time, and when they are
read again. ``--other DIR`` adds a broker of another built checkout, in turns with this one.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments, positive
from perf.bars import Bar, Cell, Figures
from perf.brokers import KbrokerBroker
from perf.frames import fetch_frame, record_batch
from perf.kafka_distribution import ROOT
from perf.process_tree import Meter, cpu_seconds_of
from perf.raw_client import RawClient, wait_for_leaders, wait_until_writable
from perf.runner import Report, measure_cell

TOPIC = "checked"
RECORDS, RECORD_BYTES = 150, 100
MIB = 1 << 20
# The position of the record set's size in a response to ``fetch_frame`` for one partition.
SIZE_AT = 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4
CHECK_RATE = "log.check.io.max.bytes.per.second"  # checkouts before it do not have it
SETTINGS = {
    "num.network.threads": "1",
    "num.io.threads": "1",
    CHECK_RATE: "0",
    "log.segment.bytes": str(256 * MIB),
}


class Subject(KbrokerBroker):
    """A broker, and passes over all its data."""

    def __init__(self, place: str, checkout: Path) -> None:
        is_this = checkout == ROOT
        super().__init__(
            place, {name: text for name, text in SETTINGS.items() if is_this or name != CHECK_RATE}
        )
        self.checkout = checkout
        self.batch = record_batch([b"v" * RECORD_BYTES] * RECORDS)
        self.end = 0

    def fill(self, size: int) -> None:
        leaders = wait_for_leaders(self.address, TOPIC, auto_create=True)
        wait_until_writable(leaders, TOPIC)
        with RawClient(self.address) as client:
            for _ in range(size // len(self.batch)):
                client.write(TOPIC, 0, self.batch)
        self.end = 1 + size // len(self.batch) * RECORDS

    def read(self) -> Figures:
        """CPU of the network process, for one pass."""
        offset, total = 1, 0  # behind the record that showed that it takes some
        cpu_seconds = partial(cpu_seconds_of, self.process_named("network"))
        with RawClient(self.address) as client, Meter(cpu_seconds) as used:
            while offset < self.end:
                response = client.call(fetch_frame(TOPIC, 0, offset, MIB))
                (size,) = struct.unpack_from(">i", response, SIZE_AT)
                assert size > 0, response[:SIZE_AT]
                total += size
                offset += max(size // len(self.batch), 1) * RECORDS
        return {"cpu_s_per_gb": used.cpu_s / total * 1e9}


WRITTEN, OTHER, FIRST, AGAIN = "written", "other", "first", "again"
CELL = Cell(
    "checked",
    "reads of what was just written, after a restart for the first time, and again",
    Subject.read,
    tuple(Bar("cpu_s_per_gb", ours=ours, other=WRITTEN) for ours in (OTHER, FIRST, AGAIN)),
)


def measure(report: Report, size: int, passes: int, other: str | None) -> None:
    """All passes, by kind of log."""
    checkouts = {WRITTEN: ROOT} | ({OTHER: Path(other).resolve()} if other is not None else {})
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        subjects = {
            name: stack.enter_context(Subject(place, checkout))
            for name, checkout in checkouts.items()
        }
        for subject in subjects.values():
            subject.fill(size)
            subject.read()
        ours = subjects[WRITTEN]
        results = measure_cell(
            CELL, list(subjects), passes, lambda _cell, name: subjects[name].read()
        )
        ours.halt()
        ours.start()
        for name, count in ((FIRST, 1), (AGAIN, passes)):
            results |= measure_cell(CELL, [name], count, lambda _cell, _name: ours.read())
    report.add(CELL, results)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = Arguments(__doc__)
    options.add_argument("--mib", type=int, default=1024)
    options.add_argument("--passes", type=positive(int), default=9)
    options.add_argument("--other", help="a built checkout to compare with")
    options.add_output()
    chosen = options.parse(arguments)
    report = Report(chosen)
    measure(report, chosen.mib * MIB, chosen.passes, chosen.other)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
