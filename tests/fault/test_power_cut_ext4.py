"""A real file system loses unsynced data: ext4 on a file, shut down by force, for root.

What ``test_power_cut_broker`` promises by its own rules about disks, here by those of the kernel.
Everything is stopped for the moment of the cut: ext4 drops errors of a sync that a forced shutdown
meets halfway, which a power failure does not.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest
from fault.disks import failing_disk
from support.clients.wire_client import WireClient, batch_of

from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

CUTS = 3
TOPIC = "ext4"
SETTINGS = {
    "log.flush.interval.messages": 1,
    "log.segment.bytes": 20_000,
    "log.index.size.max.bytes": 4096,
    "log.flush.offset.checkpoint.interval.ms": 100,
}


def append_until_the_cut(broker: Broker, acked: list[bytes]) -> None:
    """One record after another; returns the acknowledged ones."""
    try:
        # The cut closes the connection; until then a disk may take its time.
        with WireClient((broker.host, broker.port), timeout=60) as client:
            while True:
                value = b"%d " % len(acked) + b"v" * (len(acked) % 700)
                response = client.produce(TOPIC, {0: batch_of([value])}, acks=-1)[0]
                if response.error_code:
                    return
                assert response.base_offset == len(acked)
                acked.append(value)
    except OSError:
        return


def stop_everything(broker: Broker) -> None:
    """When this returns, no thread of the broker is running or in a system call."""
    pids = [broker.pid, *broker.pids.values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def is_stopped(pid: int) -> bool:
        states = [path.read_text().rpartition(")")[2].split()[0]
                  for path in Path(f"/proc/{pid}/task").glob("*/stat")]  # fmt: skip
        return set(states) == {"T"}

    wait_until(lambda: all(map(is_stopped, pids)), 10, "stopped")


def test_cut_of_a_real_file_system_loses_nothing_acknowledged(
    tmp_path: Path, seed: int, scale: int
) -> None:
    chance = random.Random(seed)
    acked: list[bytes] = []
    topics = 0
    with failing_disk(tmp_path / "disk") as disk:
        broker = Broker(SETTINGS, directory=tmp_path / "b", log_dirs=disk.path / "data")
        try:
            broker.start()
            with WireClient((broker.host, broker.port)) as client:
                client.create_topic(TOPIC)
            for _ in range(CUTS * scale):
                enough = len(acked) + chance.randrange(20, 400)
                writer = threading.Thread(target=append_until_the_cut, args=(broker, acked))
                writer.start()
                with WireClient((broker.host, broker.port)) as client:
                    client.create_topic(f"other-{topics}")
                    topics += 1
                wait_until(lambda n=enough, sent=acked: len(sent) >= n, 60, "enough is written")
                stop_everything(broker)
                disk.fail()
                broker.kill_all()
                writer.join()
                disk.repair()
                broker.start()
                with WireClient((broker.host, broker.port)) as client:
                    names = [TOPIC, *(f"other-{n}" for n in range(topics))]
                    found = client.metadata(*names).topics
                    assert not [topic.name for topic in found if topic.error_code]
                    (records,) = wait_until(lambda c=client: (c.read_all(TOPIC, 0),), 10, "read")
                    values = [record.value for record in records]
                    assert values[: len(acked)] == acked
                    # The record in flight may or may not have survived.
                    assert len(values) <= len(acked) + 1
                    acked += values[len(acked) :]
                assert "Traceback" not in broker.log_text, broker.log_text[-3000:]
        finally:
            broker.close()
