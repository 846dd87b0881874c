"""Exporters of others tell of a broker what its own ``/metrics`` tells: kafka_exporter and kminion.

Each test needs the program on the PATH, as no package registry has it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.surfaces.dashboards import Scrape

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

RECORDS, COMMITTED = 30, 10
BUILD_INFO = "kafka_exporter_build_info"
Texts = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With a group that only commits, and one with a member."""
    settings = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4}
    with Broker(settings) as started, Cluster(started.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("orders", 3), NewTopic("empty", 1)])
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"v" * 100, partition=number % 3)
        commit(cluster, "billing", {("orders", n): (COMMITTED - n, "") for n in range(3)})
        consumer = KafkaConsumer(
            bootstrap_servers=started.bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with consumer:
            consumer.subscribe(["orders"])
            wait_until(lambda: consumer.poll(0.1) or consumer.assignment())
            consumer.commit_sync()
            yield started


@contextmanager
def exporting(command: list[str], port: int, log: Path, **environment: str) -> Iterator[str]:
    """Run an exporter; the address of its metrics."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    url = f"http://127.0.0.1:{port}/metrics"
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(url, timeout=30) as response:
                    return response.status == 200
            except urllib.error.HTTPError:
                return True
            except OSError:
                return False

        wait_until(answers, 60)
        yield url
    finally:
        process.kill()
        process.wait()


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def scraped(url: str) -> Scrape:
    with urllib.request.urlopen(url, timeout=60) as response:
        return Scrape(response.read().decode())


def sorted_labels(values: Texts, prefix: str) -> Texts:
    return {
        name: {tuple(sorted(labels)): value for labels, value in series.items()}
        for name, series in values.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize("version", ["0.11.0.0", "2.0.0", "3.9.0"])
def test_kafka_exporter_tells_what_the_broker_tells_itself(
    broker: Broker, tmp_path: Path, version: str
) -> None:
    port = unused_port()
    command = [program("kafka_exporter"), f"--kafka.server={broker.bootstrap}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--kafka.version={version}"]
    with exporting(command, port, tmp_path / "log") as url:

        def agree() -> bool:
            theirs = sorted_labels(scraped(url).values, "kafka_")
            ours = sorted_labels(scraped(f"{broker.metrics_url}/metrics").values, "kafka_")
            assert {"kafka_topic_partition_current_offset", "kafka_consumergroup_lag"} <= set(
                theirs
            )
            for name, series in theirs.items():
                assert name in ours, name
                if name != BUILD_INFO:
                    assert ours[name] == series, name
            return True

        # It asks for some groups and topics later than for others.
        wait_until(agree, 30)


@pytest.mark.parametrize("mode", ["adminApi", "offsetsTopic"])
def test_kminion_reads_offsets_and_sizes(broker: Broker, tmp_path: Path, mode: str) -> None:
    port = unused_port()
    config = tmp_path / "kminion.yaml"
    config.write_text(
        f"kafka: {{brokers: ['{broker.bootstrap}']}}\n"
        f"minion: {{consumerGroups: {{enabled: true, scrapeMode: {mode}}}}}\n"
        f"exporter: {{host: 127.0.0.1, port: {port}}}\n"
    )
    command = [program("kminion")]
    with exporting(command, port, tmp_path / "log", CONFIG_FILEPATH=str(config)) as url:

        def told() -> Scrape | None:
            try:
                found = scraped(url)
            except urllib.error.HTTPError:
                return None  # it still reads the topic of offsets
            return found if "kminion_kafka_consumer_group_topic_lag" in found.values else None

        wait_until(told, 60)
        found = told()
    assert found is not None, (tmp_path / "log").read_text()

    def of(name: str, **labels: str) -> float:
        return found.get(f"kminion_kafka_{name}", **labels)

    assert of("topic_high_water_mark_sum", topic_name="orders") == RECORDS
    assert of("topic_partition_high_water_mark", topic_name="orders", partition_id="1") == 10
    assert of("topic_low_water_mark_sum", topic_name="orders") == 0
    lag = RECORDS - 3 * COMMITTED + 3
    assert of("consumer_group_topic_lag", group_id="billing", topic_name="orders") == lag
