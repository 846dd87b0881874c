"""kbroker and Apache Kafka 2.7.2 in one cluster: settings, reassignment, elections and deletion,
whichever of them is the controller.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from interop.mixed import MixedCluster, leaders, read, texts, waited, write
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from support.clients.writing import Writing

from kbroker.metastore import paths

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
NAMES = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path_factory.mktemp("cluster")) as started:
        started.kafka(KAFKA)
        started.kbroker(KBROKER)
        yield started


@pytest.fixture(scope="module", params=[KAFKA, KBROKER], ids=["by-kafka", "by-kbroker"])
def cluster(both: MixedCluster, request: pytest.FixtureRequest) -> MixedCluster:
    """Controlled by the one and then by the other."""
    both.have_control(request.param)
    return both


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture
def topic() -> str:
    return next(NAMES)


def assignment(cluster: MixedCluster, topic: str) -> list[int]:
    replicas: list[int] = cluster.document(paths.topic(topic))["partitions"]["0"]
    return replicas


def reassign(cluster: MixedCluster, topic: str, replicas: list[int]) -> None:
    data = paths.encode_reassignment({(topic, 0): replicas})
    cluster.store.create(paths.REASSIGN_PARTITIONS, data)
    waited(lambda: cluster.store.exists(paths.REASSIGN_PARTITIONS) is None, "it is complete")
    waited(lambda: assignment(cluster, topic) == replicas, "the document says so")


@pytest.mark.parametrize("leader", [KAFKA, KBROKER], ids=["from-kafka", "from-kbroker"])
def test_partition_is_moved_to_the_other_and_back(
    cluster: MixedCluster, topic: str, leader: int
) -> None:
    other = KAFKA + KBROKER - leader
    cluster.create(topic, {0: [leader]})
    write(cluster.bootstrap, topic, texts(50, "a"))
    with Writing(cluster.bootstrap, topic) as writing:
        writing.wait_for_more(5)

        reassign(cluster, topic, [other])

        writing.wait_for_more(5)
    assert (cluster.leader(topic), cluster.isr(topic)) == (other, {other})
    waited(lambda: not cluster.log_path(leader, topic).exists(), "the old log is deleted")
    reassign(cluster, topic, [leader])
    write(cluster.bootstrap, topic, texts(50, "b"))
    wanted = sorted([*texts(50, "a"), *writing.acknowledged, *texts(50, "b")])
    assert read(cluster.bootstrap, topic, len(wanted)) == wanted


def test_replica_is_added_and_preferred(cluster: MixedCluster, topic: str) -> None:
    cluster.create(topic, {0: [KAFKA]})
    write(cluster.bootstrap, topic, texts(20))
    reassign(cluster, topic, [KBROKER, KAFKA])
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "both are in sync")
    if cluster.leader(topic) != KBROKER:
        rows = [{"topic": topic, "partition": 0}]
        data = json.dumps({"version": 1, "partitions": rows}).encode()
        cluster.store.create(paths.PREFERRED_ELECTION, data)
    waited(lambda: cluster.leader(topic) == KBROKER, "the first replica leads")
    for member in cluster.members.values():
        waited(lambda member=member: leaders(member.bootstrap, topic) == {0: KBROKER}, "all know")
    cluster.assert_same_logs(topic)


@pytest.mark.parametrize("asked", [KAFKA, KBROKER], ids=["at-kafka", "at-kbroker"])
def test_settings_that_one_changes_are_used_by_the_other(
    cluster: MixedCluster, topic: str, asked: int
) -> None:
    cluster.create(topic, {0: [KAFKA, KBROKER]})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7654321"})
    with closing(KafkaAdminClient(bootstrap_servers=cluster.members[asked].bootstrap)) as admin:
        admin.alter_configs([resource])

    def described(number: int) -> str:
        bootstrap = cluster.members[number].bootstrap
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            return str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))

    for number in cluster.members:
        waited(lambda number=number: "7654321" in described(number), f"member {number} knows")


def test_topic_of_both_is_deleted(cluster: MixedCluster, topic: str) -> None:
    cluster.create(topic, {0: [KAFKA, KBROKER], 1: [KBROKER, KAFKA]})
    write(cluster.bootstrap, topic, texts(20), 2)
    cluster.delete(topic)
    for number in cluster.members:
        directory = cluster.log_dir(number) / f"{topic}-0"
        waited(lambda directory=directory: not directory.exists(), "its logs are deleted")


@pytest.mark.parametrize("leader", [KAFKA, KBROKER], ids=["led-by-kafka", "led-by-kbroker"])
def test_records_are_deleted_from_both(cluster: MixedCluster, topic: str, leader: int) -> None:
    """The answer waits for the follower, of either kind."""
    follower = KAFKA + KBROKER - leader
    cluster.create(topic, {0: [leader, follower]})
    write(cluster.bootstrap, topic, texts(20))
    waited(lambda: cluster.isr(topic) == {KAFKA, KBROKER}, "both are in sync")
    below = {TopicPartition(topic, 0): 15}
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        found = admin.delete_records(below, timeout_ms=20_000)
    assert [response["low_watermark"] for response in found.values()] == [15]
    assert read(cluster.bootstrap, topic, 5) == sorted(texts(20)[15:])
