"""librdkafka's idempotent producer repeats records of its own accord when it gives up another one.

What it gives up after ``message.timeout.ms`` leaves a gap in the sequence numbers, so it begins a
new epoch, and sends everything without a response again with other numbers: also what is in the
log. A broker cannot tell that from new records. Beside Apache Kafka, to know that it is so there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fault.proxy import Proxy
from support.brokers.kafka_servers import Kafka27
from support.brokers.zookeeper import ZooKeeperServer
from support.clients.wire_client import WireClient
from support.faults.history import History, LoggedRecord, value_of
from support.faults.load import read_partition
from support.faults.producer_record import ProducerRecord
from support.running.pace import hold

from kbroker.testing import Broker, wait_until
from perf.brokers import free_ports

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "t"
GIVE_UP_MS = 20_000
PATIENCE_S = 60.0


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """No response to a Produce arrives."""
    with Proxy(1, silent=1.0) as made:
        yield made


@pytest.fixture(params=["kbroker", "kafka"])
def broker(
    request: pytest.FixtureRequest, proxy: Proxy, tmp_path: Path
) -> Iterator[tuple[str, int]]:
    """The address of a broker that clients reach by the proxy after their first connection."""
    port = free_ports(1)[0]
    listeners = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}",
    }
    proxy.upstream = ("127.0.0.1", port)
    with ExitStack() as stack:
        if request.param == "kbroker":
            stack.enter_context(Broker(listeners))
        else:
            zookeeper = stack.enter_context(ZooKeeperServer(tmp_path / "zookeeper"))
            place = f"{zookeeper.connect}/kafka"
            stack.enter_context(Kafka27(tmp_path / "kafka", place, port=port, **listeners))
        yield proxy.upstream


def test_records_without_a_response_are_repeated_when_another_is_given_up(
    broker: tuple[str, int], proxy: Proxy, tmp_path: Path
) -> None:
    history = History()
    writer = history.writer("w", TOPIC, exact=True)
    record = ProducerRecord(tmp_path / "producer.log", writer.epochs)
    bootstrap = f"127.0.0.1:{broker[1]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": GIVE_UP_MS,
            "linger.ms": 0,
            "socket.timeout.ms": 1000,
            "reconnect.backoff.max.ms": 100,
            **record.settings,
        }
    )

    def told(error: Any, message: Any) -> None:
        number = int(message.key())
        if error is not None:
            writer.fail(0, number, str(error))
        else:
            writer.ack(0, number, message.offset())

    def send(number: int) -> None:
        writer.sent.append((0, number))
        value = value_of("w", 0, number)
        producer.produce(TOPIC, value, b"%d" % number, partition=0, on_delivery=told)

    def log() -> list[LoggedRecord]:
        with WireClient(broker) as client:
            return read_partition(client, TOPIC, 0)

    def has(records: int) -> bool:
        producer.poll(0)
        return len(log()) >= records

    send(0)
    wait_until(lambda: has(1), PATIENCE_S, "the first record is in the log")
    hold(GIVE_UP_MS / 2000)  # the next one would be given up later
    send(1)
    wait_until(lambda: has(2), PATIENCE_S, "the second one is in the log, too")
    wait_until(
        lambda: producer.poll(0.01) is not None and writer.failed, PATIENCE_S, "one is given up"
    )
    proxy.heal()
    assert producer.flush(PATIENCE_S) == 0

    assert [(number, "_MSG_TIMED_OUT" in why) for _, _, number, why in writer.failed] == [(0, True)]
    assert [number for _, _, number, _ in writer.acked] == [1]
    found = log()
    assert [one.value for one in found] == [value_of("w", 0, n) for n in (0, 1, 1)]
    assert found[2].producer[1] > found[1].producer[1], "the copy is of a later epoch"
    assert history.check({(TOPIC, 0): found}) == []
    writer.epochs.clear()
    assert history.check({(TOPIC, 0): found})
