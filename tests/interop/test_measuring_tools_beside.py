"""Performance tests and verifiable clients beside Kafka's own: the same lines but for numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.beside import BESIDE, NEWEST, Beside
from support.drivers.java import libraries
from support.drivers.kafka_tools import run_tool

from kbroker.testing import Broker

pytestmark = BESIDE

PRODUCER = "kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance"
LATENCY = "kafka-e2e-latency", "org.apache.kafka.tools.EndToEndLatency"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=1, group_initial_rebalance_delay_ms=0) as started:
        yield started


@pytest.fixture(scope="module")
def both(broker: Broker) -> Iterator[Beside]:
    found = Beside(broker.bootstrap)
    yield found
    found.close()


def digits(text: str) -> str:
    """How many digits there are behind each point."""
    return re.sub(r"\d", "9", re.sub(r"\d+(?=\.\d)", "9", text))


def test_producers_are_measured_alike(both: Beside, tmp_path: Path) -> None:
    def same(*words: str, count: int = 100) -> str:
        more = ("--topic", "sent", "--num-records", str(count), "--throughput", "-1")
        return both.same(*PRODUCER, *more, *words, masks=[r"[\d.]+(?=[ ,m])"]).stdout

    same("--record-size", "10")
    same("--record-size", "10", "--command-property", "linger.ms=5", "acks=1")
    same("--payload-monotonic", "--producer-props", "linger.ms=5")
    same("--record-size", "10", "--transaction-duration-ms", "50", "--transactional-id", "p-@-q")
    assert "steady state" in same("--record-size", "10", "--warmup-records", "10")
    path = tmp_path / "payloads"
    path.write_text("one\ntwo\n")
    same("--payload-file", str(path))
    same("--payload-file", "/nowhere")
    for words in (
        (), ("--record-size", "0"), ("--record-size", "1", "--warmup-records", "100"),
        ("--record-size", "1", "--payload-monotonic"), ("--record-size", "1", "--producer-props",
         "a=b", "--command-property", "c=d"), ("--record-size", "1", "--reporting-interval", "0"),
    ):  # fmt: skip
        same(*words)
    same("--record-size", "1", count=0)


def test_precision_of_measured_numbers_is_the_same(both: Beside, broker: Broker) -> None:
    where = ("--bootstrap-server", broker.bootstrap)
    sent = ("--topic", "sent", "--num-records", "50", "--record-size", "5", "--throughput", "-1")
    read = ("--topic", "sent", "--num-records", "50")
    for (name, main), words in ((PRODUCER, sent), (CONSUMER, read)):
        theirs = both.kafka(main, *words, *where).stdout.splitlines()[-1]
        ours = both.ours(name, *words, *where).stdout.splitlines()[-1]
        assert re.findall(r"\.9+", digits(ours)) == re.findall(r"\.9+", digits(theirs))


def test_consumers_are_measured_alike(both: Beside) -> None:
    masks = [r"\d{4}-\d\d-\d\d[ \d:]+", r"-?[\d.]+(?=[,\n])"]

    def same(*words: str) -> str:
        return both.same(*CONSUMER, *words, masks=masks).stdout

    read = ("--topic", "sent", "--num-records", "50")
    assert same(*read).startswith("start.time, end.time")
    same(*read, "--hide-header")
    same("--topic", "sent", "--messages", "50")
    same("--topic", "sent", "--num-records", "1000000", "--timeout", "1000")
    same("--include", "sen.", "--num-records", "50", "--group", "g-@-h")
    same(*read, "--show-detailed-stats")
    same(*read, "--consumer.config", "/dev/null")
    for words in (
        (), ("--topic", "t"), ("--num-records", "5"), (*read, "--messages", "5"), (*read,
         "--include", "x"), ("--bogus",), (*read, "--reporting-interval", "0"), (*read,
         "--consumer.config", "x", "--command-config", "y"),
    ):  # fmt: skip
        same(*words)


def test_latency_is_measured_alike(both: Beside, broker: Broker) -> None:
    masks = [r"[\d.]+(?=( ms|\n|,))"]
    name = "rounds-@-trip"
    words = ("--topic", name, "--num-records", "3", "--producer-acks", "1", "--record-size", "10")
    both.same(*LATENCY, *words, masks=masks)
    more = ("--record-key-size", "3", "--num-headers", "1", "--record-header-key-size", "2",
            "--record-header-size", "5")  # fmt: skip
    both.same(*LATENCY, *words, *more, masks=masks)
    both.same(*LATENCY, broker.bootstrap, name, "2", "all", "10", masks=masks, bootstrap=False)
    for wrong in (("a", "b"), words[:-2], (*words, "--num-headers", "-1"), (*words, "--bogus")):
        both.same(*LATENCY, *wrong, masks=masks)


def test_verifiable_clients_print_alike(both: Beside, broker: Broker) -> None:
    """In JVMs of their own: Kafka's end theirs."""
    jars = libraries(NEWEST, "kafka-tools")

    def lines(text: str) -> list[str]:
        """In the order of time, but for when the last commit is acknowledged."""
        text = re.sub(r'(?<="timestamp":)\d+|(?<="avg_throughput":)[\d.E]+', "0", text)
        rows = [json.loads(line) for line in re.sub("-[jk]-", "-@-", text).splitlines()]
        assert all(list(row)[:2] == ["timestamp", "name"] for row in rows)
        return [json.dumps(row, sort_keys=True) for row in rows]

    def same(name: str, main: str, *words: str) -> list[str]:
        where = ("--bootstrap-server", broker.bootstrap)
        given = [[word.replace("-@-", own) for word in words] for own in ("-j-", "-k-")]
        theirs = run_tool(jars, f"org.apache.kafka.tools.{main}", *where, *given[0])
        ours = both.ours(name, *where, *given[1])
        assert lines(ours.stdout) == lines(theirs), ours.stderr
        return lines(theirs)

    topic = ("--topic", "verified-@-once")
    sent = ("--max-messages", "4", "--repeating-keys", "3", "--value-prefix", "1")
    same("kafka-verifiable-producer", "VerifiableProducer", *topic, *sent)
    read = ("--group-id", "verify-@-ing", "--max-messages", "4", "--verbose")
    same("kafka-verifiable-consumer", "VerifiableConsumer", *topic, *read)
