"""Metrics that real clients push to a broker, and what becomes of them (KIP-714)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.brokers.process_harness import http_get
from support.surfaces.dashboards import Scrape
from support.surfaces.otlp import distribution, histogram, metrics_data

confluent_kafka = pytest.importorskip("confluent_kafka")

from kbroker.cli import command  # noqa: E402
from kbroker.client import KafkaConsumer, KafkaProducer  # noqa: E402
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.metastore.node_file import NodeFile  # noqa: E402
from kbroker.metastore.paths import CLIENT_METRICS_CONFIGS  # noqa: E402
from kbroker.protocol.messages.get_telemetry_subscriptions import (  # noqa: E402
    GetTelemetrySubscriptionsRequest,
)
from kbroker.protocol.messages.push_telemetry import PushTelemetryRequest  # noqa: E402
from kbroker.testing import Broker, wait_until  # noqa: E402

pytestmark = pytest.mark.integration

PRODUCER = re.compile(r"^kbroker_client_producer_")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def scrape(broker: Broker) -> Scrape:
    status, text = http_get(broker, "/metrics")
    assert status == 200
    return Scrape(text)


def pushed(broker: Broker) -> dict[str, dict[str, str]]:
    """The labels of a series of each metric that a producer has pushed."""
    return {
        name: dict(next(iter(series)))
        for name, series in scrape(broker).values.items()
        if PRODUCER.match(name)
    }


def config(broker: Broker, *words: str) -> None:
    assert command.main(["config", *words, "-b", broker.bootstrap]) == 0


def test_librdkafka_pushes_what_a_subscription_asks_for(broker: Broker) -> None:
    setting = "metrics=org.apache.kafka.producer.,interval.ms=200,match=client_id=billing"
    config(broker, "set", "client-metrics", "rates", *setting.split(","))
    settings = {"bootstrap.servers": broker.bootstrap, "client.id": "billing"}
    producer = confluent_kafka.Producer(settings)
    other = confluent_kafka.Producer(settings | {"client.id": "audit"})
    for one in (producer, other):
        one.produce("orders", b"x")
        one.flush(30)

    def polled() -> dict[str, dict[str, str]]:
        producer.poll(0.1)
        return pushed(broker)

    wait_until(polled, timeout=60)
    found = pushed(broker)

    assert {labels["client_id"] for labels in found.values()} == {"billing"}
    labels = next(iter(found.values()))
    assert labels["client_software_name"] == "confluent-kafka-python"
    assert len(labels["client_instance_id"]) == 22
    # Without a subscription nobody is told anything any more.
    config(broker, "unset", "client-metrics", "rates", "metrics", "interval.ms", "match")
    wait_until(lambda: not pushed(broker))


def test_pushed_histogram_is_told_with_its_buckets(broker: Broker) -> None:
    config(broker, "set", "client-metrics", "all", "metrics=*", "interval.ms=100")
    latency = distribution([1.0, 10.0], [5, 0, 2], 40.5, {"topic": "orders"})
    data = metrics_data([histogram("org.apache.kafka.producer.latency", latency, is_delta=False)])

    def buckets() -> dict[str, float]:
        found = scrape(broker).values.get("kbroker_client_producer_latency_bucket", {})
        assert all(dict(labels)["topic"] == "orders" for labels in found)
        return {dict(labels)["le"]: value for labels, value in found.items()}

    def push() -> dict[str, float]:
        with Cluster(broker.bootstrap, client_id="billing") as cluster:
            asked = cluster.call(
                None, GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)), what="ask"
            )
            request = PushTelemetryRequest(
                client_instance_id=asked.client_instance_id,
                subscription_id=asked.subscription_id,
                metrics=data,
            )
            told = cluster.call(None, request, what="push")
            assert asked.requested_metrics in ([], [""])
            return buckets() if told.error_code == 0 else {}

    wait_until(push)

    assert push() == {"1.0": 5, "10.0": 5, "+Inf": 7}
    values = scrape(broker).values
    assert set(values["kbroker_client_producer_latency_sum"].values()) == {40.5}
    assert set(values["kbroker_client_producer_latency_count"].values()) == {7}


def test_subscription_outlives_the_broker(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    config(broker, "set", "client-metrics", "all", "metrics=*", "interval.ms=100")
    broker.restart()
    capsys.readouterr()

    config(broker, "get", "client-metrics", "all", "-o", "json")

    out = capsys.readouterr().out
    assert '"interval.ms"' in out
    assert '"100"' in out


def test_store_of_an_older_broker_gets_the_node_for_subscriptions(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.stop()
    store = NodeFile(str(broker.data_dir))
    if store.exists(CLIENT_METRICS_CONFIGS) is not None:
        store.delete(CLIENT_METRICS_CONFIGS)
    store.close()
    broker.start()

    config(broker, "set", "client-metrics", "all", "metrics=*", "interval.ms=100")
    capsys.readouterr()
    config(broker, "get", "client-metrics", "all")

    assert "interval.ms" in capsys.readouterr().out


# -- our own clients


def figure(told: Broker | Scrape, name: str, client_id: str) -> float | None:
    """The value that a client has pushed, of the series with that client id; None without one."""
    page = scrape(told) if isinstance(told, Broker) else told
    rows = page.values.get(f"kbroker_client_{name}", {})
    found = [value for labels, value in rows.items() if dict(labels)["client_id"] == client_id]
    return sum(found) if found else None


def test_our_clients_push_what_a_subscription_asks_for_and_no_others(broker: Broker) -> None:
    setting = "metrics=org.apache.kafka.,interval.ms=200,match=client_id=shop-.*"
    config(broker, "set", "client-metrics", "shop", *setting.split(","))
    settings = {"bootstrap_servers": broker.bootstrap}
    with (
        KafkaProducer(settings, client_id="shop-writer") as producer,
        KafkaProducer(settings, client_id="other") as other,
        KafkaConsumer(
            settings, client_id="shop-reader", group_id="shop", auto_offset_reset="earliest"
        ) as consumer,
    ):
        for one in (producer, other):
            for _ in range(100):
                one.send("orders", b"x" * 100)
            one.flush(30)
        consumer.subscribe(["orders"])
        read = 0

        def is_told() -> bool:
            nonlocal read
            read += len(consumer.poll(0.1))
            if read < 200:
                return False
            page = scrape(broker)
            sent = figure(page, "producer_record_send_total", "shop-writer")
            told = figure(page, "consumer_fetch_manager_records_consumed_total", "shop-reader")
            return (sent, told) == (100, 200)

        wait_until(is_told, timeout=60)

        rows = scrape(broker).values
        [labels] = rows["kbroker_client_consumer_coordinator_assigned_partitions"]
        assert dict(labels)["group_id"] == "shop"
        assert dict(labels)["client_software_name"] == "kbroker-client"
        assert dict(labels)["client_instance_id"] == consumer.client_instance_id(10)
        topics = rows["kbroker_client_producer_topic_record_send_total"]
        assert {dict(labels)["topic"]: n for labels, n in topics.items()} == {"orders": 100}
        assert figure(broker, "producer_record_send_total", "other") is None


def test_last_push_of_our_client_has_what_the_one_before_lacks(broker: Broker) -> None:
    """It comes with ``close``, long before the interval is over."""
    config(broker, "set", "client-metrics", "all", "metrics=*", "interval.ms=3600000")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, client_id="short")
    assert producer.client_instance_id(30)
    producer.send("orders", b"x").result(30)
    assert figure(broker, "producer_record_send_total", "short") is None

    producer.close(30)

    wait_until(lambda: figure(broker, "producer_record_send_total", "short") == 1)


def test_our_client_finds_a_subscription_that_is_made_later(broker: Broker) -> None:
    """A broker without one announces nothing, so nothing is asked; a new connection finds it."""
    with KafkaProducer(bootstrap_servers=broker.bootstrap, client_id="early") as producer:
        producer.send("orders", b"x").result(30)
        assert producer.client_instance_id(5) is None
        config(broker, "set", "client-metrics", "all", "metrics=*", "interval.ms=100")

        wait_until(lambda: producer.client_instance_id(5) is not None)
        wait_until(lambda: figure(broker, "producer_record_send_total", "early") == 1)
