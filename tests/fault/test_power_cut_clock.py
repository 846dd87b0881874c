"""Power failures of real file systems, with acknowledgements and failure on the same clock, for
root.

Nothing is stopped for the cut: a writer is in the middle of whatever it does. It notes when each
record is acknowledged, and the test notes when it cuts; what was acknowledged before that is there
afterwards. (What is acknowledged later is no promise: file systems report success to a sync that a
forced shutdown meets halfway.)
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault.disks import FailingDisk, failing_disk
from support.clients.wire_client import WireClient, batch_of
from support.storage.log_store import LogStore, batch, stored_values

from kbroker.descriptors import readable
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

KINDS = ("ext4", "xfs")
CUTS, BROKER_CUTS = 10, 1
# After this many cuts the topics are deleted and others created.
CUTS_OF_TOPICS = 20
LOGS = 4
CONFIG = {
    "flush.messages": 1,
    "segment.bytes": 6000,
    "index.interval.bytes": 200,
    "segment.index.bytes": 4096,
    "file.delete.delay.ms": 0,
}
ACK = struct.Struct("<qqq")
SETTINGS = {
    "log.flush.interval.messages": 1,
    "log.segment.bytes": 20_000,
    "log.index.size.max.bytes": 4096,
    "log.flush.offset.checkpoint.interval.ms": 100,
}
TOPICS = ("one", "two", "three")


@pytest.fixture
def memory() -> Iterator[Path]:
    """The directory for the images: in memory, if there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


def value_of(log: int, offset: int) -> bytes:
    return b"%d-%d-" % (log, offset) + b"v" * (offset * 37 % 900)


# ---- storage alone: many cuts ----


def open_logs(store: LogStore, generation: int) -> list[PartitionLog]:
    return [store.open(f"t{generation}", n, n, **CONFIG) for n in range(LOGS)]


def write(root: Path, generation: int, seed: int, pipe: int) -> None:
    """Append and sync as an io worker does at the end of its turns, until killed or rejected."""
    chance = random.Random(seed)
    store = LogStore(root)
    logs = open_logs(store, generation)
    while True:
        chosen = chance.sample(range(LOGS), chance.randrange(1, LOGS + 1))
        places = []
        for number in chosen:
            log = logs[number]
            offset = log.log_end_offset
            code, *_ = log.appender.append_batch(batch([value_of(number, offset)]), 1)
            assert code == 0
            places.append((number, offset))
        for number in chosen:
            logs[number].appender.sync_now()
            logs[number].publish()
        now = time.monotonic_ns()
        os.write(pipe, b"".join(ACK.pack(*place, now) for place in places))
        if chance.random() < 0.05:
            store.clock.advance(70_000)
            store.manager.tick()


class Writer:
    """``write`` in a process of its own. acks: (log, offset, time of the acknowledgement)."""

    def __init__(self, root: Path, generation: int, seed: int) -> None:
        self.pipe, into = os.pipe()
        self.acks: list[tuple[int, int, int]] = []
        self.pid = os.fork()
        if self.pid == 0:
            faulthandler.disable()  # a store into a mapped index of a dead disk is a SIGBUS
            try:
                write(root, generation, seed, into)
            finally:
                os._exit(1)
        os.close(into)

    def wait_for(self, count: int) -> None:
        while len(self.acks) < count and readable([self.pipe], 60):
            if not self._read():
                return

    def _read(self) -> bool:
        data = os.read(self.pipe, ACK.size * 100)
        self.acks += ACK.iter_unpack(data)
        return bool(data)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        while self._read():
            pass
        os.close(self.pipe)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_of_a_file_system_keeps_what_was_acknowledged_before(
    memory: Path, kind: str, seed: int, scale: int
) -> None:
    chance = random.Random(seed)
    counts = {"before": 0, "after": 0, "after and there": 0}
    with failing_disk(memory / "disk", kind=kind) as disk:
        generation, ends = 0, [0] * LOGS
        for number in range(CUTS * scale):
            writer = Writer(disk.path, generation, chance.getrandbits(32))
            writer.wait_for(chance.randrange(1, 60))
            cut_ns = time.monotonic_ns()
            disk.fail()
            writer.kill()
            disk.repair()
            store = LogStore(disk.path)
            found = [dict(stored_values(log)) for log in open_logs(store, generation)]
            for log, offset, at in writer.acks:
                is_there = found[log].get(offset) == value_of(log, offset)
                assert is_there or at > cut_ns, (
                    f"cut {number}: offset {offset} of log {log}, acknowledged "
                    f"{(cut_ns - at) / 1e6:.3f} ms before the cut, is gone"
                )
                counts["before" if at < cut_ns else "after"] += 1
                counts["after and there"] += at > cut_ns and is_there
            for log, values in enumerate(found):
                assert sorted(values) == list(range(len(values)))
                assert all(values[n] == value_of(log, n) for n in values)
                assert len(values) >= ends[log]
                ends[log] = len(values)
            if number % CUTS_OF_TOPICS == CUTS_OF_TOPICS - 1:
                store.manager.remove_partitions(range(LOGS))
                store.manager.tick()
                generation, ends = generation + 1, [0] * LOGS
            store.stop(clean=False)
    print(f"{kind}: {CUTS * scale} cuts; acknowledged {counts}")


