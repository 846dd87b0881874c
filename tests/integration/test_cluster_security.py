"""Three brokers that encrypt what they send each other, and log in at each other by SCRAM.

Sessions last three seconds, so that all connections are renewed all the time (KIP-368).
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from support.brokers.zookeeper import skip_without_zookeeper
from support.security.secured_peers import PASSWORD, USER, SecuredPeers, write_user

from kbroker.client.connections.connection import Connection
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kbroker.testing import Broker, Cluster, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MECHANISM = "SCRAM-SHA-512"
LISTENER = "BROKERS"
PARTITIONS = 6
PATIENCE_S = 60
TOPICS = (f"t-{number}" for number in count())
SESSION_MS = 3000


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> SecuredPeers:
    return SecuredPeers(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def cluster(peers: SecuredPeers) -> Iterator[Cluster]:
    """Clients of the PLAINTEXT listener may do everything but what brokers do."""
    skip_without_zookeeper()
    settings: dict[str, Any] = {
        **peers.settings("SASL_SSL", MECHANISM, listener=LISTENER),
        "listener.name.brokers.connections.max.reauth.ms": SESSION_MS,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{USER};User:ANONYMOUS",
    }
    made = Cluster(3, settings, between="SASL_SSL")
    with closing(made):
        write_user(made.zookeeper_connect, MECHANISM)
        made.start()
        make_offsets_topic(made)
        yield made
        for broker in made.brokers:
            assert PASSWORD not in broker.log_text


def make_offsets_topic(cluster: Cluster) -> None:
    """While all brokers are up: it has three replicas."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "first"}
    with closing(Consumer(settings)) as consumer:

        def is_made() -> bool:
            try:
                consumer.committed([TopicPartition("absent", 0)], timeout=PATIENCE_S)
            except KafkaException:  # its coordinator does not know of it yet
                return False
            return True

        wait_until(is_made, PATIENCE_S, "there is a coordinator")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = next(TOPICS)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"})
    for future in admin.create_topics([wanted]).values():
        future.result()
    cluster.wait_in_sync(name)
    return name


