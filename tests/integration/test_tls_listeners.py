"""TLS listeners, with real processes and the clients that people have."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.running.grids import some_of

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.security.certificates import Authority, create_authority
from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HOST = "127.0.0.1"
USER, PASSWORD = "bob", "b-secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
# Enough that fetches are sent from the file, in many records of TLS.
VALUE_BYTES, VALUES = 100_000, 60
API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x01\xff\xff"


class Site(NamedTuple):
    """Files, by what is in them."""

    authority: Authority
    place: Path
    trust: Path
    broker: Path
    alice: Path
    stranger: Path


def replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    place = tmp_path_factory.mktemp("site")
    authority = create_authority("test CA")
    found = Site(authority, place, *(place / f"{name}.pem" for name in Site._fields[2:]))
    found.trust.write_bytes(authority.certificate)
    found.broker.write_bytes(authority.issue("broker", hosts=[HOST], server=True).pem)
    found.alice.write_bytes(authority.issue("alice").pem)
    found.stranger.write_bytes(create_authority("another CA").issue("alice").pem)
    return found


@pytest.fixture(scope="module")
def broker(site: Site) -> Iterator[Broker]:
    settings = {
        "listeners": ",".join(
            f"{name}://{HOST}:0" for name in ("PLAINTEXT", "SSL", "SASL_SSL", "MUTUAL")
        ),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,"
        "MUTUAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": site.broker,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": site.trust,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1@site/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_{USER}="{PASSWORD}";',
    }
    with Broker(settings) as started:
        yield started


def address(broker: Broker, listener: str) -> str:
    return str(broker.listeners[listener])


def librdkafka(broker: Broker, site: Site, listener: str, **settings: Any) -> dict[str, Any]:
    found = {
        "bootstrap.servers": address(broker, listener),
        "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
        "ssl.ca.location": str(site.trust),
        "logger": QUIET,
    }
    if listener == "SASL_SSL":
        found |= {"sasl.mechanisms": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    return found | {name.replace("_", "."): value for name, value in settings.items()}


class Quiet:
    def log(self, *args: Any) -> None:
        pass


QUIET = Quiet()


def kafka_python(broker: Broker, site: Site, listener: str) -> dict[str, Any]:
    found = {
        "bootstrap_servers": address(broker, listener),
        "security_protocol": listener,
        "ssl_cafile": str(site.trust),
    }
    if listener == "SASL_SSL":
        found |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    return found


def own_client(broker: Broker, site: Site, listener: str) -> Cluster:
    options = {
        "security.protocol": listener,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(site.trust),
    }
    if listener == "SASL_SSL":
        options |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    return Cluster(address(broker, listener), Security.from_options(options), deadline=20)


def mutual(site: Site, key: Path) -> dict[str, str]:
    return {"ssl_certificate_location": str(key), "ssl_key_location": str(key)}


def context(site: Site, key: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(site.trust))
    if key is not None:
        made.load_cert_chain(key)
    return made


def ask(broker: Broker, listener: str, used: ssl.SSLContext) -> bytes:
    """Connect, and send a request; returns the broker's certificate."""
    host, _, port = address(broker, listener).rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        used.wrap_socket(plain, server_hostname=host) as secured,
    ):
        secured.sendall(API_VERSIONS)
        response = secured.recv(4096)
        assert response[4:8] == b"\0\0\0\x01"
        certificate = secured.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


# -- clients


