"""Apache Kafka's consumers read from the replica in their rack (KIP-392)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.brokers.racks import (
    LEADER,
    NEAR,
    PATIENCE_S,
    bytes_by_now,
    bytes_to_consumers,
    cluster_of_racks,
    create_topic,
    produce,
)
from support.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing

from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VALUE_BYTES = 10_000
RECORDS = 50
FILLED = VALUE_BYTES * RECORDS


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_racks() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
def test_java_consumer_reads_from_the_follower_in_its_rack_and_continues_without_it(
    cluster: Cluster, version: str
) -> None:
    topic = f"java-{version}"
    create_topic(cluster, topic)
    written = [os.urandom(VALUE_BYTES) for _ in range(2 * RECORDS)]
    produce(cluster, topic, written[:RECORDS])
    before = [bytes_by_now(cluster.brokers[broker]) for broker in (LEADER, NEAR)]
    driver = Java(cluster.bootstrap, version)
    try:
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(
                driver.fetch, topic, len(written), timeout_s=PATIENCE_S - 10, client_rack="b"
            )
            wait_until(
                lambda: bytes_to_consumers(cluster.brokers[NEAR]) - before[NEAR] >= FILLED,
                PATIENCE_S,
                "the follower has sent the first half",
            )
            assert bytes_by_now(cluster.brokers[LEADER]) - before[LEADER] < FILLED // 4
            cluster.kill(NEAR)
            produce(cluster, topic, written[RECORDS:])
            found = reading.result()
    finally:
        driver.close()
        cluster.restart(NEAR)

    assert [one.value for one in found] == written
