"""Followers whose log ends outside their leader's: they ask it for its ends by ListOffsets, a
kbroker a Kafka 2.7.2 and the other way round.

Brokers start anew: ``tools/exam.py mixed``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from interop.mixed import MixedCluster, read, texts, waited, write
from kafka import KafkaConsumer, TopicPartition
from support.clients.topics import delete_records

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
BOTH = {KAFKA, KBROKER}
FOLLOWERS = pytest.mark.parametrize(
    "follower", [KBROKER, KAFKA], ids=["kbroker-asks-kafka", "kafka-asks-kbroker"]
)
NAMES = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    settings = {"auto.leader.rebalance.enable": "false"}
    with MixedCluster(tmp_path_factory.mktemp("cluster"), settings) as started:
        started.kafka(KAFKA)
        started.kbroker(KBROKER)
        yield started


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@FOLLOWERS
def test_follower_that_ends_before_its_leader_begins_restarts_there(
    cluster: MixedCluster, follower: int
) -> None:
    """Also where the records below the start are in the leader's file still."""
    topic, leader = next(NAMES), KAFKA + KBROKER - follower
    cluster.create(topic, {0: [leader, follower]})
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync")
    write(cluster.bootstrap, topic, texts(100, "a"))
    cluster.assert_same_logs(topic)
    first, second = cluster.members[leader], cluster.members[follower]
    second.stop()
    waited(lambda: cluster.isr(topic) == {leader}, "the leader is alone")
    write(first.bootstrap, topic, texts(100, "b"), linger_ms=20, batch_size=300)
    delete_records(first.bootstrap, topic, 0, 150)

    second.start()
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync again")
    begins = int(cluster.log_path(follower, topic).stem)
    assert 100 < begins <= 150, "it begins with the batch that has the first record"
    write(cluster.bootstrap, topic, texts(10, "c"))

    first.stop()
    waited(lambda: cluster.leader(topic) == follower, "the follower leads")
    assert ends(second.bootstrap, topic) == (150, 210)
    assert read(second.bootstrap, topic, 60) == texts(100, "b")[50:] + texts(10, "c")
    first.start()
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync once more")


@FOLLOWERS
def test_follower_without_epochs_that_ends_behind_its_leader_is_truncated(
    cluster: MixedCluster, follower: int
) -> None:
    """In format 1 no epoch says where the logs part, and an unclean leader lacks what was
    committed: the follower hears of it by its first fetch."""
    topic, leader = next(NAMES), KAFKA + KBROKER - follower
    cluster.create(
        topic,
        {0: [follower, leader]},
        message_format_version="0.10.2",
        unclean_leader_election_enable="true",
    )
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync")
    options = {"enable_idempotence": False}
    write(cluster.bootstrap, topic, texts(100, "a"), **options)
    cluster.assert_same_logs(topic)
    longer, shorter = cluster.members[follower], cluster.members[leader]
    shorter.stop()
    waited(lambda: cluster.isr(topic) == {follower}, "the other is alone")
    write(longer.bootstrap, topic, texts(50, "lost"), **options)
    longer.stop()
    shorter.start()
    waited(lambda: cluster.leader(topic) == leader, "the one with less leads")
    assert ends(shorter.bootstrap, topic) == (0, 100)

    longer.start()
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync again")
    cluster.assert_same_logs(topic)
    write(cluster.bootstrap, topic, texts(10, "b"), **options)
    cluster.assert_same_logs(topic)
    assert read(cluster.bootstrap, topic, 110) == texts(100, "a") + texts(10, "b")


def ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """The first offset and the high watermark, by the leader."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        at = TopicPartition(topic, 0)
        return consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
    finally:
        consumer.close()
