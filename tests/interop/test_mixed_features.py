"""Apache Kafka 2.7.2 in a cluster of kbrokers whose features it does not know.

Brokers start anew for each: ``tools/exam.py mixed``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.mixed import MixedCluster, waited
from support.brokers.kafka_servers import Kafka27

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


def finalized(cluster: MixedCluster) -> bool:
    return bool((cluster.document("/kbroker/features") or {}).get("features"))


@pytest.mark.parametrize("joined_before", [False, True], ids=["new", "returning"])
def test_kafka_ends_at_start_and_names_the_features(tmp_path: Path, joined_before: bool) -> None:
    """A new one, and one that was a member before; the kbroker goes on without it."""
    with MixedCluster(tmp_path) as cluster:
        if joined_before:
            cluster.kafka(KAFKA).stop()
            del cluster.members[KAFKA]
        cluster.kbroker(KBROKER, **{"cluster.features.enable": "true"})
        waited(lambda: finalized(cluster), "the features are finalized")
        kafka = Kafka27(
            tmp_path / f"kafka-{KAFKA}",
            cluster.connect,
            [cluster.log_dir(KAFKA)],
            broker_id=str(KAFKA),
        )
        kafka.config |= cluster.settings
        said = kafka.refused_start()
        assert "group.version" in said
        assert "transaction.version" in said
        assert cluster.store.get_children("/brokers/ids") == [str(KBROKER)]
        assert cluster.controller == KBROKER
