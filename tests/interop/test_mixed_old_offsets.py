"""Group offsets that Kafka 2.7.2 has written in message format 0 or 1 are those of a kbroker that
takes them over: ``__consumer_offsets`` follows ``log.message.format.version``.

Brokers start anew: ``tools/exam.py mixed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from interop.mixed import MixedCluster, commit, committed, magics, waited

from kbroker.cli.adopt import main as adopt
from kbroker.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
TOPIC, OFFSETS = "t", "__consumer_offsets"
PARTITIONS = range(3)  # of OFFSETS
GROUPS = {f"g{number}": 100 + number for number in range(8)}
DELETED = "deleted"
NO_OFFSET = -1001
GZIP = "1"
# With a codec, the messages are inside others.
FORMATS = pytest.mark.parametrize(
    ("version", "magic", "codec"),
    [("0.9.0", 0, "0"), ("0.10.2", 1, GZIP)],
    ids=["format-0", "format-1-gzip"],
)


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


def settings(version: str, codec: str, replicas: int) -> dict[str, str]:
    return {
        "log.message.format.version": version,
        "offsets.topic.compression.codec": codec,
        "offsets.topic.replication.factor": str(replicas),
        "auto.leader.rebalance.enable": "false",
    }


def commit_all(bootstrap: str) -> None:
    """One group commits twice, one is deleted."""
    commit(bootstrap, "g0", TOPIC, 1)
    for group, offset in {DELETED: 7, **GROUPS}.items():
        commit(bootstrap, group, TOPIC, offset)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_consumer_groups([DELETED]).values():
        done.result()


def check(bootstrap: str, changed: Mapping[str, int] = {}) -> None:
    """Every group has its offset."""
    for group, offset in {**GROUPS, DELETED: NO_OFFSET, **changed}.items():
        assert committed(bootstrap, group, TOPIC) == [offset], group


@FORMATS
def test_offsets_of_kafka_are_kept_when_the_coordinator_is_another(
    tmp_path: Path, version: str, magic: int, codec: str
) -> None:
    """A kbroker, which commits in format 2; that kbroker again; and the Kafka, which has both."""
    with MixedCluster(tmp_path, settings(version, codec, 2)) as cluster:
        kafka, kbroker = cluster.kafka(KAFKA), cluster.kbroker(KBROKER)

        def lead(member: int) -> None:
            waited(
                lambda: all(cluster.leader(OFFSETS, n) == member for n in PARTITIONS),
                f"{member} coordinates all groups",
            )

        def sync() -> None:
            waited(
                lambda: all(cluster.isr(OFFSETS, n) == {KAFKA, KBROKER} for n in PARTITIONS),
                "both are in sync",
            )

        cluster.create(TOPIC, {0: [KAFKA, KBROKER]})
        commit(cluster.bootstrap, "first", TOPIC, 3)
        kbroker.stop()
        lead(KAFKA)
        kbroker.start()
        cluster.wait_ready()
        sync()
        begins = [len(cluster.log_bytes(KAFKA, OFFSETS, number)) for number in PARTITIONS]
        commit_all(kafka.bootstrap)
        for number in PARTITIONS:
            cluster.assert_same_logs(OFFSETS, partition=number)
        written = [cluster.log_bytes(KBROKER, OFFSETS, n)[begins[n] :] for n in PARTITIONS]
        assert set().union(*map(magics, written)) == {magic}

        kafka.stop()
        lead(KBROKER)
        check(kbroker.bootstrap)
        later = {"g1": 501, "new": 502, "first": 503}
        for group, offset in later.items():
            commit(kbroker.bootstrap, group, TOPIC, offset)
        kbroker.stop()
        kbroker.start()
        lead(KBROKER)
        check(kbroker.bootstrap, later)

        kafka.start()
        cluster.wait_ready()
        sync()
        kbroker.stop()
        lead(KAFKA)
        check(kafka.bootstrap, later)


@FORMATS
@pytest.mark.parametrize("way", ["in place", "adopted"])
def test_offsets_of_kafka_are_those_of_the_kbroker_on_its_directories(
    tmp_path: Path, version: str, magic: int, codec: str, way: str
) -> None:
    """With its ZooKeeper and settings, and by ``kbroker-adopt``; also once it was restarted."""
    with MixedCluster(tmp_path, settings(version, codec, 1)) as cluster:
        kafka = cluster.kafka(KAFKA)
        cluster.create(TOPIC, {0: [KAFKA]})
        commit_all(kafka.bootstrap)
        kafka.stop()
        written = [cluster.log_bytes(KAFKA, OFFSETS, number) for number in PARTITIONS]
        assert set().union(*map(magics, written)) == {magic}

        if way == "in place":
            broker = cluster.replace(KAFKA, kafka)
            check_served(broker)
            return
        assert adopt(["--log-dirs", str(cluster.log_dir(KAFKA))]) == 0
        own = {"log.dirs": str(cluster.log_dir(KAFKA)), "broker.id": KAFKA}
        with Broker(own, directory=tmp_path / "adopted", start_timeout=60) as broker:
            check_served(broker)


def check_served(broker: Broker) -> None:
    check(broker.bootstrap)
    commit(broker.bootstrap, "g2", TOPIC, 600)
    broker.stop()
    broker.start()
    check(broker.bootstrap, {"g2": 600})
