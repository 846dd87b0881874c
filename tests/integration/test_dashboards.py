"""``/metrics`` of a loaded broker: by the names that dashboards ask for, with what was done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from support.brokers.process_harness import http_get
from support.surfaces.dashboards import NEEDED, Needed, Scrape

confluent_kafka = pytest.importorskip("confluent_kafka")

from kbroker.cli.monitoring import expressions  # noqa: E402
from kbroker.testing import Broker, wait_until  # noqa: E402

pytestmark = pytest.mark.integration

RECORDS, READ = 30, 10
SIZE = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "offsets.topic.num.partitions": 2,
        "num.partitions": 1,
        "log.segment.bytes": 1500,
        "metrics.names": "jmx,exporter,native,confluent,histograms",
    }
    with Broker(settings) as running:
        load(running)
        yield running


def load(broker: Broker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for _ in range(RECORDS):
        producer.produce("orders", b"x" * SIZE)
        producer.flush(30)  # a batch each
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    place = confluent_kafka.TopicPartition("orders", 0, 0)
    consumer.assign([place])
    messages = consumer.consume(RECORDS, 30)
    assert len(messages) == RECORDS
    place.offset = READ
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def scrape(broker: Broker) -> Scrape:
    status, text = http_get(broker, "/metrics")
    assert status == 200
    return Scrape(text)


def settled(broker: Broker) -> Scrape:
    """With what each process has counted up to its last tick."""
    found = scrape(broker)

    def is_there() -> bool:
        nonlocal found
        found = scrape(broker)
        counted = found.values["kafka_server_brokertopicmetrics_messagesin_total"]
        own = counted.get((("topic", "__consumer_offsets"),), 0)
        return counted[()] == RECORDS + own and counted[("topic", "orders"),] == RECORDS

    wait_until(is_there)
    return found


def test_every_expression_of_known_dashboards_and_rules_has_an_answer(broker: Broker) -> None:
    settled(broker)

    def missing() -> list[Needed]:
        found = scrape(broker)
        return [needed for needed in NEEDED if not found.has(needed)]

    wait_until(lambda: missing() == [])  # shares of idle time are those of a second or more


def test_every_expression_that_is_shipped_names_series_that_there_are(broker: Broker) -> None:
    names = set(re.findall(r"\b(?:kafka|kbroker)_[a-z_]+", " ".join(expressions())))

    assert names <= settled(broker).typed


def test_values_are_what_clients_did(broker: Broker) -> None:
    found = settled(broker)
    topics = "kafka_server_brokertopicmetrics_{}_total"

    assert found.get(topics.format("totalproducerequests"), topic="orders") == RECORDS
    assert found.get(topics.format("failedproducerequests"), topic="orders") == 0
    size = found.get(topics.format("bytesin"), topic="orders")
    assert size > RECORDS * SIZE
    assert found.get(topics.format("bytesout"), topic="orders") == size
    assert found.get("kafka_server_brokertopicmetrics_bytesinpersec", topic="orders") == size
    partition = {"topic": "orders", "partition": "0"}
    assert found.get("kafka_topic_partition_current_offset", **partition) == RECORDS
    assert found.get("kafka_log_log_logendoffset", **partition) == RECORDS
    wait_until(lambda: scrape(broker).get("kafka_log_log_size", **partition) == size)
    assert scrape(broker).get("kafka_log_log_numlogsegments", **partition) > 1
    times = "kafka_network_requestmetrics_totaltimems"
    assert found.get(f"{times}_count", request="Produce") == RECORDS
    assert found.get(times, request="Produce", quantile="0.99") > 0
    duration = "kbroker_request_duration_seconds"
    assert found.get(f"{duration}_bucket", request="Produce", le="+Inf") == RECORDS
    assert found.get(f"{duration}_count", request="Produce") == RECORDS
    wait_until(lambda: "kafka_log_logflushstats_logflushrateandtimems" in scrape(broker).values)


def test_address_of_the_broker_is_one_that_clients_can_use(broker: Broker) -> None:
    """It has no configured one: clients are told that by which they have reached it."""
    (labels,) = scrape(broker).values["kafka_broker_info"]

    assert dict(labels) == {"id": "0", "address": broker.bootstrap}


def test_lag_is_told_in_records_and_in_seconds(broker: Broker) -> None:
    found = settled(broker)
    pair = {"consumergroup": "billing", "topic": "orders", "partition": "0"}

    assert found.get("kafka_consumergroup_current_offset", **pair) == READ
    assert found.get("kafka_consumergroup_lag", **pair) == RECORDS - READ
    assert found.get("kafka_consumergroup_lag_sum", consumergroup="billing", topic="orders") == (
        RECORDS - READ
    )
    assert found.get("kafka_consumergroup_members", consumergroup="billing") == 0
    assert 0 < found.get("kbroker_consumergroup_lag_seconds", **pair) < 3600


def test_mbeans_have_the_same_values(broker: Broker) -> None:
    settled(broker)

    status, text = http_get(broker, "/jmx?qry=kafka.server:type=BrokerTopicMetrics*topic=orders")

    assert status == 200
    beans = {bean["name"]: bean for bean in json.loads(text)["beans"]}
    name = "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=orders"
    assert beans[name]["Count"] == RECORDS
    assert beans[name]["MeanRate"] > 0
    assert {"OneMinuteRate", "FiveMinuteRate", "FifteenMinuteRate"} <= beans[name].keys()
    assert all("BrokerTopicMetrics" in name for name in beans)
    assert http_get(broker, "/jmx?query=x")[0] == 400


def test_what_nobody_measures_is_absent(broker: Broker) -> None:
    found = settled(broker)

    remote = found.values["kafka_network_requestmetrics_remotetimems_count"]
    assert {value for key in remote for _, value in key} <= {"Produce", "FetchConsumer"}


def test_what_coordinators_append_counts_as_in_kafka(broker: Broker) -> None:
    found = settled(broker)
    offsets = {"topic": "__consumer_offsets"}

    messages = found.get("kafka_server_brokertopicmetrics_messagesin_total", **offsets)
    assert messages == found.get("kafka_log_log_logendoffset", partition="0", **offsets) + (
        found.get("kafka_log_log_logendoffset", partition="1", **offsets)
    )
    assert messages > 0
    assert found.get("kafka_server_brokertopicmetrics_bytesin_total", **offsets) > messages
    assert found.get("kafka_server_brokertopicmetrics_totalproducerequests_total", **offsets) > 0


def test_requests_are_told_by_version_and_connections_by_software(broker: Broker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.list_topics(timeout=30)  # stays connected

    found = scrape(broker)

    requests = found.values["kafka_network_requestmetrics_requests_total"]
    produced = {key: n for key, n in requests.items() if ("request", "Produce") in key}
    assert sum(produced.values()) == RECORDS
    assert all(dict(key)["version"].isdigit() for key in requests)
    name = "kafka_server_socket_server_metrics_connections_software"

    def named() -> set[tuple[str, str]]:
        rows = map(dict, scrape(broker).values.get(name, {}))
        return {(row["clientSoftwareName"], row["listener"]) for row in rows}

    wait_until(lambda: ("confluent-kafka-python", "PLAINTEXT") in named())
    assert found.get("kafka_server_kafkaserver_brokerstate") == 3
    assert found.get("kafka_server_fetchsessioncache_numincrementalfetchsessions") >= 0
    for queue in ("requestqueuesize", "responsequeuesize"):
        assert found.get(f"kafka_network_requestchannel_{queue}") >= 0


def test_totals_survive_the_processes_that_counted(broker: Broker) -> None:
    """The last test: it kills what the others look at."""
    before = settled(broker)
    produced = {"request": "Produce"}
    times = "kafka_network_requestmetrics_totaltimems_count"

    for title in [name for name in broker.pids if name.startswith(("io-", "network-"))]:
        kind, _, index = title.rpartition("-")
        broker.kill(kind, int(index))
    wait_until(lambda: http_get(broker, "/readyz")[0] == 200)
    after = settled(broker)

    assert after.get(times, **produced) == before.get(times, **produced) == RECORDS
    for name in ("bytesin", "bytesout", "totalproducerequests"):
        metric = f"kafka_server_brokertopicmetrics_{name}_total"
        assert after.get(metric, topic="orders") == before.get(metric, topic="orders")
        assert after.get(metric) == before.get(metric)


# Of what there is none yet: topics, and groups that have committed or joined.
WITH_TOPICS = {"kafka_log_log_numlogsegments", "kafka_log_log_size"}
WITH_GROUPS = {
    "kafka_consumergroup_current_offset_sum",
    "kafka_consumergroup_lag_sum",
    "kafka_consumergroup_members",
    "kbroker_consumergroup_lag_seconds",
    "kbroker_group_state",
}


def test_every_series_of_ours_is_there_from_the_start() -> None:
    """An alert on what is not there never fires, and the first increase of a new one is none."""
    names = set(re.findall(r"\b(?:kafka|kbroker)_[a-z_]+", " ".join(expressions())))
    with Broker() as fresh:

        def missing() -> set[str]:
            found = scrape(fresh).values
            return {name for name in names if not found.get(name)}

        wait_until(lambda: missing() <= WITH_TOPICS | WITH_GROUPS)
        found = scrape(fresh)
        confluent_kafka.Producer({"bootstrap.servers": fresh.bootstrap}).list_topics("first", 10)
        wait_until(lambda: missing() <= WITH_GROUPS)

    times = "kafka_network_requestmetrics_totaltimems"
    assert found.get(times, request="Produce", quantile="0.99") == 0
    assert found.get("kbroker_transactions_hanging", process="io-0") == 0
