"""The mirror maker and that of Apache Kafka 2.7.2 in one group, each killed once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from interop.beside import BESIDE
from support.brokers.kafka_servers import JVM
from support.clients.mirrors import Copy, Mirror, create, fill, in_order_from_restarts, write

from kbroker.testing import Broker, wait_until
from perf.kafka_distribution import kafka_libraries

pytestmark = BESIDE

LOG4J = """log4j.rootLogger=WARN, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.Target=System.err
log4j.appender.err.layout=org.apache.log4j.SimpleLayout
"""


def kafkas_command(folder: Path) -> tuple[str, ...]:
    (folder / "log4j.properties").write_text(LOG4J)
    log4j = f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"
    jars = f"{kafka_libraries(version='2.7.2')}/*"
    return ("java", *JVM, log4j, "-cp", jars, "kafka.tools.MirrorMaker")


def test_mirrors_of_both_kinds_take_each_other_over(tmp_path: Path) -> None:
    with (
        Broker(num_partitions=2, group_initial_rebalance_delay_ms=0) as source,
        Broker(num_partitions=2, group_initial_rebalance_delay_ms=0) as target,
    ):
        create(source, "shared", 4)
        consumer, producer = tmp_path / "consumer.properties", tmp_path / "producer.properties"
        settings = {
            "bootstrap.servers": source.bootstrap,
            "group.id": "mirrors",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
        }
        write(consumer, settings)
        write(producer, {"bootstrap.servers": target.bootstrap})
        words = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
        words += ["--whitelist", "shared", "--offset.commit.interval.ms", "500"]
        theirs = Mirror(tmp_path / "theirs.log", words, kafkas_command(tmp_path))
        ours = Mirror(tmp_path / "ours.log", words)
        writer = threading.Thread(target=fill, args=(source, "shared", 0, 60_000, 0.05))
        writer.start()
        mirrors = [theirs, ours]
        try:
            with Copy(target, "shared") as copy:
                copy.await_all(range(5000), mirrors)
                ours.kill()
                copy.await_all(range(20_000), mirrors)
                mirrors.append(Mirror(tmp_path / "again.log", words))
                copy.await_all(range(30_000), mirrors)
                theirs.kill()
                copy.await_all(range(60_000), mirrors)
                for key, numbers in copy.by_key().items():
                    assert in_order_from_restarts(numbers), key
                copy.assert_one_partition_per_key()
            assert mirrors[-1].stop() == 143
            both = [one.said for one in (ours, mirrors[-1])]
            assert not any("cannot" in said for said in both), both
        finally:
            writer.join()
            for one in mirrors:
                if one.running:
                    one.kill()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--whitelist", "a"],
        ["--bogus"],
        ["--help"],
    ],
)
def test_wrong_use_ends_alike(tmp_path: Path, words: list[str]) -> None:
    theirs = Mirror(tmp_path / "theirs.log", words, kafkas_command(tmp_path))
    ours = Mirror(tmp_path / "ours.log", words)
    wait_until(lambda: not theirs.running, 60, "it ends")
    assert ours.wait() == theirs.wait()
