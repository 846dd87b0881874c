"""Three kbrokers in place of the one that most tests of this folder use.

KBROKER_EXAM_CLUSTER: PLAINTEXT, or the mechanism with which clients and brokers log in at their
common listener of SASL_SSL. Topics have three replicas, and a batch is acknowledged by two.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from support.brokers.all_processes import wait_until_all_serve
from support.brokers.zookeeper import skip_without_zookeeper
from support.drivers.access import Access
from support.security.secured_peers import PASSWORD, USER, SecuredPeers, write_user

from kbroker.testing import Broker, Cluster, wait_until
from kbroker.testing.cluster import BROKERS_LISTENER

EXAM_CLUSTER = "KBROKER_EXAM_CLUSTER"
PLAINTEXT = "PLAINTEXT"
BROKERS = REPLICAS = 3
SETTINGS = {"default.replication.factor": REPLICAS, "min.insync.replicas": 2}
PATIENCE_S = 60.0
START_S = 120.0


class ThreeBrokers:
    """They run from their creation to ``close``. place: for certificates."""

    def __init__(self, settings: Mapping[str, object], mechanism: str, place: Path) -> None:
        skip_without_zookeeper()
        self.cluster = _cluster({**settings, **SETTINGS}, mechanism, place)
        try:
            self.cluster.start()
            for one in self.cluster.brokers:
                wait_until_all_serve(one)
            self.access = self._access(mechanism, place)
            self._make_offsets_topic()
        except BaseException:
            self.close()
            raise

    def _access(self, mechanism: str, place: Path) -> Access:
        if mechanism == PLAINTEXT:
            return Access(self.cluster.bootstrap, replicas=REPLICAS)
        addresses = [one.listeners[BROKERS_LISTENER] for one in self.cluster.brokers]
        return Access(
            ",".join(addresses), mechanism, USER, PASSWORD, str(place / "ca.crt"), REPLICAS
        )

    def _make_offsets_topic(self) -> None:
        """Its creation would be part of the first test."""
        settings = {**self.access.librdkafka(), "group.id": "first"}
        with closing(Consumer(settings)) as consumer:

            def is_made() -> bool:
                try:
                    consumer.committed([TopicPartition("absent", 0)], timeout=PATIENCE_S)
                except KafkaException:  # its coordinator does not know of it yet
                    return False
                return True

            wait_until(is_made, PATIENCE_S, "there is a coordinator")

    def close(self) -> None:
        self.cluster.close()

    # -- what tests ask of one broker

    @property
    def bootstrap(self) -> str:
        return self.access.bootstrap

    @property
    def nodes(self) -> dict[int, str]:
        """The address of each broker for these clients."""
        return dict(enumerate(self.bootstrap.split(",")))

    @property
    def data_dir(self) -> Path:
        """Of broker 0, which has a replica of every partition, as each broker has."""
        return self.cluster.brokers[0].data_dir

    def leader(self, topic: str, partition: int) -> Broker:
        return self.cluster.brokers[self.cluster.partitions(topic)[partition].leader]


def _cluster(settings: Mapping[str, object], mechanism: str, place: Path) -> Cluster:
    if mechanism == PLAINTEXT:
        return Cluster(BROKERS, settings, start_timeout=START_S)
    secured = SecuredPeers(place).settings("SASL_SSL", mechanism, listener=BROKERS_LISTENER)
    settings = {**settings, **secured}
    cluster = Cluster(BROKERS, settings, between="SASL_SSL", start_timeout=START_S)
    if mechanism != "PLAIN":
        write_user(cluster.zookeeper_connect, mechanism)
    return cluster
