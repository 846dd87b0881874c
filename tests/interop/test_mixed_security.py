"""kbroker and Apache Kafka 2.7.2 in one cluster whose brokers connect by SASL_SSL: either controls,
leads, follows and coordinates.

Logins are by SCRAM and by Kerberos, and key and trust stores are PEM (KIP-651).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from interop.mixed import MixedCluster, read, texts, waited, write
from support.security.kerberos import (
    HOST,
    MODULE,
    REALM,
    SERVICE,
    Kdc,
    gssapi_or_skip,
    kerberos_missing,
)
from support.security.secured_peers import USER, SecuredPeers, write_user

from kbroker.testing import Broker
from kbroker.testing.ports import LOCALHOST, HeldPort

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
SCRAM, GSSAPI = "SCRAM-SHA-512", "GSSAPI"
PARTITIONS = 4
NAMES = (f"t{number}" for number in itertools.count())


def by_kerberos(place: Path, stack: ExitStack) -> dict[str, str]:
    """Settings of both brokers, which have the same principal: they are on one host."""
    kdc = stack.enter_context(closing(Kdc(place)))
    patched = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in kdc.environment.items():
        patched.setenv(name, value)
    java = f"-Djava.security.krb5.conf={kdc.environment['KRB5_CONFIG']}"
    patched.setenv("JDK_JAVA_OPTIONS", java)
    principal = f"{SERVICE}/{HOST}@{REALM}"
    keys = f'keyTab="{kdc.key_tab(principal)}" principal="{principal}"'
    return {
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": GSSAPI,
        "sasl.mechanism.inter.broker.protocol": GSSAPI,
        "sasl.kerberos.service.name": SERVICE,
        "listener.name.sasl_ssl.gssapi.sasl.jaas.config": f"{MODULE} {keys};",
    }


@pytest.fixture(scope="module", params=[SCRAM, GSSAPI])
def mechanism(request: pytest.FixtureRequest) -> str:
    if request.param == GSSAPI:
        gssapi_or_skip()
        if kerberos_missing():
            pytest.skip(kerberos_missing())
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def cluster(mechanism: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Clients use PLAINTEXT, and are super users, too."""
    with ExitStack() as stack:
        yield started(mechanism, tmp_path_factory, stack)


def started(
    mechanism: str, tmp_path_factory: pytest.TempPathFactory, stack: ExitStack
) -> MixedCluster:
    site = tmp_path_factory.mktemp("site")
    peers = SecuredPeers(site)
    if mechanism == GSSAPI:
        secured = by_kerberos(site, stack)
    else:
        secured = peers.settings("SASL_SSL", mechanism)
    settings = {
        **{name: text for name, text in secured.items() if name not in peers.stores()},
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{USER};User:{SERVICE};User:ANONYMOUS",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
    }
    ports = [HeldPort() for _ in range(4)]
    for port in ports:
        stack.callback(port.release)
    listeners = [
        f"PLAINTEXT://{LOCALHOST}:{first.number},SASL_SSL://{HOST}:{second.number}"
        for first, second in zip(ports[::2], ports[1::2], strict=True)
    ]
    mixed = stack.enter_context(MixedCluster(tmp_path_factory.mktemp("cluster"), settings))
    if mechanism == SCRAM:
        write_user(mixed.connect, mechanism)
    stores = peers.stores_in_properties()
    mixed.kafka(KAFKA, port=ports[0].number, listeners=listeners[0], **stores)
    mixed.kbroker(KBROKER, listeners=listeners[1], **peers.stores())
    return mixed


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
