"""The metrics of clients at a port of their own: who may read them, by which names, and the end."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.surfaces.dashboards import Scrape

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.aio import AsyncKafkaProducer
from kbroker.client.errors import SettingRefused
from kbroker.client.monitoring.client_metrics import MetricGroup
from kbroker.client.monitoring.metrics_page import ShownClient, metrics_text, samples
from kbroker.exposition.server import CONNECTIONS_MAX
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

Address = tuple[str, int]


def ask(address: Address, path: str, host: str = "localhost", method: str = "GET") -> Any:
    """The status, and the body without the marks of its pieces."""
    with socket.create_connection(address[:2], 10) as sock:
        sock.sendall(f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def page_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "kafka-metrics-page"]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as made:
        yield made
    assert not page_threads()


def consumer(broker: FakeBroker, **settings: Any) -> KafkaConsumer:
    return KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)


def producer(broker: FakeBroker, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False, **settings)


def address_of(client: Any) -> Address:
    found: Address | None = client.metrics_address
    assert found is not None
    return found


def test_consumer_has_max_lag_by_its_old_name(broker: FakeBroker) -> None:
    with consumer(broker, kbroker_metrics_port=0, client_id="reader") as made:
        made.assign([("t", 0)])
        part = made._core.fetcher.parts["t", 0]
        part.high_watermark, part.position = 50, 8
        status, text = ask(address_of(made), "/jmx")
        assert status == 200
        beans = {row.pop("name"): row for row in json.loads(text)["beans"]}

        lag = "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag,clientId=reader"
        assert beans[lag] == {"Value": 42}
        of_part = "kafka.consumer:type=FetcherLagMetrics,name=ConsumerLag,clientId=reader"
        assert beans[f"{of_part},topic=t,partition=0"] == {"Value": 42}
        new = beans["kafka.consumer:type=consumer-fetch-manager-metrics,client-id=reader"]
        assert new["records-lag-max"] == 42
        coordinator = "kafka.consumer:type=consumer-coordinator-metrics,client-id=reader"
        assert beans[coordinator]["assigned-partitions"] == 1

        _, text = ask(address_of(made), "/jmx?qry=*name=MaxLag*")
        assert [row["name"] for row in json.loads(text)["beans"]] == [lag]
        status, text = ask(address_of(made), "/metrics")
        values = Scrape(text).values
        label = (("clientId", "reader"),)
        assert values["kafka_consumer_consumerfetchermanager_maxlag"] == {label: 42}


def test_producer_is_told_in_the_text_of_prometheus(broker: FakeBroker) -> None:
    with producer(broker, kbroker_metrics_port=0, client_id="writer") as made:
        status, text = ask(address_of(made), "/metrics")

        assert status == 200
        values = Scrape(text).values
        label = (("client_id", "writer"),)
        assert values["kafka_producer_producer_metrics_record_send_total"] == {label: 0}
        assert "# TYPE kafka_producer_producer_metrics_record_send_total counter" in text
        assert "# TYPE kafka_producer_producer_metrics_record_send_rate gauge" in text


def test_each_metric_has_one_head_however_many_clients_and_topics_have_it() -> None:
    rows = [
        MetricGroup("producer-topic-metrics", (("topic", topic),), {"byte-total": 1.0})
        for topic in ("a", "b")
    ]
    text = "".join(
        metrics_text(samples([ShownClient("kafka.producer", name, lambda: rows) for name in "xy"]))
    )

    assert text.count("# TYPE kafka_producer_producer_topic_metrics_byte_total ") == 1
    assert 'byte_total{client_id="y",topic="b"} 1.0' in text
    assert 'producertopicmetrics_bytes_total{clientId="x",topic="a"} 1.0' in text


def test_clients_with_one_port_share_a_page_until_the_last_has_closed(broker: FakeBroker) -> None:
    one = producer(broker, kbroker_metrics_port=0, client_id="one")
    address = address_of(one)
    other = consumer(broker, kbroker_metrics_port=address[1], client_id="other")
    assert address_of(other) == address
    both = ask(address, "/metrics")[1]
    assert 'client_id="one"' in both
    assert 'client_id="other"' in both

    one.close()
    left = ask(address, "/metrics")[1]
    other.close()

    assert 'client_id="one"' not in left
    assert 'client_id="other"' in left
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address, 5)


def test_nothing_listens_without_the_setting(broker: FakeBroker) -> None:
    with consumer(broker) as made:
        assert made.metrics_address is None
        assert not page_threads()


def test_page_is_for_this_machine_unless_another_address_is_set(broker: FakeBroker) -> None:
    with consumer(broker, kbroker_metrics_port=0) as made:
        assert address_of(made)[0] == "127.0.0.1"
    with consumer(broker, kbroker_metrics_port=0, kbroker_metrics_host="0.0.0.0") as made:
        assert address_of(made)[0] == "0.0.0.0"


def test_request_by_the_name_of_another_site_is_refused(broker: FakeBroker) -> None:
    with consumer(broker, kbroker_metrics_port=0, kbroker_metrics_hosts="app.local") as made:
        address = address_of(made)
        status, text = ask(address, "/metrics", "evil.example")
        assert (status, "kbroker.metrics.hosts" in text) == (403, True)
        assert ask(address, "/metrics", "App.local:99")[0] == 200
        assert ask(address, "/metrics", "127.0.0.1:99")[0] == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/jmx?x=1", "GET", 400), ("/metrics", "POST", 405)],
)
def test_other_requests_are_told_what_there_is(
    broker: FakeBroker, path: str, method: str, status: int
) -> None:
    with consumer(broker, kbroker_metrics_port=0) as made:
        assert ask(address_of(made), path, method=method)[0] == status
        assert ask(address_of(made), "/metrics", method="HEAD") == (200, "")


def test_silent_and_endless_requests_keep_nobody_out(broker: FakeBroker) -> None:
    with consumer(broker, kbroker_metrics_port=0) as made:
        address = address_of(made)
        idle = [socket.create_connection(address, 5) for _ in range(CONNECTIONS_MAX - 1)]
        assert ask(address, "/metrics")[0] == 200
        idle[0].sendall(b"x" * 10_000)
        assert b"431" in idle[0].recv(100)
        for sock in idle:
            sock.close()
        wait_until(lambda: ask(address, "/metrics")[0] == 200)


def test_port_that_is_taken_is_told_at_construction_and_nothing_is_left(
    broker: FakeBroker,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for make in (consumer, producer):
            with pytest.raises(SettingRefused, match=rf"kbroker\.metrics\.port.*{port}"):
                make(broker, kbroker_metrics_port=port)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(SettingRefused, match="0 to 65535"):
        consumer(broker, kbroker_metrics_port=70_000)


def test_forked_child_does_not_hold_the_port(broker: FakeBroker) -> None:
    made = producer(broker, kbroker_metrics_port=0)
    address = address_of(made)
    (read, write), (begun, begins) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.write(begins, b"1")
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.read(begun, 1)
    os.close(begun)
    os.close(begins)
    try:
        assert ask(address, "/metrics")[0] == 200
        made.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address, 5)
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_client_of_asyncio_has_an_address(broker: FakeBroker) -> None:
    import asyncio

    async def served() -> int:
        settings: dict[str, Any] = {"kbroker_metrics_port": 0, "enable_idempotence": False}
        async with AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, **settings) as made:
            status: int = (await asyncio.to_thread(ask, address_of(made), "/metrics"))[0]
            return status

    assert asyncio.run(served()) == 200