# ---- a whole broker ----


class Producer(threading.Thread):
    """Sends one record after another. acked: the time of each acknowledgement."""

    def __init__(self, broker: Broker, topic: str, first: int) -> None:
        super().__init__()
        self.broker = broker
        self.topic = topic
        self.first = first
        self.acked: list[int] = []

    def run(self) -> None:
        log = TOPICS.index(self.topic)
        try:
            with WireClient((self.broker.host, self.broker.port), timeout=60) as client:
                while True:
                    offset = self.first + len(self.acked)
                    response = client.produce(
                        self.topic, {0: batch_of([value_of(log, offset)])}, acks=-1
                    )[0]
                    at = time.monotonic_ns()
                    if response.error_code:
                        return
                    assert response.base_offset == offset
                    self.acked.append(at)
        except OSError:
            return


def cut_a_broker(broker: Broker, disk: FailingDisk, ends: list[int], pause: float) -> None:
    """Cut the power while it works, start it again, and compare; ``ends`` follows."""
    producers = [Producer(broker, topic, end) for topic, end in zip(TOPICS, ends, strict=True)]
    for producer in producers:
        producer.start()
    wait_until(lambda: all(len(one.acked) > 3 for one in producers), 60, "it takes records")
    readable([], pause)
    cut_ns = time.monotonic_ns()
    disk.fail()
    broker.kill_all()
    for producer in producers:
        producer.join()
    disk.repair()
    broker.start()
    with WireClient((broker.host, broker.port)) as client:
        for log, producer in enumerate(producers):
            before = sum(at < cut_ns for at in producer.acked)
            (records,) = wait_until(
                lambda t=producer.topic: (client.read_all(t, 0),), 10, "all is read"
            )
            values = [record.value for record in records]
            assert values == [value_of(log, n) for n in range(len(values))]
            promised = ends[log] + before
            assert len(values) >= promised, (
                f"{producer.topic} has {len(values)} of {promised} records; the last were "
                f"acknowledged {[(cut_ns - at) / 1e6 for at in producer.acked[-3:]]} ms before"
            )
            ends[log] = len(values)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_under_a_broker_keeps_what_was_acknowledged_before(
    memory: Path, tmp_path: Path, kind: str, seed: int, scale: int
) -> None:
    chance = random.Random(seed)
    with failing_disk(memory / "disk", kind=kind) as disk:
        broker = Broker(SETTINGS, directory=tmp_path / "b", log_dirs=disk.path / "data")
        try:
            broker.start()
            with WireClient((broker.host, broker.port)) as client:
                for topic in TOPICS:
                    client.create_topic(topic)
            ends = [0] * len(TOPICS)
            for _ in range(BROKER_CUTS * scale):
                cut_a_broker(broker, disk, ends, chance.random() * 0.2)
            assert "Traceback" not in broker.log_text, broker.log_text[-3000:]
        finally:
            broker.close()
    print(f"{kind}: {BROKER_CUTS * scale} cuts, {sum(ends)} records")
