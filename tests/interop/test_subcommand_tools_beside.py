"""Tools with subcommands beside Kafka's own: transactions, cluster, features."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop.beside import BESIDE, Beside

from kbroker.client import KafkaProducer
from kbroker.testing import Broker

pytestmark = BESIDE

TRANSACTIONS = "kafka-transactions", "org.apache.kafka.tools.TransactionsCommand"
CLUSTER = "kafka-cluster", "org.apache.kafka.tools.ClusterTool"
FEATURES = "kafka-features", "org.apache.kafka.tools.FeatureCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=1) as started:
        yield started


@pytest.fixture(scope="module")
def both(broker: Broker) -> Iterator[Beside]:
    found = Beside(broker.bootstrap)
    yield found
    found.close()


def test_transactions_are_listed_described_and_ended_alike(both: Beside, broker: Broker) -> None:
    def same(*words: str, masks: tuple[str, ...] = ()) -> str:
        where = ("--bootstrap-server", broker.bootstrap)
        return both.same(*TRANSACTIONS, *where, *words, masks=masks, bootstrap=False).stdout

    names = ("pays-j-it", "pays-k-it")
    # How long ago it began.
    duration = (r"(?<=\d{13}\t)\d+ *(?=\t)|(?<=\d{13}                \t)\d+ *(?=\t)",)
    producers = [
        KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name) for name in names
    ]
    for producer, name in zip(producers, names, strict=True):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"v")
        producer.send("shared", b"v")
        producer.commit_transaction()
    both.same(*TRANSACTIONS, "--bootstrap-server", broker.bootstrap, "list", bootstrap=False,
              ordered=False)  # fmt: skip
    assert "CompleteCommit" in same("describe", "--transactional-id", "pays-j-it", masks=duration)
    for producer, name in zip(producers, names, strict=True):
        producer.begin_transaction()
        producer.send(name, b"v")
        producer.send("shared", b"v")
        producer.flush()
    assert "Ongoing" in same("describe", "--transactional-id", "pays-j-it", masks=duration)
    same("list", "--duration-filter", "3600000")
    same("list", "--transactional-id-pattern", "pays-k.*")
    same("describe-producers", "--topic", "shared", "--partition", "0")
    same("describe-producers", "--topic", "shared", "--partition", "0", "--broker-id", "0")
    same("find-hanging", "--topic", "shared")
    same("find-hanging", "--broker-id", "0", "--max-transaction-timeout", "-1")
    for producer in producers:
        producer.abort_transaction()
        producer.begin_transaction()
    for producer, name in zip(producers, names, strict=True):
        producer.send(name, b"v")
        producer.flush()
    same("abort", "--topic", "pays-@-it", "--partition", "0", "--start-offset", "4")
    same("abort", "--topic", "pays-@-it", "--partition", "0", "--start-offset", "4")
    same("forceTerminateTransaction", "--transactionalId", "pays-@-it")
    for producer in producers:
        producer.close()
    same("describe", "--transactional-id", "nobody")
    same("describe-producers", "--topic", "no-@-such", "--partition", "0")
    for words in (
        (), ("bogus",), ("find-hanging",), ("abort", "--topic", "t", "--partition", "0"),
        ("find-hanging", "--broker-id", "0", "--partition", "0"), ("describe",), ("list", "-x"),
    ):  # fmt: skip
        same(*words)


def test_cluster_is_printed_alike(both: Beside) -> None:
    def same(*words: str) -> str:
        return both.same(*CLUSTER, *words).stdout

    assert same("cluster-id").startswith("Cluster ID: ")
    assert "unfenced" in same("list-endpoints", "--include-fenced-brokers")
    same("list-endpoints")
    same("cluster-id", "--config", "/dev/null")
    same("cluster-id", "--config", "/dev/null", "--command-config", "/dev/null")
    same("unregister", "--id", "7")


def test_features_are_printed_alike(both: Beside, broker: Broker) -> None:
    def same(*words: str) -> str:
        where = ("--bootstrap-server", broker.bootstrap)
        return both.same(*FEATURES, *where, *words, bootstrap=False).stdout

    assert "Feature: metadata.version  " in same("describe")
    same("upgrade", "--feature", "group.version=x")
    same("upgrade", "--feature", "group.version")
    same("upgrade")
    same("upgrade", "--metadata", "1.0")
    same("upgrade", "--release-version", "1.0")
    same("upgrade", "--release-version", "4.0", "--feature", "a=1")
    same("version-mapping")
    for release in ("4.0-IV3", "3.3-IV3", "4.3-IV0", "3.9", "3.0-IV1", "x"):
        same("version-mapping", "--release-version", release)
    for feature in ("metadata.version=17", "group.version=1", "x=1", "group.version=7", "y",
                    "eligible.leader.replicas.version=1", "metadata.version=99"):  # fmt: skip
        same("feature-dependencies", "--feature", feature)
    both.same(*FEATURES, "version-mapping", bootstrap=False)
    both.same(*FEATURES, "describe", bootstrap=False)
