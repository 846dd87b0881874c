"""The performance tests and verifiable clients under Kafka's names, on a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.cli.kafka import table
from kbroker.client import KafkaConsumer
from kbroker.client.batches.offsets import committed
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

BIN = Path(__file__).resolve().parents[2] / "bin"
Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=1, group_initial_rebalance_delay_ms=0) as started:
        yield started


@pytest.fixture
def tool(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a tool, which succeeds; the lines on stdout."""

    def run(name: str, *words: str) -> list[str]:
        code = table.main(["--bootstrap-server", broker.bootstrap, *words], name)
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out.splitlines()

    return run


def read(broker: Broker, topic: str, count: int) -> list[bytes]:
    with KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=f"readers-of-{topic}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.subscribe([topic])
        found: list[bytes] = []

        def all_read() -> bool:
            found.extend(record.value for record in consumer.poll(1.0))
            return len(found) >= count

        wait_until(all_read, 30, f"{count} records of {topic} are read")
    return found


RATE = r"[\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency"
TOTAL = rf"{RATE}, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th\."


def test_producer_performance_sends_and_prints_the_summary(tool: Run, broker: Broker) -> None:
    lines = tool(
        "kafka-producer-perf-test", "--topic", "sized", "--num-records", "500", "--record-size",
        "100", "--throughput", "-1", "--command-property", "linger.ms=1", "--print-metrics",
        "--warmup-records", "100",
    )  # fmt: skip

    assert lines[0].startswith("Warmup first 100 records.")
    assert re.fullmatch(rf"500 records sent, {TOTAL}", lines[1])
    assert re.fullmatch(rf"400 steady state records sent, {TOTAL}", lines[2])
    assert any(line.startswith("record-send-total") for line in lines)
    values = read(broker, "sized", 500)
    assert {len(value) for value in values} == {100}
    assert len(set(values)) > 400 and all(re.fullmatch(b"[A-Z]+", value) for value in values)


