"""The cleaner and the io workers are killed while logs are compacted; no valid record is lost.

Values are written all along, to few keys, so that the cleaner has always something to do; a reader
follows and must see every offset once, in order, up to the end. Kills come at random times; a
failure prints the seed.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.running.grids import some_of
from support.running.pace import hold

from kbroker.testing import Broker
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.fault

KEYS = 40
KILLS = 5
CLEANER = ("cleaner", 0)
IO_WORKERS = (("io", 0), ("io", 1))
VICTIMS = {"cleaner": (CLEANER,), "io": IO_WORKERS, "both": (CLEANER, *IO_WORKERS)}
SETTINGS = {
    "log.cleaner.backoff.ms": 1,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "worker.restart.backoff.ms": 1,
}
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "100000",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}


def read_all(broker: Broker, partition: int) -> list[tuple[int, bytes, bytes | None]]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "all", "enable.partition.eof": True,
         "enable.auto.commit": False, "check.crcs": True}
    )  # fmt: skip
    consumer.assign([TopicPartition("t", partition, 0)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "no end of the partition within 20 s"
        if message.error():
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize("victims", some_of(VICTIMS, ["both"]))
@pytest.mark.slow
def test_kills_during_compaction_lose_no_last_value(
    tmp_path: Path, victims: str, seed: int
) -> None:
    draw = random.Random(seed)
    last: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    failures: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)
            return
        place = (message.partition(), message.key())
        last[place] = max(last.get(place, (-1, None)), (message.offset(), message.value()),
                          key=lambda entry: entry[0])  # fmt: skip

    with Broker(SETTINGS, directory=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1, config=TOPIC)])["t"].result(10)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.size": 8000,
            }
        )
        for number in range(KILLS):
            until = time.monotonic() + draw.uniform(0.2, 0.8)
            while time.monotonic() < until:
                for _ in range(60):
                    key = b"key-%d" % draw.randrange(KEYS)
                    value = None if draw.random() < 0.1 else b"%d-" % number + b"v" * 50
                    producer.produce(
                        "t",
                        key=key,
                        value=value,
                        partition=draw.randrange(2),
                        on_delivery=on_delivery,
                    )
                producer.flush(0.01)
                hold(0.02)
            broker.kill(*draw.choice(VICTIMS[victims]))
        assert producer.flush(30) == 0 and not failures
        wait_until(lambda: len(broker.pids) == 8, what="all processes run")
        data = Path(broker.data_dir)

        def is_compact() -> bool:
            checkpoint = data / "cleaner-offset-checkpoint"
            lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
            ends = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}
            return all(
                ends.get(("t", str(p))) == max(int(f.stem) for f in (data / f"t-{p}").glob("*.log"))
                for p in range(2)
            )

        wait_until(is_compact, timeout=30)
        for partition in range(2):
            records = read_all(broker, partition)
            offsets = [offset for offset, _, _ in records]
            assert offsets == sorted(set(offsets))
            found = {key: (offset, value) for offset, key, value in records}
            expected = {key: entry for (p, key), entry in last.items() if p == partition}
            assert found == expected
        assert "cannot be compacted" not in broker.log_text
        assert "offline" not in broker.log_text
