"""A kbroker that lost power takes its newest records back from a follower of Apache Kafka 2.7.2.

Brokers start anew for each protocol: ``tools/exam.py mixed``.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from interop.mixed import MixedCluster, read, texts, waited, write

from kbroker.storage.formats import BOOT_ID_NAME
from kbroker.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

KAFKA, KBROKER = 1, 2
TOPIC = "cut"


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.mark.parametrize("protocol", ["2.7-IV2", "2.6"])
def test_what_a_kafka_follower_has_is_taken_before_its_controller_s_leader_leads(
    tmp_path: Path, protocol: str
) -> None:
    """The follower answers up to its log end, above its high watermark. From version 12 on its
    epochs prove that it has the same log, before that the bytes of a batch.
    """
    settings = {
        "inter.broker.protocol.version": protocol,
        "auto.leader.rebalance.enable": "false",
        "log.flush.interval.ms": "3600000",
        # A wait that is used up would be seen: the test's patience is shorter.
        "replica.fetch.backoff.ms": "200",
    }
    with MixedCluster(tmp_path, settings) as cluster:
        kafka = cluster.kafka(KAFKA)
        kbroker = cluster.kbroker(KBROKER, **{"kbroker.tail.repair.wait.ms": "600000"})
        assert isinstance(kbroker, Broker)
        cluster.create(TOPIC, {0: [KBROKER, KAFKA]})
        waited(lambda: cluster.isr(TOPIC) == {KAFKA, KBROKER}, "both are in sync")
        write(kbroker.bootstrap, TOPIC, texts(20, "a"))
        for number in range(30):
            write(kbroker.bootstrap, TOPIC, [f"b{number:05}"])
        whole = cluster.log_bytes(KBROKER, TOPIC)
        cluster.assert_same_logs(TOPIC)

        kafka.stop()
        waited(lambda: cluster.isr(TOPIC) == {KBROKER}, "the leader is alone in sync")
        kbroker.kill_all()
        os.truncate(cluster.log_path(KBROKER, TOPIC), len(whole) // 2)
        (cluster.log_dir(KBROKER) / BOOT_ID_NAME).write_text(f"{uuid.uuid4()}\n")
        kafka.start()
        waited(lambda: cluster.controller == KAFKA, "Kafka is the controller")
        kbroker.start()

        expected = [*texts(20, "a"), *texts(30, "b")]
        assert read(cluster.bootstrap, TOPIC, len(expected)) == expected
        assert cluster.leader(TOPIC) == KBROKER
        assert cluster.log_bytes(KBROKER, TOPIC) == whole
        waited(lambda: cluster.isr(TOPIC) == {KAFKA, KBROKER}, "both are in sync again")
        cluster.assert_same_logs(TOPIC)
