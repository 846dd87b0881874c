"""Kafka's own tools and clients about quotas: 2.7.2 both ways, 3.9.1, and the newest."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from support.drivers.java import FIRST_TEST_TIMEOUT_S, JVM_OPTIONS, java_missing, libraries
from support.drivers.kafka_tools import run_tool

from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
ANONYMOUS = ("--entity-type", "users", "--entity-name", "ANONYMOUS")
RATE = "producer_byte_rate"
# What of a command names an entity, and how the tools show it.
ENTITIES = {
    "user": (("--entity-type", "users", "--entity-name", "al/ice"), "user-principal 'al/ice'"),
    "default user": (("--entity-type", "users", "--entity-default"), "the default user-principal"),
    "client": (("--entity-type", "clients", "--entity-name", "c 1"), "client-id 'c 1'"),
    "default client": (("--entity-type", "clients", "--entity-default"), "the default client-id"),
    "both": (
        ("--entity-type", "users", "--entity-name", "bob",
         "--entity-type", "clients", "--entity-name", "c"),
        "user-principal 'bob', client-id 'c'",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, {"controlled.shutdown.enable": "false"}) as cluster:
        yield cluster


@pytest.mark.parametrize("entity", ENTITIES)
def test_quotas_of_old_tools_are_seen_both_ways(cluster: Cluster, entity: str) -> None:
    """What 2.7.2 writes into ZooKeeper takes effect on every broker, and it reads what they
    write.
    """
    jars = kafka_libraries(version="2.7.2")
    named, shown = ENTITIES[entity]

    def configs(*arguments: str, broker: int | None = None) -> str:
        where = ("--zookeeper", cluster.zookeeper_connect)
        if broker is not None:
            where = ("--bootstrap-server", cluster.brokers[broker].bootstrap)
        return run_tool(jars, CONFIGS, *where, *arguments, *named)

    def described(broker: int | None) -> str:
        return configs("--describe", broker=broker)

    configs("--alter", "--add-config", f"{RATE}=1024,request_percentage=12.5")
    for broker in (0, 1):
        wait_until(lambda: f"{RATE}=1024" in described(broker), 60)  # noqa: B023
        assert "request_percentage=12.5" in described(broker)
    if "default" not in entity:
        assert shown in described(0)
    configs("--alter", "--add-config", "consumer_byte_rate=2048", broker=1)
    assert "consumer_byte_rate=2048" in described(None)
    assert f"{RATE}=1024" in described(None)
    configs("--alter", "--delete-config", RATE, broker=0)
    assert RATE not in described(None)
    configs("--alter", "--delete-config", "consumer_byte_rate,request_percentage")
    wait_until(lambda: "byte_rate" not in described(1) + described(0), 60)


def test_credentials_of_old_tools_are_no_quotas_and_stay(cluster: Cluster) -> None:
    """Both are configs of the same node."""
    jars = kafka_libraries(version="2.7.2")
    named = ("--entity-type", "users", "--entity-name", "carol")
    zookeeper = ("--zookeeper", cluster.zookeeper_connect)
    scram = "SCRAM-SHA-256=[iterations=4096,password=secret]"
    run_tool(jars, CONFIGS, *zookeeper, "--alter", "--add-config", scram, *named)
    broker = ("--bootstrap-server", cluster.brokers[0].bootstrap)
    run_tool(jars, CONFIGS, *broker, "--alter", "--add-config", f"{RATE}=7", *named)
    text = run_tool(jars, CONFIGS, *zookeeper, "--describe", *named)
    assert "SCRAM-SHA-256=salt=" in text
    assert f"{RATE}=7" in text


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
@pytest.mark.parametrize("entity", [*ENTITIES, "address", "default address"])
def test_quotas_of_newer_tools(broker: Broker, version: str, entity: str) -> None:
    jars = libraries(version, "kafka-tools")
    where = ("--bootstrap-server", broker.bootstrap)
    key, value = RATE, "1024.0"
    if entity.endswith("address"):
        key, value = "connection_creation_rate", "50.0"
        name = ("--entity-name", "192.0.2.9") if entity == "address" else ("--entity-default",)
        named = ("--entity-type", "ips", *name)
    else:
        named = ENTITIES[entity][0]
    number = value.removesuffix(".0")
    run_tool(jars, CONFIGS, *where, "--alter", "--add-config", f"{key}={number}", *named)
    assert f"{key}={value}" in run_tool(jars, CONFIGS, *where, "--describe", *named)
    run_tool(jars, CONFIGS, *where, "--alter", "--delete-config", key, *named)
    assert key not in run_tool(jars, CONFIGS, *where, "--describe", *named)


def test_performance_tool_shows_how_long_it_was_throttled(broker: Broker, topic: str) -> None:
    jars = libraries("3.9.1", "kafka-tools")
    where = ("--bootstrap-server", broker.bootstrap)
    client = ("--entity-type", "clients", "--entity-name", "perf-quota")
    run_tool(jars, TOPICS, *where, "--create", "--topic", topic)
    run_tool(jars, CONFIGS, *where, "--alter", "--add-config", f"{RATE}=100000", *client)
    text = run_tool(
        jars, PERFORMANCE, "--topic", topic, "--num-records", "150", "--record-size", "10000",
        "--throughput", "-1", "--print-metrics", "--producer-props",
        f"bootstrap.servers={broker.bootstrap}", "client.id=perf-quota",
    )  # fmt: skip
    found = re.search(r"produce-throttle-time-max:\{client-id=perf-quota\}\s*:\s*([\d.]+)", text)
    assert found is not None, text
    assert float(found[1]) > 0


def test_admin_client_is_told_that_its_changes_exceed_the_quota(broker: Broker, topic: str) -> None:
    jars = libraries("3.9.1", "kafka-tools")
    where = ("--bootstrap-server", broker.bootstrap)
    rate = "controller_mutation_rate"
    run_tool(jars, CONFIGS, *where, "--alter", "--add-config", f"{rate}=1", *ANONYMOUS)
    try:
        create = ("--create", "--partitions", "60", "--topic")
        run_tool(jars, TOPICS, *where, *create, topic)
        command = ["java", *JVM_OPTIONS, "-cp", f"{jars}/*", TOPICS, *where, *create, topic + "-b"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "The quota is used up" in done.stdout
    finally:
        run_tool(jars, CONFIGS, *where, "--alter", "--delete-config", rate, *ANONYMOUS)