def test_payloads_of_a_file_are_sent_in_transactions(
    tool: Run, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "payloads"
    path.write_text("one|two|three|")

    lines = tool(
        "kafka-producer-perf-test", "--topic", "payloads", "--num-records", "60", "--payload-file",
        str(path), "--payload-delimiter", "|", "--throughput", "200", "--transaction-duration-ms",
        "100", "--reporting-interval", "100",
    )  # fmt: skip

    assert lines[:2] == [f"Reading payloads from: {path}", "Number of records read: 3"]
    assert any(re.fullmatch(rf"\d+ records sent, {RATE}\.", line) for line in lines[2:-1])
    assert re.fullmatch(rf"60 records sent, {TOTAL}", lines[-1])
    assert set(read(broker, "payloads", 60)) == {b"one", b"two", b"three"}


def test_consumer_performance_reads_and_prints_columns(tool: Run) -> None:
    tool("kafka-producer-perf-test", "--topic", "read", "--num-records", "2000", "--record-size",
         "1024", "--throughput", "-1")  # fmt: skip

    where = ("--topic", "read", "--num-records", "2000", "--timeout", "2000")
    heads, row = tool("kafka-consumer-perf-test", *where, "--date-format", "yyyy:SSS")

    assert heads == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    cells = row.split(", ")
    assert re.fullmatch(r"\d{4}:\d{3}", cells[0])
    assert (cells[2], cells[4], len(cells)) == ("1.9531", "2000", 10)
    lines = tool(
        "kafka-consumer-perf-test", "--include", "rea.", "--num-records", "2001", "--timeout",
        "1000", "--show-detailed-stats", "--reporting-interval", "1", "--hide-header",
    )  # fmt: skip
    assert lines[-1].startswith("WARNING: Exiting before consuming the expected number of records")
    assert lines[0].split(", ")[1] == "0"


def test_latency_from_end_to_end_is_printed(tool: Run) -> None:
    lines = tool(
        "kafka-e2e-latency", "--topic", "rounds", "--num-records", "5", "--producer-acks", "1",
        "--record-size", "10", "--record-key-size", "3", "--num-headers", "2",
        "--record-header-key-size", "2", "--record-header-size", "-1",
    )  # fmt: skip

    assert lines[0].startswith('Topic "rounds" does not exist. Will create topic with 1 partition')
    assert re.fullmatch(r"0\t[\d.]+", lines[1])
    assert re.fullmatch(r"Avg latency: [\d.]+ ms", lines[2])
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", lines[3])


def events(lines: list[str]) -> list[dict]:
    return [json.loads(line) for line in lines]


def test_verifiable_clients_print_what_was_sent_read_and_committed(
    tool: Run, broker: Broker
) -> None:
    lines = tool(
        "kafka-verifiable-producer", "--topic", "numbers", "--max-messages", "5", "--value-prefix",
        "7", "--repeating-keys", "2",
    )  # fmt: skip
    sent = events(lines)
    assert [row["name"] for row in sent] == [
        "startup_complete", *["producer_send_success"] * 5, "shutdown_complete", "tool_data",
    ]  # fmt: skip
    assert [(row["key"], row["value"], row["offset"]) for row in sent[1:6]] == [
        ("0", "7.0", 0), ("1", "7.1", 1), ("0", "7.2", 2), ("1", "7.3", 3), ("0", "7.4", 4),
    ]  # fmt: skip
    assert (sent[-1]["sent"], sent[-1]["acked"]) == (5, 5)

    lines = tool(
        "kafka-verifiable-consumer", "--topic", "numbers", "--group-id", "verifiers",
        "--max-messages", "3", "--verbose",
    )  # fmt: skip
    seen = events(lines)
    names = [row["name"] for row in seen]
    assert (names[0], names[-2]) == ("startup_complete", "shutdown_complete")
    assigned = seen[names.index("partitions_assigned")]
    assert assigned["partitions"] == [{"topic": "numbers", "partition": 0}]
    assert [row["value"] for row in seen if row["name"] == "record_data"] == ["7.0", "7.1", "7.2"]
    [commit] = [row for row in seen if row["name"] == "offsets_committed"]
    assert commit["success"] and commit["offsets"][0]["offset"] == 3
    with Cluster(broker.bootstrap) as cluster:
        assert committed(cluster, "verifiers")["numbers", 0].offset == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_verifiable_producer_ends_at_a_signal_with_its_summary(
    broker: Broker, number: signal.Signals
) -> None:
    command = [str(BIN / "kafka-verifiable-producer.sh"), "--bootstrap-server", broker.bootstrap]
    command += ["--topic", f"endless-{number.value}", "--throughput", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(5)]
        running.send_signal(number)
        lines += running.stdout.readlines()
        assert running.wait(30) == 0
    found = events(lines)
    assert [row["name"] for row in found[-2:]] == ["shutdown_complete", "tool_data"]
    assert found[-1]["sent"] == found[-1]["acked"] >= 4


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("kafka-producer-perf-test", ["--topic", "t"], "error: "),
        (
            "kafka-producer-perf-test",
            ["--topic", "t", "--num-records", "0", "--record-size", "1", "--throughput", "1"],
            "--num-records should be greater than zero.",
        ),
        ("kafka-consumer-perf-test", ["--topic", "t"], "[num-records], [messages]"),
        (
            "kafka-consumer-perf-test",
            ["--topic", "t", "--messages", "1", "--date-format", "qq"],
            "Illegal pattern character 'q'",
        ),
        ("kafka-e2e-latency", ["a", "b"], "Expected 5 or 6 positional arguments, but got 2"),
        ("kafka-verifiable-consumer", ["--topic", "t"], "--group-id"),
    ],
)
def test_wrong_use_of_measuring_tools_is_refused(
    broker: Broker, capsys: pytest.CaptureFixture[str], name: str, words: list[str], said: str
) -> None:
    where = [] if name == "kafka-e2e-latency" else ["--bootstrap-server", broker.bootstrap]

    assert table.main([*where, *words], name) == 1
    assert said in capsys.readouterr().err