def write(cluster: Cluster, topic: str, texts: list[str]) -> None:
    """With acks=all, each text to the next partition."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number, text in enumerate(texts):
        producer.produce(
            topic, text.encode(), partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(cluster: Cluster, topic: str, wanted: int) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers-of-{topic}-{wanted}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[str] = []
    until = time.monotonic() + PATIENCE_S
    with closing(consumer):
        while len(found) < wanted:
            assert time.monotonic() < until, f"{len(found)} of {wanted} records"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
    return sorted(found)


def texts(size: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:05}" for number in range(size)]


def warnings(broker: Broker, since: int) -> list[str]:
    """What went wrong between brokers."""
    lines = broker.log_text[since:].splitlines()
    return [line for line in lines if re.search("WARNING|ERROR", line) and "broker" in line]


def logins(broker: Broker) -> int:
    """At the listener for brokers."""
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as page:
        text = page.read().decode()
    name = "kbroker_successful_authentication_total"
    found = re.findall(rf'^{name}{{[^}}]*"{LISTENER}"[^}}]*}} (\d+)$', text, re.M)
    return sum(map(int, found))


@pytest.mark.slow
def test_records_are_replicated_and_sessions_renewed_without_a_warning(
    cluster: Cluster, topic: str
) -> None:
    marks = [len(broker.log_text) for broker in cluster.brokers]
    before = [logins(broker) for broker in cluster.brokers]
    until = time.monotonic() + 2.5 * SESSION_MS / 1000
    written = 0
    while time.monotonic() < until:
        write(cluster, topic, texts(60, f"{written:03}-"))
        written += 1

    assert len(read(cluster, topic, 60 * written)) == 60 * written
    cluster.wait_in_sync(topic)
    assert [warnings(*each) for each in zip(cluster.brokers, marks, strict=True)] == [[], [], []]
    # Of two followers, each with a connection from every io worker, after 85 % of the session.
    for broker, earlier in zip(cluster.brokers, before, strict=True):
        assert logins(broker) >= earlier + 2 * 2


@pytest.mark.slow
def test_nothing_is_lost_when_a_leader_is_killed(cluster: Cluster, topic: str) -> None:
    write(cluster, topic, texts(60, "a"))
    victim = cluster.partitions(topic)[0].leader
    cluster.kill(victim)
    write(cluster, topic, texts(60, "b"))
    assert read(cluster, topic, 120) == texts(60, "a") + texts(60, "b")

    cluster.brokers[victim].start()
    cluster.wait_in_sync(topic)


def test_leader_that_stops_hands_over_what_it_leads(cluster: Cluster, topic: str) -> None:
    """ControlledShutdown, LeaderAndIsr and the rest reach their brokers."""
    leader = cluster.partitions(topic)[0].leader
    broker = cluster.brokers[leader]
    mark = len(broker.log_text)
    assert broker.stop() == 0
    assert "controlled shutdown succeeded" in broker.log_text[mark:]
    write(cluster, topic, texts(60))
    broker.start()
    cluster.wait_in_sync(topic)
    assert read(cluster, topic, 60) == texts(60)


@pytest.mark.slow
def test_transaction_has_partitions_on_all_brokers(cluster: Cluster, topic: str) -> None:
    """Its coordinator sends markers to the others, and is asked whether it knows of it."""
    for number, commits in enumerate((True, False, True)):
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": f"{topic}-{number}",
            }
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for at in range(PARTITIONS * 2):
            producer.produce(topic, f"{number}-{at:02}".encode(), partition=at % PARTITIONS)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)

    expected = [f"{n}-{at:02}" for n in (0, 2) for at in range(PARTITIONS * 2)]
    assert read(cluster, topic, len(expected)) == expected


def test_registration_names_both_listeners(cluster: Cluster) -> None:
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        text = client.get("/brokers/ids/0")[0].decode()
    finally:
        client.stop()
        client.close()

    assert '"BROKERS": "SASL_SSL"' in text.replace('":"', '": "')
    assert "BROKERS://127.0.0.1:" in text


@pytest.mark.slow
def test_replaced_certificates_are_used_by_the_next_connections(
    cluster: Cluster, topic: str, peers: SecuredPeers
) -> None:
    peers.issue(["127.0.0.1", "localhost"])
    cluster.brokers[0].kill("network", 0)
    cluster.brokers[1].kill("io", 0)
    write(cluster, topic, texts(60))

    cluster.wait_in_sync(topic)
    assert read(cluster, topic, 60) == texts(60)


@pytest.mark.slow
def test_broker_with_a_wrong_password_says_so_and_follows_once_it_is_right(
    cluster: Cluster, topic: str
) -> None:
    broker = cluster.brokers[2]
    name = f"listener.name.brokers.{MECHANISM.lower()}.sasl.jaas.config"
    right = broker.config[name]
    broker.stop()
    broker.config[name] = right.replace(PASSWORD, "Zq7-wrong")
    mark = len(broker.log_text)
    broker.start()
    wanted = f"the login of this broker as '{USER}' failed: SASL {MECHANISM}: "
    wait_until(lambda: wanted in broker.log_text[mark:], PATIENCE_S, "the reason is logged")
    others = [other for other in cluster.brokers if other is not broker]
    refused = f"as '{USER}' by SASL {MECHANISM}: wrong credentials"
    assert any(refused in other.log_text for other in others)
    assert "Zq7-wrong" not in "".join(one.log_text for one in cluster.brokers)
    broker.stop()

    broker.config[name] = right
    broker.start()
    cluster.wait_ready()
    write(cluster, topic, texts(60))
    cluster.wait_in_sync(topic)


def test_user_who_is_no_broker_may_not_do_what_brokers_do(cluster: Cluster) -> None:
    """A login alone makes nobody a broker: ClusterAction is needed."""
    write_user(cluster.zookeeper_connect, MECHANISM, "eve", "Zq7-eve")
    host, _, port = cluster.brokers[0].listeners[LISTENER].rpartition(":")
    options = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": cluster.brokers[0].config["ssl.truststore.location"],
        "sasl.mechanism": MECHANISM,
        "sasl.username": "eve",
        "sasl.password": "Zq7-eve",
    }

    def rejected() -> bool:
        deadline = time.monotonic() + 20
        try:
            made = Connection(host, int(port), Security.from_options(options), deadline=deadline)
        except AuthenticationFailed:  # by a broker that does not know her yet
            return False
        with closing(made):
            response = made.call(ControlledShutdownRequest(broker_id=1), deadline)
        return bool(response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    wait_until(rejected, PATIENCE_S, "she is rejected")
