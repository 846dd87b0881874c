"""A disk that fills up repeatedly while a compacted topic is written and cleaned (exam E4).

Each cycle leaves the cleaner less room than its pass needs. Nothing dies, everything is read, what
was accepted stays; with space again the log is compacted and takes records.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from fault.disks import MIB, fill_up, small_disk
from support.brokers.all_processes import all_pids
from support.clients.wire_client import WireClient
from support.running.pace import hold

from kbroker.errors import ErrorCode
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

CYCLES = 2
KEYS = 50
TOPIC = "cycles"
SETTINGS = {
    "log.segment.bytes": 1 * MIB,
    "log.index.size.max.bytes": 20_000,
    "log.segment.delete.delay.ms": 50,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
}


class Expected:
    """The accepted records: the last offset and value of each key."""

    def __init__(self, client: WireClient, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.last: dict[bytes, tuple[int, bytes]] = {}

    def write(self) -> int:
        """One batch of 100 kB; returns its error code."""
        builder = BatchBuilder(0)
        records = []
        for _ in range(20):
            key = b"%d" % self.chance.randrange(KEYS)
            records.append((key, self.chance.randbytes(5000)))
            builder.append(records[-1][1], key, 1_700_000_000_000, ())
        response = self.client.produce(TOPIC, {0: builder.build()})[0]
        if response.error_code == 0:
            for delta, (key, value) in enumerate(records):
                self.last[key] = (response.base_offset + delta, value)
        return int(response.error_code)

    def is_there(self) -> bool:
        """Whether a reader finds all of it; false while segments are swapped."""
        found = {r.key: (r.offset, r.value) for r in self.client.read_all(TOPIC, 0)}
        return found == self.last


def segment_bytes(data: Path) -> int:
    size = 0
    for path in (data / f"{TOPIC}-0").glob("*.log"):
        with suppress(FileNotFoundError):  # the cleaner has just exchanged it
            size += path.stat().st_size
    return size


@pytest.mark.slow
def test_full_disk_during_compaction_is_survived_and_heals(
    tmp_path: Path, seed: int, scale: int
) -> None:
    with (
        small_disk(tmp_path / "disk", 48 * MIB) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
        WireClient((broker.host, broker.port)) as client,
    ):
        client.create_topic(TOPIC, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
        pids = all_pids(broker)
        expected = Expected(client, seed)
        for _ in range(CYCLES * scale):
            filler = fill_up(disk, leave=expected.chance.randrange(2, 6) * MIB)
            code = next(code for _ in range(1000) if (code := expected.write()))
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            hold(0.5)  # the cleaner tries as well
            assert broker.pids == pids, broker.log_text[-2000:]
            wait_until(expected.is_there, 10, "all is read")

            filler.unlink()
            wait_until(lambda: expected.write() == 0, what="it takes records")
            wait_until(lambda: segment_bytes(disk / "data") < 4 * MIB, 30, "it is compacted")
            wait_until(expected.is_there, 10, "all is read")
        assert broker.pids == pids
        assert "Traceback" not in broker.log_text, broker.log_text[-3000:]
