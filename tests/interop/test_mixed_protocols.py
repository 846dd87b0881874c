"""Mixed clusters in the protocols of older Kafkas: each version of the requests between brokers.

Brokers start anew for each: ``tools/exam.py mixed``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.mixed import MixedCluster, read, texts, waited, write

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.mark.parametrize("controller", [KAFKA, KBROKER], ids=["kafka", "kbroker"])
@pytest.mark.parametrize("protocol", ["1.1", "2.4", "2.6", "2.7-IV1"])
def test_each_follows_the_other_and_takes_over(
    tmp_path: Path, protocol: str, controller: int
) -> None:
    """Followers join the in-sync replicas, which the leader writes itself below 2.7-IV2."""
    settings = {
        "inter.broker.protocol.version": protocol,
        "auto.leader.rebalance.enable": "false",
    }
    with MixedCluster(tmp_path, settings) as cluster:
        cluster.kafka(KAFKA)
        cluster.kbroker(KBROKER)
        cluster.have_control(controller)
        kafka, kbroker = cluster.members[KAFKA], cluster.members[KBROKER]
        both = {KAFKA, KBROKER}
        assignments = {"led-by-kafka": [KAFKA, KBROKER], "led-by-kbroker": [KBROKER, KAFKA]}
        for topic, assignment in assignments.items():
            cluster.create(topic, {0: assignment}, min_insync_replicas="2")
            waited(lambda topic=topic: cluster.isr(topic) == both, "both are in sync")
            write(kafka.bootstrap, topic, texts(50, "a"))
            cluster.assert_same_logs(topic)
        for member, number in ((kbroker, KBROKER), (kafka, KAFKA)):
            member.stop()
            for topic in assignments:
                other = both - {number}
                waited(lambda topic=topic, o=other: {cluster.leader(topic)} == o, "other leads")
            member.start()
            for topic in assignments:
                waited(lambda topic=topic: cluster.isr(topic) == both, "both are in sync again")
                write(kbroker.bootstrap, topic, texts(50, f"b{number}"))
                cluster.assert_same_logs(topic)
        for topic in assignments:
            expected = [*texts(50, "a"), *texts(50, "b1"), *texts(50, "b2")]
            assert read(kafka.bootstrap, topic, 150) == expected
