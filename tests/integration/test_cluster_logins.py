"""Brokers that log in at each other with tokens that end all the time, and by Kerberos."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.zookeeper import skip_without_zookeeper
from support.security.kerberos import MODULE, REALM, SERVICE, Kdc, gssapi_or_skip, kerberos_missing

from kbroker.testing import Broker, Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

HOST, LISTENER, TOPIC = "127.0.0.1", "BROKERS", "t"
OWN = f"listener.name.{LISTENER.lower()}"
PATIENCE_S = 60
TOKEN_S = 4


@contextmanager
def started(mechanism: str, settings: dict[str, Any]) -> Iterator[Cluster]:
    """Two brokers; nobody but their user may do what brokers do."""
    skip_without_zookeeper()
    base = {
        "inter.broker.listener.name": LISTENER,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:kafka;User:ANONYMOUS",
    }
    with closing(Cluster(2, {**base, **settings}, between="SASL_PLAINTEXT")) as cluster:
        yield cluster.start()


def write_and_read(cluster: Cluster, seconds: float) -> None:
    """Each record is acknowledged by both brokers, and is read once."""
    servers = {"bootstrap.servers": cluster.bootstrap}
    wanted = NewTopic(TOPIC, 4, 2, config={"min.insync.replicas": "2"})
    admin = AdminClient(servers)
    for future in admin.create_topics([wanted]).values():
        future.result()
    cluster.wait_in_sync(TOPIC)
    failed: list[Any] = []
    producer = Producer({**servers, "acks": "all"})
    until, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < until:
        for _ in range(20):
            producer.produce(
                TOPIC, str(count).encode(), partition=count % 4,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            count += 1
        assert producer.flush(PATIENCE_S) == 0
    assert failed == []
    consumer = Consumer({**servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[int] = []
    until = time.monotonic() + PATIENCE_S
    with closing(consumer):
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} of {count} records"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(int(message.value()))
    assert sorted(found) == list(range(count))


def warnings(broker: Broker, since: int) -> list[str]:
    """What went wrong between brokers."""
    lines = broker.log_text[since:].splitlines()
    return [line for line in lines if re.search("WARNING|ERROR", line) and "broker" in line]


def logins(broker: Broker) -> int:
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as page:
        text = page.read().decode()
    name = "kbroker_successful_authentication_total"
    return sum(map(int, re.findall(rf'^{name}{{[^}}]*"{LISTENER}"[^}}]*}} (\d+)$', text, re.M)))


def test_tokens_that_end_are_replaced_without_an_error(tmp_path: Path) -> None:
    """A session ends with its token (KIP-368), and the next token is another one."""
    jwt = pytest.importorskip("jwt", reason="needs PyJWT (pip: kbroker[oauth])")
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    keys, place = tmp_path / "jwks.json", tmp_path / "token"
    keys.write_text(json.dumps({"keys": [public | {"kid": "k1"}]}))
    is_over = threading.Event()

    def write_token() -> None:
        now = time.time()
        claims = {"sub": "kafka", "iat": now, "exp": now + TOKEN_S}
        text = jwt.encode(claims, private, algorithm="ES256", headers={"kid": "k1"})
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(place)

    def renew() -> None:
        while not is_over.wait(TOKEN_S / 8):
            write_token()

    write_token()
    renewing = threading.Thread(target=renew)
    renewing.start()
    settings = {
        f"{OWN}.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.token.endpoint.url": place.as_uri(),
        "sasl.oauthbearer.clock.skew.seconds": 0,
        "sasl.oauthbearer.allowed.urls": f"{keys.as_uri()},{place.as_uri()}",
    }
    try:
        with started("OAUTHBEARER", settings) as cluster:
            marks = [len(broker.log_text) for broker in cluster.brokers]
            before = [logins(broker) for broker in cluster.brokers]
            write_and_read(cluster, 3 * TOKEN_S)
            after = [logins(broker) for broker in cluster.brokers]
            assert [warnings(*each) for each in zip(cluster.brokers, marks, strict=True)] == [
                [],
                [],
            ]
    finally:
        is_over.set()
        renewing.join()
    assert all(late >= early + 2 for early, late in zip(before, after, strict=True))


def test_brokers_log_in_by_kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the keys by which they are known, and tickets that the library gets."""
    gssapi_or_skip()
    if kerberos_missing():
        pytest.skip(kerberos_missing())
    with closing(Kdc(tmp_path)) as kdc:
        principal = f"{SERVICE}/{HOST}@{REALM}"
        keys = kdc.key_tab(principal)
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        settings = {
            "sasl.kerberos.service.name": SERVICE,
            f"{OWN}.gssapi.sasl.jaas.config": (
                f'{MODULE} keyTab="{keys}" principal="{principal}";'
            ),
            f"{OWN}.connections.max.reauth.ms": 3000,
        }
        with started("GSSAPI", settings) as cluster:
            marks = [len(broker.log_text) for broker in cluster.brokers]
            before = [logins(broker) for broker in cluster.brokers]
            write_and_read(cluster, 8)
            after = [logins(broker) for broker in cluster.brokers]
            assert [warnings(*each) for each in zip(cluster.brokers, marks, strict=True)] == [
                [],
                [],
            ]
    assert all(late >= early + 2 for early, late in zip(before, after, strict=True))
