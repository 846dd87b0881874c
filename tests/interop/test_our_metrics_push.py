"""What our clients push of their metrics, as Apache Kafka and OpenTelemetry's own classes read it
(KIP-714).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.brokers.kafka_servers import Kafka39
from support.drivers.java import FIRST_TEST_TIMEOUT_S, SOURCES, classes_of, java_missing

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.testing import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

LINE = re.compile(r"(true|false) (\S+) \[(.*?)\] (\S+) (\S+) \[(.*?)\] (\S+)")


class Number(NamedTuple):
    is_last: bool
    client: str
    resource: str
    kind: str
    name: str
    tags: str
    value: float


class ReceivingKafka(Kafka39):
    """A Kafka with a plug-in that writes down what clients push."""

    @property
    def pushed_path(self) -> Path:
        return self.home / "pushed"

    def command(self) -> list[str]:
        words = self.java(
            "kafka.Kafka", str(self.properties), options=[f"-Dpushed.metrics={self.pushed_path}"]
        )
        sources = [SOURCES / "telemetry" / "PushedMetrics.java"]
        at = words.index("-cp") + 1
        words[at] += f":{classes_of(self.version, 'kafka-clients', sources)}"
        return words

    def numbers(self) -> list[Number]:
        if not self.pushed_path.exists():
            return []
        found = map(LINE.fullmatch, self.pushed_path.read_text().splitlines())
        return [
            Number(row[1] == "true", *row.group(2, 3, 4, 5, 6), float(row[7]))
            for row in found
            if row is not None
        ]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ReceivingKafka]:
    with ReceivingKafka(tmp_path, **{"metric.reporters": "PushedMetrics"}) as running:
        running.run(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", running.bootstrap, "--alter"),
            *("--entity-type", "client-metrics", "--entity-name", "all"),
            *("--add-config", "interval.ms=200,metrics=org.apache.kafka."),
        )
        yield running


def test_kafka_takes_what_our_clients_push(kafka: ReceivingKafka) -> None:
    settings = {"bootstrap_servers": kafka.bootstrap}
    producer = KafkaProducer(settings)
    consumer = KafkaConsumer(settings, group_id="g", auto_offset_reset="earliest")
    ids = producer.client_instance_id(60), consumer.client_instance_id(60)
    for _ in range(100):
        producer.send("orders", b"x" * 100)
    producer.flush(60)
    consumer.subscribe(["orders"])
    read = 0

    def is_read() -> bool:
        nonlocal read
        read += len(consumer.poll(0.2))
        return read == 100

    wait_until(is_read, timeout=60)
    consumer.close()
    producer.close()

    rows = kafka.numbers()

    def added(client: str | None, name: str) -> float:
        """Kafka asks for what was added since the last push."""
        found = [row for row in rows if row.client == client and row.name.endswith(name)]
        assert {row.kind for row in found} == {"AGGREGATION_TEMPORALITY_DELTA"}, found
        return sum(row.value for row in found)

    assert added(ids[0], "kafka.producer.record.send.total") == 100
    assert added(ids[0], "kafka.producer.topic.record.send.total") == 100
    assert added(ids[1], "kafka.consumer.fetch.manager.records.consumed.total") == 100
    assert {row.resource for row in rows if row.client == ids[1]} == {"group_id=g"}
    assert {row.client for row in rows if row.is_last} == set(ids)
    gauges = {row.name for row in rows if row.kind == "GAUGE"}
    assert "org.apache.kafka.producer.record.queue.time.avg" in gauges
    assert "org.apache.kafka.consumer.coordinator.assigned.partitions" in gauges
    tags = {row.tags for row in rows if row.name.endswith("producer.node.request.total")}
    assert tags == {"node_id=node-1"}
