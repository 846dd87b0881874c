"""Kafka 2.7's own tools, with ``--zookeeper`` and with ``--bootstrap-server``, on three brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.kafka_tools import run_tool
from support.running.grids import some_of

from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VERSION = "2.7.2"
TOPICS = "kafka.admin.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
DELETE_RECORDS = "kafka.admin.DeleteRecordsCommand"
REASSIGN = "kafka.admin.ReassignPartitionsCommand"
ELECT = "kafka.admin.LeaderElectionCommand"
ELECT_PREFERRED = "kafka.admin.PreferredReplicaLeaderElectionCommand"

NAMES = (f"t{number}" for number in count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, {"controlled.shutdown.enable": "false"}) as cluster:
        yield cluster


class Tools:
    def __init__(self, cluster: Cluster) -> None:
        self._jars = kafka_libraries(version=VERSION)
        # Not the controller, so that the tools have to find it.
        self._ways = {
            "zookeeper": ("--zookeeper", cluster.zookeeper_connect),
            "broker": ("--bootstrap-server", cluster.brokers[2].bootstrap),
        }

    def __call__(self, way: str, main: str, *arguments: str) -> str:
        return run_tool(self._jars, main, *self._ways[way], *arguments)


@pytest.fixture(scope="module")
def tools(cluster: Cluster) -> Tools:
    return Tools(cluster)


WAYS = pytest.mark.parametrize("way", some_of(["zookeeper", "broker"], ["broker"]))


@pytest.fixture
def topic(tools: Tools) -> str:
    """Two partitions with two replicas each, and some records in the first."""
    name = next(NAMES)
    tools("broker", TOPICS, "--create", "--topic", name, "--replica-assignment", "0:1,1:2")
    return name


@pytest.fixture
def write_json(tmp_path: Path) -> Callable[[Any], str]:
    def write(document: Any) -> str:
        path = tmp_path / "tool.json"
        path.write_text(json.dumps(document))
        return str(path)

    return write


def partitions(tools: Tools, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    """Leader, replicas and in-sync replicas, by partition."""
    text = tools("broker", TOPICS, "--describe", "--topic", topic)
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S+)", text)
    return {
        int(number): (int(leader), _ids(replicas), sorted(_ids(isr)))
        for number, leader, replicas, isr in rows
    }


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@pytest.mark.slow
@WAYS
def test_topics_are_created_enlarged_and_deleted(tools: Tools, way: str) -> None:
    name = next(NAMES)
    create = ("--partitions", "2", "--replication-factor", "3", "--config", "retention.ms=5000000")
    assert f"Created topic {name}" in tools(way, TOPICS, "--create", "--topic", name, *create)
    wait_until(lambda: len(partitions(tools, name)) == 2, 60, "the brokers know it")
    tools(way, TOPICS, "--alter", "--topic", name, "--partitions", "3")
    wait_until(lambda: len(partitions(tools, name)) == 3, 60, "it has three partitions")
    assert [isr for _, _, isr in partitions(tools, name).values()] == [[0, 1, 2]] * 3
    assert "retention.ms=5000000" in tools(way, TOPICS, "--describe", "--topic", name)
    tools(way, TOPICS, "--delete", "--topic", name)
    wait_until(
        lambda: name not in tools("zookeeper", TOPICS, "--list").split(), 60, "it is deleted"
    )
    assert name not in tools("broker", TOPICS, "--list").split()


@pytest.mark.slow
@WAYS
def test_settings_of_a_topic_are_known_to_all_brokers(
    cluster: Cluster, tools: Tools, topic: str, way: str
) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools(way, CONFIGS, *of_topic, "--alter", "--add-config", "segment.bytes=1048576")

    def known(number: int) -> bool:
        where = ("--bootstrap-server", cluster.brokers[number].bootstrap)
        jars = kafka_libraries(version=VERSION)
        return "segment.bytes=1048576" in run_tool(jars, CONFIGS, *where, *of_topic, "--describe")

    for number in range(3):
        wait_until(lambda number=number: known(number), 30, f"broker {number} knows the setting")


@pytest.mark.slow
def test_settings_of_brokers_are_changed_and_described(tools: Tools) -> None:
    """Those of one by that broker, which the tool asks."""
    all_brokers = ("--entity-type", "brokers", "--entity-default")
    tools("broker", CONFIGS, *all_brokers, "--alter", "--add-config", "log.retention.ms=77000000")
    one = ("--entity-type", "brokers", "--entity-name", "1")
    tools("broker", CONFIGS, *one, "--alter", "--add-config", "log.cleaner.threads=2")
    described = tools("broker", CONFIGS, *one, "--describe", "--all")
    assert "log.cleaner.threads=2" in described
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=77000000" in described
    tools("broker", CONFIGS, *all_brokers, "--alter", "--delete-config", "log.retention.ms")


@pytest.mark.slow
@WAYS
def test_replicas_are_moved_with_their_records(
    cluster: Cluster, tools: Tools, topic: str, write_json: Callable[[Any], str], way: str
) -> None:
    texts = [b"%d" % number for number in range(200)]
    with_producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    for sent in [with_producer.send(topic, text, partition=0) for text in texts]:
        sent.get(60)
    with_producer.close()
    wanted = [{"topic": topic, "partition": 0, "replicas": [2, 1]}]
    moves = ("--reassignment-json-file", write_json({"version": 1, "partitions": wanted}))

    assert "Successfully started" in tools(way, REASSIGN, *moves, "--execute")

    wait_until(
        lambda: "is complete" in tools(way, REASSIGN, *moves, "--verify"), 90, "it is complete"
    )
    assert "No partition reassignments found" in tools("broker", REASSIGN, "--list")
    leader, replicas, isr = partitions(tools, topic)[0]
    assert (leader in (1, 2), replicas, isr) == (True, [2, 1], [1, 2])
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found: list[bytes] = []

    def read() -> bool:
        for records in consumer.poll(500).values():
            found.extend(record.value for record in records)
        return len(found) >= len(texts)

    wait_until(read, 60, "the records are read")
    consumer.close()
    assert found == texts
    gone = list(cluster.brokers[0].data_dir.glob(f"{topic}-0"))
    assert gone == []


@pytest.mark.slow
def test_records_of_replicas_are_deleted(
    cluster: Cluster, tools: Tools, topic: str, write_json: Callable[[Any], str]
) -> None:
    with closing(KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")) as producer:
        for sent in [producer.send(topic, b"x", partition=1) for _ in range(20)]:
            sent.get(60)
    wanted = [{"topic": topic, "partition": 1, "offset": 15}]
    path = write_json({"version": 1, "partitions": wanted})

    text = tools("broker", DELETE_RECORDS, "--offset-json-file", path)

    assert f"partition: {topic}-1\tlow_watermark: 15" in text


@pytest.mark.slow
def test_preferred_leaders_return(
    cluster: Cluster, tools: Tools, topic: str, write_json: Callable[[Any], str]
) -> None:
    """The replicas are reordered, and the next in order are elected, by either tool."""
    order = [[1, 0], [2, 1]]
    rows = [{"topic": topic, "partition": n, "replicas": order[n]} for n in (0, 1)]
    moves = ("--reassignment-json-file", write_json({"version": 1, "partitions": rows}))
    tools("broker", REASSIGN, *moves, "--execute")
    wait_until(
        lambda: [row[1] for row in partitions(tools, topic).values()] == order, 60, "reordered"
    )
    rows = [{"topic": topic, "partition": 0}]
    elect = ("--path-to-json-file", write_json({"partitions": rows}))
    assert "Successfully completed" in tools(
        "broker", ELECT, *elect, "--election-type", "preferred"
    )
    assert partitions(tools, topic)[0][0] == 1
    rows = [{"topic": topic, "partition": 1}]
    elect = ("--path-to-json-file", write_json({"partitions": rows}))
    assert "Successfully started" in tools("zookeeper", ELECT_PREFERRED, *elect)
    wait_until(lambda: partitions(tools, topic)[1][0] == 2, 60, "the node is carried out")
    again = ("--all-topic-partitions", "--election-type", "preferred")
    assert topic not in tools("broker", ELECT, *again)


@pytest.mark.slow
@WAYS
def test_topic_with_replicas_on_a_dead_broker_is_deleted(
    cluster: Cluster, tools: Tools, topic: str, way: str
) -> None:
    """The tool asks again when it waits for too long, and says then that there is no such topic."""
    victim = next(number for number in (0, 1) if number != cluster.controller)
    cluster.kill(victim)
    try:
        tools(way, TOPICS, "--delete", "--topic", topic)
        wait_until(lambda: topic not in tools("broker", TOPICS, "--list").split(), 60, "it is gone")
    finally:
        cluster.start()


@pytest.mark.slow
def test_reassignment_to_a_broker_that_is_away_waits_and_is_cancelled(
    cluster: Cluster, tools: Tools, topic: str, write_json: Callable[[Any], str]
) -> None:
    cluster.brokers[0].stop()
    try:
        wait_until(lambda: partitions(tools, topic)[0][2] == [1], 60, "broker 0 is gone")
        rows = [{"topic": topic, "partition": 1, "replicas": [0, 2]}]
        moves = ("--reassignment-json-file", write_json({"version": 1, "partitions": rows}))
        with pytest.raises(AssertionError, match=r"not alive|Unknown broker"):
            tools("broker", REASSIGN, *moves, "--execute")
    finally:
        cluster.brokers[0].start()
    wait_until(lambda: partitions(tools, topic)[0][2] == [0, 1], 90, "broker 0 is in sync again")
