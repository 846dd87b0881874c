"""Tools that list beside Kafka's own: groups of all types, and subscriptions to client metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop.beside import BESIDE, Beside

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = BESIDE

GROUPS = "kafka-groups", "org.apache.kafka.tools.GroupsCommand"
METRICS = "kafka-client-metrics", "org.apache.kafka.tools.ClientMetricsCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=1, group_initial_rebalance_delay_ms=0) as started:
        yield started


@pytest.fixture(scope="module")
def both(broker: Broker) -> Iterator[Beside]:
    found = Beside(broker.bootstrap)
    yield found
    found.close()


def test_groups_are_listed_alike(both: Beside, broker: Broker) -> None:
    def same(*words: str) -> str:
        where = ("--bootstrap-server", broker.bootstrap)
        return both.same(*GROUPS, *where, *words, bootstrap=False).stdout

    same("--list")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("t", b"v").result(30)
    with Cluster(broker.bootstrap) as cluster:
        commit(cluster, "simple", {("t", 0): (0, "")})
    members = [
        KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=f"a-group-of-the-{protocol}-protocol",
            group_protocol=protocol,
            auto_offset_reset="earliest",
        )
        for protocol in ("classic", "consumer")
    ]
    for member in members:
        member.subscribe(["t"])
        while not member.poll(1.0):
            pass
    assert "a-group-of-the-consumer-protocol" in same("--list")
    for words in (
        ("--consumer",), ("--share",), ("--streams",), ("--protocol", "consumer"),
        ("--protocol", "connect"), ("--protocol", ""), ("--group-type", "classic"),
        ("--group-type", "CONSUMER"), ("--group-type", "share"), ("--group-type", "other"),
        ("--group-type", "consumer", "--protocol", "consumer"), ("--consumer", "--share"),
        ("--streams", "--protocol", "x"), ("--consumer", "--group-type", "classic"),
    ):  # fmt: skip
        same("--list", *words)
    for member in members:
        member.close()
    both.same(*GROUPS, bootstrap=False)
    both.same(*GROUPS, "--list", bootstrap=False)
    same("--consumer")
    same()


def test_client_metrics_are_managed_alike(both: Beside) -> None:
    def same(*words: str, **more: object) -> str:
        return both.same(*METRICS, *words, **more).stdout  # type: ignore[arg-type]

    same("--list")
    same("--describe")
    same("--alter", "--name", "sub-@-it", "--interval", "1000", "--metrics", "org.apache.,b",
         "--match", "client_id=a.*,client_software_name=b")  # fmt: skip
    assert "metrics=org.apache.,b" in same("--describe", "--name", "sub-@-it")
    same("--alter", "--name", "sub-@-it", "--interval", "")
    same("--alter", "--name", "sub-@-it", "--metrics", "", "--match", "")
    same("--describe", "--name", "sub-@-it")
    uuid = (r"(?<=for )[\w-]{22}(?=\.)",)
    same("--alter", "--generate-name", "--interval", "2000", masks=uuid)
    for words in (
        ("--describe", "--name", "nothing"), ("--delete", "--name", "nothing"),
        ("--alter", "--name", "sub-@-it", "--interval", "5"), ("--alter", "--name", "x-@-it"),
        ("--alter", "--name", "sub-@-it", "--interval", "soon"), ("--alter", "--interval", "1"),
        ("--alter", "--name", "sub-@-it", "--match", "no_such=x"), ("--delete",),
        ("--alter", "--name", "a", "--generate-name", "--interval", "1"), ("--list", "--name", "a"),
        ("--describe", "--interval", "1"), ("--list", "--describe"), (),
        ("--delete", "--name", "sub-@-it"), ("--describe", "--name", "sub-@-it"),
    ):  # fmt: skip
        same(*words)
    both.same(*METRICS, "--list", bootstrap=False)
