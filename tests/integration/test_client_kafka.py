"""The client against Apache Kafka 3.9.1: reads, writes, transactions, SASL over TLS."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402
from support.security import certificates  # noqa: E402

from kbroker.client.batches import transactions  # noqa: E402
from kbroker.client.batches.arrow import ArrowProducer  # noqa: E402
from kbroker.client.batches.counts import count_records  # noqa: E402
from kbroker.client.batches.offsets import commit, committed, log_dir_sizes, retention_of  # noqa: E402
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.connections.security import Security  # noqa: E402
from kbroker.client.errors import (  # noqa: E402
    AuthenticationFailed,
    OffsetOutOfRange,
    RejectedError,
    Timeout,
)
from kbroker.protocol.messages.alter_user_scram_credentials import (  # noqa: E402
    AlterUserScramCredentialsRequest,
)
from kbroker.testing import java_home  # noqa: E402

# The libraries are fetched by the comparison in perf/ (perf/kafka_distribution.py) or by Maven.
LIBRARIES = Path(__file__).resolve().parents[2] / ".cache" / "kafka-3.9.1" / "complete"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not LIBRARIES.exists() or java_home() is None or not certificates.OPENSSL,
        reason="needs Kafka 3.9.1 in .cache (perf/kafka_distribution.py), Java and openssl",
    ),
]

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="x" user_alice="secret";'
)


class Kafka:
    """One Kafka with a plain and a SASL_SSL listener."""

    def __init__(self, place: Path) -> None:
        from perf.brokers import KafkaBroker, free_ports

        self.pem = certificates.make(place, "kafka")
        self.stranger = certificates.make(place, "stranger")
        self.broker = KafkaBroker(place)
        secure = free_ports(1)[0]
        self.secure = f"localhost:{secure}"
        settings = self.broker.configuration
        settings["listeners"] += f",SECURE://127.0.0.1:{secure}"
        settings["advertised.listeners"] += f",SECURE://localhost:{secure}"
        settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
        prefix = "listener.name.secure."
        settings |= {
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}plain.sasl.jaas.config": JAAS,
            f"{prefix}scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{prefix}scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(self.pem.both),
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
        }

    def secured(self, **changed: str) -> Cluster:
        options = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": str(self.pem.certificate),
        }
        options |= {name.replace("_", "."): value for name, value in changed.items()}
        return Cluster(self.secure, Security.from_options(options), deadline=20)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    made = Kafka(tmp_path_factory.mktemp("kafka"))
    made.broker.start()
    try:
        yield made
    finally:
        made.broker.stop()


@pytest.fixture
def cluster(kafka: Kafka) -> Iterator[Cluster]:
    with Cluster(kafka.broker.bootstrap, deadline=30) as made:
        yield made


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_of_each_codec_come_back(cluster, codec):
    name = f"codec-{codec}"
    topics.create(cluster, name, 2)
    topics.write(cluster, name, 20_000, codec=codec, batch_bytes=5000)

    found = [int(v) for partition in (0, 1) for v in topics.values(cluster, name, partition)]

    assert sorted(found) == list(range(20_000))
    counted = [
        count_records(cluster, name, partition, *topics.ends(cluster, name)[partition])
        for partition in (0, 1)
    ]
    assert sum(row.records for one in counted for row in one.values()) == 20_000
    assert sum(log_dir_sizes(cluster, [name]).values()) > 1000


def test_range_errors_are_those_of_any_broker(cluster):
    topics.create(cluster, "ranges")
    topics.write(cluster, "ranges", 100)
    topics.delete_records(cluster, "ranges", 40)

    with pytest.raises(OffsetOutOfRange) as caught:
        topics.values(cluster, "ranges", start=10, end=100)
    assert (caught.value.log_start, caught.value.log_end) == (40, 100)
    with pytest.raises(Timeout):
        topics.values(cluster, "ranges", start=50, end=101, deadline=1.0)


def test_transactions_end_as_told_and_offsets_count_with_them(cluster):
    """Kafka 3.9 uses the first protocol."""
    topics.create(cluster, "txn")
    wanted = []
    with ArrowProducer(cluster, topic="txn", transactional_id="txn", batch_bytes=300) as producer:
        for number in range(9):
            identity = producer.begin()
            assert not identity.implicit
            producer.write(topics.numbered(100 * number, 100))
            if number == 4:
                producer.flush()
                transactions.commit_offsets(cluster, identity, "g", {("txn", 0): (44, "m")})
            producer.end(commit=number % 2 == 0)
            wanted += range(100 * number, 100 * number + 100) if number % 2 == 0 else []

    assert [int(v) for v in topics.values(cluster, "txn", read_committed=True)] == wanted
    assert committed(cluster, "g")["txn", 0][:2] == (44, "m")
    commit(cluster, "g", {("txn", 0): (45, "")})
    assert committed(cluster, "g", [("txn", 0)])["txn", 0].offset == 45
    assert retention_of(cluster, "g") == 7 * 86_400


def test_driver_ends_what_a_task_began(cluster):
    topics.create(cluster, "driver")
    task = ArrowProducer(cluster, topic="driver", transactional_id="driver")
    identity = task.begin()
    task.write(topics.numbered(0, 10))
    task.flush()
    task.close()

    for _ in range(2):
        transactions.end_transaction(cluster, identity, commit=True)
    with pytest.raises(RejectedError):
        transactions.end_transaction(cluster, identity, commit=False)

    assert len(topics.values(cluster, "driver", read_committed=True)) == 10


# -- SASL over TLS


def scram_user(cluster: Cluster, mechanism: int, digest: str, password: str) -> None:
    salt = os.urandom(16)
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="bob",
        mechanism=mechanism,
        iterations=8192,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac(digest, password.encode(), salt, 8192),
    )
    request: Any = AlterUserScramCredentialsRequest(deletions=[], upsertions=[row])
    response = cluster.call(None, request)
    assert response.results[0].error_code == 0, response.results[0].error_message


def test_plain_user_writes_and_reads_over_tls(kafka):
    with kafka.secured() as cluster:
        topics.create(cluster, "secured")
        topics.write(cluster, "secured", 20_000)

        assert topics.values(cluster, "secured") == [b"%d" % n for n in range(20_000)]


@pytest.mark.parametrize(
    ("mechanism", "number", "digest"),
    [("SCRAM-SHA-256", 1, "sha256"), ("SCRAM-SHA-512", 2, "sha512")],
)
def test_scram_user_reads_over_tls(kafka, cluster, mechanism, number, digest):
    scram_user(cluster, number, digest, "pencil")

    with kafka.secured(
        sasl_mechanism=mechanism, sasl_username="bob", sasl_password="pencil"
    ) as one:
        assert isinstance(one.topics(), dict)
    with (
        pytest.raises(AuthenticationFailed, match=mechanism),
        kafka.secured(sasl_mechanism=mechanism, sasl_username="bob", sasl_password="no") as one,
    ):
        one.topics()


def test_wrong_password_is_told_at_once(kafka):
    with pytest.raises(AuthenticationFailed, match="PLAIN"):
        kafka.secured(sasl_password="wrong").topics()


def test_certificate_that_is_not_trusted_is_told_at_once(kafka):
    with pytest.raises(AuthenticationFailed, match="not trusted"):
        kafka.secured(ssl_ca_location=str(kafka.stranger.certificate)).topics()
