"""Topics in message format 0 or 1, on brokers of Kafka 2.7.2 and kbrokers.

Brokers start anew: ``tools/exam.py mixed``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from interop.mixed import MixedCluster, magics, read, texts, waited, write

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

KAFKA, KBROKER = 1, 2
BOTH = {KAFKA, KBROKER}
NAMES = (f"t{number}" for number in itertools.count())
FORMATS = pytest.mark.parametrize("version", ["0.9.0", "0.10.2"])
CODECS = pytest.mark.parametrize("codec", [None, "gzip"])


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


@pytest.mark.parametrize("leader", [KAFKA, KBROKER], ids=["led-by-kafka", "led-by-kbroker"])
@FORMATS
@CODECS
def test_follower_has_the_same_messages_and_leads_with_them(
    cluster: MixedCluster, leader: int, version: str, codec: str | None
) -> None:
    """Also after it was restarted, and when the one that led follows."""
    topic, follower = next(NAMES), KAFKA + KBROKER - leader
    cluster.create(
        topic, {0: [leader, follower]}, message_format_version=version, segment_bytes="4000"
    )
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync")
    options = {"compression_type": codec, "linger_ms": 20, "batch_size": 1000}
    options |= {"enable_idempotence": False}
    write(cluster.bootstrap, topic, texts(100, "a"), **options)
    cluster.assert_same_logs(topic)
    assert magics(cluster.log_bytes(follower, topic)) == {0 if version == "0.9.0" else 1}

    first, second = cluster.members[leader], cluster.members[follower]
    second.stop()
    waited(lambda: cluster.isr(topic) == {leader}, "the leader is alone")
    write(first.bootstrap, topic, texts(100, "b"), **options)
    second.start()
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync again")
    cluster.assert_same_logs(topic)

    first.stop()
    waited(lambda: cluster.leader(topic) == follower, "the other leads")
    write(second.bootstrap, topic, texts(100, "c"), **options)
    expected = [*texts(100, "a"), *texts(100, "b"), *texts(100, "c")]
    assert read(second.bootstrap, topic, 300) == expected
    first.start()
    waited(lambda: cluster.isr(topic) == BOTH, "both are in sync once more")
    cluster.assert_same_logs(topic)
