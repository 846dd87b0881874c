"""kbroker and Apache Kafka 2.7.2 in one cluster whose brokers connect by SASL_SSL: either controls,
leads, follows and coordinates.

Logins are by SCRAM, and key and trust stores are PEM (KIP-651).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from interop.mixed import MixedCluster, read, texts, waited, write
from support.secured_peers import USER, SecuredPeers, write_user

from kbroker.testing import Broker
from kbroker.testing.ports import LOCALHOST, HeldPort

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
MECHANISM = "SCRAM-SHA-512"
PARTITIONS = 4
NAMES = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Clients use PLAINTEXT, and are super users, too."""
    peers = SecuredPeers(tmp_path_factory.mktemp("site"))
    secured = peers.settings("SASL_SSL", MECHANISM)
    settings = {
        **{name: text for name, text in secured.items() if name not in peers.stores()},
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{USER};User:ANONYMOUS",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
    }
    ports = [HeldPort() for _ in range(4)]
    listeners = [
        f"PLAINTEXT://{LOCALHOST}:{first.number},SASL_SSL://{LOCALHOST}:{second.number}"
        for first, second in zip(ports[::2], ports[1::2], strict=True)
    ]
    with MixedCluster(tmp_path_factory.mktemp("cluster"), settings) as started:
        write_user(started.connect, MECHANISM)
        stores = peers.stores_in_properties()
        started.kafka(KAFKA, port=ports[0].number, listeners=listeners[0], **stores)
        started.kbroker(KBROKER, listeners=listeners[1], **peers.stores())
        yield started
    for port in ports:
        port.release()


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture(params=[KAFKA, KBROKER], ids=["kafka", "kbroker"])
def controller(cluster: MixedCluster, request: pytest.FixtureRequest) -> int:
    number: int = request.param
    cluster.have_control(number)
    return number


@pytest.fixture
def topic(cluster: MixedCluster, controller: int) -> str:
    """Each is the first replica of half of its partitions."""
    name = next(NAMES)
    both = {n: [KAFKA, KBROKER] if n % 2 else [KBROKER, KAFKA] for n in range(PARTITIONS)}
    cluster.create(name, both)
    return name


def test_either_follows_what_the_other_leads(cluster: MixedCluster, topic: str) -> None:
    write(cluster.members[KAFKA].bootstrap, topic, texts(40, "a"), PARTITIONS)
    write(cluster.members[KBROKER].bootstrap, topic, texts(40, "b"), PARTITIONS)

    for number in range(PARTITIONS):
        cluster.assert_same_logs(topic, partition=number)
        assert cluster.isr(topic, number) == {KAFKA, KBROKER}
    assert read(cluster.members[KAFKA].bootstrap, topic, 80, PARTITIONS) == (
        texts(40, "a") + texts(40, "b")
    )


@pytest.mark.parametrize("stopped", [KAFKA, KBROKER], ids=["kafka stops", "kbroker stops"])
def test_broker_that_stops_hands_over_to_the_other(
    cluster: MixedCluster, topic: str, stopped: int
) -> None:
    other = KAFKA + KBROKER - stopped
    write(cluster.bootstrap, topic, texts(40, "a"), PARTITIONS)
    cluster.members[stopped].stop()
    write(cluster.members[other].bootstrap, topic, texts(40, "b"), PARTITIONS)
    cluster.members[stopped].start()
    cluster.wait_ready()
    for number in range(PARTITIONS):
        waited(lambda n=number: cluster.isr(topic, n) == {KAFKA, KBROKER}, "all are in sync")
        cluster.assert_same_logs(topic, partition=number)

    expected = texts(40, "a") + texts(40, "b")
    assert read(cluster.members[other].bootstrap, topic, 80, PARTITIONS) == expected


def test_transactions_have_their_markers_on_both(cluster: MixedCluster, topic: str) -> None:
    """Of several producers, so that either coordinates some of them."""
    for number in range(6):
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-{number}"}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        producer.commit_transaction(60)

    expected = sorted(f"{n}-{p}" for n in range(6) for p in range(PARTITIONS))
    assert read(cluster.bootstrap, topic, len(expected), PARTITIONS) == expected
    for number in range(PARTITIONS):
        cluster.assert_same_logs(topic, partition=number)


def test_kbroker_has_logged_no_failed_connection(cluster: MixedCluster) -> None:
    """Apart from those to a broker that was stopped."""
    kbroker = cluster.members[KBROKER]
    assert isinstance(kbroker, Broker)
    lines = [line for line in kbroker.log_text.splitlines() if "WARNING" in line]
    refused = [line for line in lines if "TLS failed" in line or "the login of" in line]
    assert refused == []