@pytest.mark.parametrize("listener", some_of(["SSL", "SASL_SSL"], ["SASL_SSL"]))
@pytest.mark.slow
def test_clients_write_and_read_megabytes(broker: Broker, site: Site, listener: str) -> None:
    topic = f"big-{listener}"
    written = [os.urandom(VALUE_BYTES) for _ in range(VALUES)]
    half = VALUES // 2
    first = confluent_kafka.Producer(librdkafka(broker, site, listener, linger_ms=5))
    for value in written[:half]:
        first.produce(topic, value, partition=0)
    assert first.flush(30) == 0
    second = kafka.KafkaProducer(**kafka_python(broker, site, listener))
    try:
        sent = [second.send(topic, value, partition=0) for value in written[half:]]
        assert [each.get(timeout=20).offset for each in sent] == list(range(half, VALUES))
    finally:
        second.close(timeout=5)

    consumer = confluent_kafka.Consumer(
        librdkafka(broker, site, listener, group_id="g", fetch_message_max_bytes=8_000_000)
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        found: list[bytes] = []
        while len(found) < VALUES:
            messages = consumer.consume(VALUES, 20)
            assert messages, f"only {len(found)} records arrived"
            found += [message.value() for message in messages]
        assert found == written
    finally:
        consumer.close()
    reader = kafka.KafkaConsumer(
        **kafka_python(broker, site, listener), max_partition_fetch_bytes=8_000_000
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        reader.assign([partition])
        reader.seek_to_beginning(partition)
        assert [next(reader).value for _ in range(VALUES)] == written
    finally:
        reader.close()


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_own_client_writes_and_reads_megabytes(broker: Broker, site: Site, listener: str) -> None:
    pa = pytest.importorskip("pyarrow")
    from support.clients import client_topics

    from kbroker.client.batches.arrow import ArrowProducer

    topic = f"own-{listener}"
    written = [os.urandom(VALUE_BYTES) for _ in range(VALUES)]
    with own_client(broker, site, listener) as cluster:
        client_topics.create(cluster, topic)
        with ArrowProducer(cluster, topic=topic) as producer:
            producer.write(pa.record_batch({"value": written}))
        assert client_topics.values(cluster, topic) == written


def test_principal_is_the_name_in_the_clients_certificate(broker: Broker, site: Site) -> None:
    settings = librdkafka(broker, site, "MUTUAL", **mutual(site, site.alice))
    producer = confluent_kafka.Producer(settings)
    producer.produce("of-alice", b"x")
    assert producer.flush(20) == 0
    resource = ConfigResource(
        ResourceType.TOPIC,
        "of-alice",
        incremental_configs=[
            ConfigEntry("retention.ms", "77777", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin = AdminClient(settings)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(20)
    assert "settings of topic of-alice: retention.ms for User:alice@site" in broker.log_text


def test_certificate_is_what_acls_are_about(site: Site) -> None:
    """Alice may produce; a client on the listener without certificates is nobody."""
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:0,SSL://{HOST}:0,MUTUAL://{HOST}:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": site.broker,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": site.trust,
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:CN=alice",
    }
    with Broker(settings) as guarded:
        told: list[Any] = []
        for listener, more in (("MUTUAL", mutual(site, site.alice)), ("SSL", {})):
            producer = confluent_kafka.Producer(librdkafka(guarded, site, listener, **more))
            producer.produce("guarded", b"x", on_delivery=lambda error, _: told.append(error))
            assert producer.flush(20) == 0
        assert told[0] is None
        assert told[1].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("listener", ["SSL", "MUTUAL"])
def test_session_is_resumed(broker: Broker, site: Site, version: str, listener: str) -> None:
    used = context(site, site.alice if listener == "MUTUAL" else None)
    used.minimum_version = used.maximum_version = ssl.TLSVersion[version]
    host, _, port = address(broker, listener).rpartition(":")
    session, resumed = None, []
    for _ in range(3):
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            used.wrap_socket(plain, server_hostname=host, session=session) as secured,
        ):
            secured.sendall(API_VERSIONS)
            assert secured.recv(4096)[4:8] == b"\0\0\0\x01"  # and before that, a ticket
            session = secured.session
            resumed.append(secured.session_reused)
    assert resumed == [False, True, True]


# -- who is refused


def test_client_without_certificate_is_told_and_named(broker: Broker, site: Site) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
        ask(broker, "MUTUAL", context(site))
    wait_until(lambda: "(the client has shown no certificate; ssl.client" in broker.log_text)


def test_client_with_the_certificate_of_another_authority_is_told_and_named(
    broker: Broker, site: Site
) -> None:
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        ask(broker, "MUTUAL", context(site, site.stranger))
    wait_until(lambda: "(the certificate is not accepted, " in broker.log_text)


def test_client_that_does_not_trust_the_broker_is_named(broker: Broker) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(broker, "SSL", ssl.create_default_context())
    wait_until(lambda: "(the client does not trust the certificate" in broker.log_text)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (API_VERSIONS, "a Kafka request in plaintext on a TLS listener"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request on a TLS listener"),
        (b"\x16\x03\x01\x00\x05hello", "a failed TLS handshake ("),
    ],
)
def test_bytes_that_are_not_tls_are_named_and_cost_nobody_else(
    broker: Broker, site: Site, sent: bytes, told: str
) -> None:
    before = len(broker.log_text)
    host, _, port = address(broker, "SSL").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        plain.sendall(sent)
        while plain.recv(4096):  # an alert, if anything, and then the end
            pass
    wait_until(lambda: told in broker.log_text[before:])
    ask(broker, "SSL", context(site))


def test_start_without_a_key_store_is_refused() -> None:
    settings = {"listeners": f"SSL://{HOST}:0", "inter.broker.listener.name": "SSL"}
    with pytest.raises(BrokerFailed, match=r"exited with 2(?s:.*)ssl\.keystore\.location"):
        Broker(settings).start()


# -- changes while it runs


def test_store_that_does_not_load_is_refused_in_alter_configs(broker: Broker, site: Site) -> None:
    broken = site.place / "broken.pem"
    broken.write_bytes(site.trust.read_bytes())  # no private key
    name = "listener.name.ssl.ssl.keystore.location"
    entry = ConfigEntry(name, str(broken), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address(broker, "PLAINTEXT"), "logger": QUIET})
    (done,) = admin.incremental_alter_configs([resource]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="a store that loads"):
        done.result(20)
    assert "one private key" in broker.log_text, "the client is not told what is in files"
    ask(broker, "SSL", context(site))


def test_replaced_certificate_is_served_without_a_failed_connection(
    broker: Broker, site: Site
) -> None:
    """An established producer, and a client that connects over and over."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        librdkafka(broker, site, "SSL", linger_ms=1) | {"error_cb": errors.append}
    )
    delivered: list[Any] = []
    old = ask(broker, "SSL", context(site))
    new = site.authority.issue("broker", hosts=[HOST], server=True)
    expected = ssl.PEM_cert_to_DER_cert(new.certificate.decode())
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            producer.produce("rotated", b"x" * 100, on_delivery=lambda e, _: delivered.append(e))
            producer.poll(0.002)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        replace(site.broker, new.pem)
        used, in_a_row = context(site), 0
        seen = set()
        while in_a_row < 20:  # by both network processes
            shown = ask(broker, "SSL", used)
            seen.add(shown)
            in_a_row = in_a_row + 1 if shown == expected else 0
            stop.wait(0.02)  # the broker looks at its files only now and then
    finally:
        stop.set()
        thread.join()
    assert producer.flush(20) == 0
    assert seen <= {old, expected}
    assert delivered
    assert not any(delivered)
    assert errors == []
