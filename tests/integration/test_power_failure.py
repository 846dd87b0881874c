"""A machine loses power with records that others have: it takes them back before it leads."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from kbroker.storage.dirs import boots
from kbroker.storage.formats import BOOT_ID_NAME
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC, PATIENCE_S = "cut", 60
LOST, OTHER = 0, 1


def lose_power(broker: Broker, log: Path, size: int) -> None:
    """The machine stops: the log keeps what was synced, and the next start is on another boot."""
    broker.kill_all()
    os.truncate(log, size)
    Path(broker.data_dir, BOOT_ID_NAME).write_text(f"{uuid.uuid4()}\n")


def log_of(broker: Broker) -> Path:
    return Path(broker.data_dir, f"{TOPIC}-0", f"{0:020}.log")


def read_all(bootstrap: str, count: int) -> list[bytes]:
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")) as one:
        one.assign([TopicPartition(TOPIC, 0)])
        found: list[bytes] = []

        def read() -> bool:
            for records in one.poll(timeout_ms=500).values():
                found.extend(record.value for record in records)
            return len(found) >= count

        wait_until(read, PATIENCE_S, f"{count} records are read")
        return found


@pytest.mark.slow  # test_lost_directories.py shows it of a lost disk, simulations of lost power
def test_last_in_sync_replica_returns_without_its_tail_and_nothing_acknowledged_is_lost() -> None:
    """The ISR is {0, 1}; 1 stops; 0 loses power and records that only 1 has now. Kafka elects 0 and
    has 1 truncate them.
    """
    settings = {"log.flush.interval.ms": 3_600_000, "num.io.threads": 1}
    with Cluster(brokers=3, config=settings) as cluster:
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
            admin.create_topics([NewTopic(TOPIC, -1, -1, replica_assignments={0: [LOST, OTHER]})])
        values = [f"{number:05}".encode() for number in range(100)]
        with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")) as producer:
            for value in values:
                producer.send(TOPIC, value, partition=0).get(timeout=PATIENCE_S)
        lost, other = cluster.brokers[LOST], cluster.brokers[OTHER]
        whole = log_of(lost).read_bytes()
        assert log_of(other).read_bytes() == whole

        other.stop()
        lose_power(lost, log_of(lost), len(whole) // 3)
        other.start()
        lost.start()

        assert read_all(cluster.bootstrap, len(values)) == values
        assert log_of(lost).read_bytes() == whole
        assert f"{TOPIC}-0: to be led in leader epoch" in lost.log_text
        wait_until(lambda: not boots.has_suspects(lost.data_dir), PATIENCE_S, "nothing is suspect")
