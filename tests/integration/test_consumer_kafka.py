"""``KafkaConsumer`` against Apache Kafka 3.9.1: what ``test_consumer_broker`` asks, there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from integration import test_consumer_broker as asked
from integration.test_consumer_broker import cluster, made

from kbroker.testing import java_home
from perf.brokers import KafkaBroker

__all__ = ["cluster", "made"]  # fixtures

# The libraries are fetched by the comparison in perf/ (perf/kafka_distribution.py) or by Maven.
LIBRARIES = Path(__file__).resolve().parents[2] / ".cache" / "kafka-3.9.1" / "complete"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not LIBRARIES.exists() or java_home() is None,
        reason="needs Kafka 3.9.1 in .cache (perf/kafka_distribution.py) and Java",
    ),
]

SETTINGS = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.coordinator.new.enable": "true",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "auto.create.topics.enable": "false",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), SETTINGS) as running:
        yield running


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_records_are_read_in_order(broker, cluster, made, codec):
    asked.test_records_of_all_codecs_are_read_in_order(broker, cluster, made, codec)


def test_read_committed(broker, cluster, made):
    asked.test_read_committed_leaves_out_aborted_records_and_waits_for_open_ones(
        broker, cluster, made
    )


def test_seek_pause_and_bounds(broker, cluster, made):
    asked.test_seek_pause_and_bounds(broker, cluster, made)


@pytest.mark.parametrize("protocol", asked.PROTOCOLS)
def test_members_share_partitions(cluster, made, protocol):
    asked.test_members_share_partitions_and_continue_where_others_stopped(cluster, made, protocol)


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
def test_listeners(cluster, made, strategy):
    asked.test_listeners_hear_of_partitions_that_come_and_go(cluster, made, strategy)


@pytest.mark.parametrize("protocol", asked.PROTOCOLS)
def test_static_members(cluster, made, protocol):
    asked.test_a_static_member_has_its_partitions_again(cluster, made, protocol)


@pytest.mark.parametrize("protocol", asked.PROTOCOLS)
def test_a_member_that_does_not_poll(cluster, made, protocol):
    asked.test_a_member_that_does_not_poll_loses_its_partitions(cluster, made, protocol)


def test_offsets_of_a_transaction(broker, cluster, made):
    asked.test_offsets_of_a_transaction_count_only_for_a_member(broker, cluster, made)
