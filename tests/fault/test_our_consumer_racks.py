"""kbroker's own consumer reads from the replica in its rack (KIP-392), and goes on without it."""

from __future__ import annotations

import os

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

from kbroker.client import KafkaConsumer
from kbroker.testing import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]

VALUE_BYTES = 10_000
RECORDS = 50
FILLED = VALUE_BYTES * RECORDS


def test_it_reads_from_the_follower_in_its_rack_and_continues_without_it() -> None:
    written = [os.urandom(VALUE_BYTES) for _ in range(2 * RECORDS)]
    with cluster_of_racks() as cluster:
        create_topic(cluster, "near")
        produce(cluster, "near", written[:RECORDS])
        before = [bytes_by_now(cluster.brokers[broker]) for broker in (LEADER, NEAR)]
        found: list[bytes] = []
        with KafkaConsumer(
            bootstrap_servers=cluster.bootstrap, client_rack="b", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([("near", 0)])

            def read(count: int) -> bool:
                found.extend(record.value for record in consumer.poll(0.2))
                assert len(found) >= count, f"{len(found)} records"
                return True

            wait_until(lambda: read(RECORDS), PATIENCE_S, "the first half is read")
            wait_until(
                lambda: bytes_to_consumers(cluster.brokers[NEAR]) - before[NEAR] >= FILLED,
                PATIENCE_S,
                "the follower has sent it",
            )
            assert bytes_by_now(cluster.brokers[LEADER]) - before[LEADER] < FILLED // 4
            cluster.kill(NEAR)
            produce(cluster, "near", written[RECORDS:])
            wait_until(lambda: read(len(written)), PATIENCE_S, "the second half is read")
    assert found == written
