"""Tools of older releases beside those of 0.8.2 and 2.7.2, and the reset of Streams applications
beside that of 4.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.beside import BESIDE, BIN, Beside
from kazoo.client import KazooClient
from support.drivers.java import libraries
from support.drivers.kafka_tools import run_tool

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import Cluster
from perf.kafka_distribution import kafka_libraries

pytestmark = BESIDE

RESET = "kafka-streams-application-reset", "org.apache.kafka.tools.StreamsResetter"
VERIFY = "kafka-replica-verification", "org.apache.kafka.tools.ReplicaVerificationTool"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, num_io_threads=1) as started, Client(started.bootstrap) as client:
        topics = ("my-topic", "input", "between", "app-j-x-counts-changelog",
                  "app-k-x-counts-changelog")  # fmt: skip
        create_topics(client, [NewTopic(name, 2, 1) for name in topics])
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for number in range(20):
                for name in topics:
                    producer.send(name, b"v", partition=number % 2, timestamp_ms=10**12 + number)
        commit(client, "my-group", {("my-topic", 1): (9, "")})
        yield started


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Iterator[Beside]:
    found = Beside(cluster.bootstrap)
    yield found
    found.close()


def test_offset_checker_prints_what_that_of_0_8_prints(both: Beside, cluster: Cluster) -> None:
    store = KazooClient(cluster.zookeeper_connect)
    store.start()
    home = "/consumers/my-group"
    store.create(f"{home}/owners/my-topic/0", b"host-0", makepath=True)
    store.create(f"{home}/offsets/my-topic/0", b"4", makepath=True)
    store.stop()
    store.close()
    jars = libraries("0.8.2.2", "kafka_2.11")
    for more in ((), ("--topic", "my-topic"), ("--broker-info",)):
        words = ("--zookeeper", cluster.zookeeper_connect, "--group", "my-group", *more)
        theirs = run_tool(jars, "kafka.tools.ConsumerOffsetChecker", *words)
        assert both.ours("kafka-consumer-offset-checker", *words).stdout == theirs


def test_preferred_elections_are_reported_as_by_2_7(
    both: Beside, cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "partitions.json"
    path.write_text('{"partitions": [{"topic": "my-topic", "partition": 0}]}')
    jars = kafka_libraries(version="2.7.2")
    main = "kafka.admin.PreferredReplicaLeaderElectionCommand"
    for where in (
        ("--bootstrap-server", cluster.bootstrap),
        ("--zookeeper", cluster.zookeeper_connect),
    ):
        words = (*where, "--path-to-json-file", str(path))
        theirs = run_tool(jars, main, *words)
        # Kafka's forgets to name those that need no election, and says what node it has created.
        theirs = re.sub("(?<=already elected for partitions ).*", "my-topic-0", theirs)
        theirs = re.sub("(?m)^Warning: .*\\n|^Use --boot.*\\n|^Created preferred.*\\n", "", theirs)
        assert both.ours("kafka-preferred-replica-election", *words).stdout == theirs


def test_streams_applications_are_reset_alike(both: Beside, tmp_path: Path) -> None:
    def same(*words: str) -> str:
        return both.same(*RESET, "--application-id", "app-@-x", *words).stdout

    same("--input-topics", "input", "--intermediate-topics", "between", "--dry-run")
    same("--internal-topics", "input")
    changelog = ("--internal-topics", "app-@-x-counts-changelog")
    assert "app-@-x-counts-changelog" in same(*changelog, "--dry-run")
    for way in (("--to-offset", "3"), ("--to-offset", "99"), ("--to-earliest",), ("--to-latest",),
                ("--shift-by", "-2"), ("--to-datetime", "2001-09-09T01:46:40.005"),
                ("--by-duration", "P1D")):  # fmt: skip
        assert "Offset: " in same("--input-topics", "input", *way)
    path = tmp_path / "offsets.csv"
    path.write_text("input,0,3\ninput,1,4\n")
    same("--input-topics", "input", "--from-file", str(path))
    same("--input-topics", "missing")
    same()
    same("--input-topics", "input", "--to-earliest", "--to-latest")
    both.same(*RESET)
    both.same(*RESET, "--bogus")


def test_wrong_use_of_replica_verification_has_the_same_exit_code(both: Beside) -> None:
    for words in ((), ("--bogus",), ("--time", "1"), ("--broker-list", "x")):
        both.same(*VERIFY, *words, bootstrap=False)
    assert (BIN / "kafka-replica-verification.sh").exists()


def test_simple_consumer_shell_prints_what_that_of_0_8_prints(
    both: Beside, cluster: Cluster
) -> None:
    jars = libraries("0.8.2.2", "kafka_2.11")
    where = ("--broker-list", cluster.bootstrap, "--topic", "my-topic", "--partition", "1")
    for more in (
        ("--no-wait-at-logend",), ("--replica", "0", "--no-wait-at-logend"), ("--offset", "3",
         "--max-messages", "2", "--print-offsets"), ("--offset", "-1", "--no-wait-at-logend"),
    ):  # fmt: skip
        theirs = run_tool(jars, "kafka.tools.SimpleConsumerShell", *where, *more)
        assert both.ours("kafka-simple-consumer-shell", *where, *more).stdout == theirs


def test_replayed_topics_are_the_same_as_by_0_8(both: Beside, cluster: Cluster) -> None:
    jars = libraries("0.8.2.2", "kafka_2.11")
    names = ("keyed", "by-theirs", "by-ours")
    with (
        Client(cluster.bootstrap) as client,
        KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer,
    ):
        create_topics(client, [NewTopic(name, 2, 1) for name in names])
        for number in range(20):
            key = b"k%d" % (number // 2) if number % 3 else None
            producer.send("keyed", b"v%d" % number, key, partition=number % 2)
    words = ["--broker-list", cluster.bootstrap, "--zookeeper", cluster.zookeeper_connect]
    words += ["--inputtopic", "keyed", "--messages", "20", "--sync", "--outputtopic"]
    theirs = run_tool(jars, "kafka.tools.ReplayLogProducer", *words, names[1])
    assert both.ours("kafka-replay-log-producer", *words, names[2]).stdout == theirs

    def keyed_rows(topic: str) -> list[tuple[bytes, bytes | None, int]]:
        rows: list[tuple[bytes | None, bytes | None, int]] = []
        with KafkaConsumer(bootstrap_servers=cluster.bootstrap) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            consumer.seek_to_beginning()
            while len(rows) < 20:
                rows += [(row.key, row.value, row.partition) for row in consumer.poll(10.0)]
        assert sorted(value or b"" for _, value, _ in rows) == sorted(
            b"v%d" % number for number in range(20)
        )
        return sorted((key, value, at) for key, value, at in rows if key is not None)

    assert len(keyed_rows("keyed")) == 13
    assert keyed_rows(names[2]) == keyed_rows(names[1]), "keys go where Java's hash sends them"
