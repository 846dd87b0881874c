"""Rarer tools: the offset checker of 0.8, preferred replica elections of 2.7, the comparison of
replicas, and the reset of a Streams application.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.cli.kafka import table
from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics, describe_topics, list_topics
from kbroker.client.batches.offsets import commit, committed
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

BIN = Path(__file__).resolve().parents[2] / "bin"
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(2, num_io_threads=1, auto_leader_rebalance_enable="false") as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as opened:
        yield opened


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a tool -> (exit code, lines of stdout, stderr)."""

    def run(name: str, *words: str) -> tuple[int, list[str], str]:
        code = table.main(words, name)
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def fill(client: Client, name: str, replicas: list[list[int]], records: int) -> None:
    result = create_topics(client, [NewTopic(name, replicas=replicas)])[name]
    assert not isinstance(result, Exception), result
    with KafkaProducer(bootstrap_servers=client.bootstrap) as producer:
        for number in range(records):
            producer.send(name, b"%d" % number, partition=number % len(replicas))


def test_offset_checker_prints_what_zookeeper_and_brokers_know(
    cluster: Cluster, client: Client, tool: Run
) -> None:
    """SMP-09: offsets of brokers count more than those in ZooKeeper."""
    fill(client, "my-topic", [[0], [1], [0]], 30)
    store = KazooClient(cluster.zookeeper_connect)
    store.start()
    home = "/consumers/my-group"
    store.create(f"{home}/owners/my-topic/0", b"test_host-1", makepath=True)
    store.create(f"{home}/offsets/my-topic/0", b"4", makepath=True)
    store.create(f"{home}/offsets/my-topic/1", b"1", makepath=True)
    store.stop()
    store.close()
    commit(client, "my-group", {("my-topic", 1): (10, "")})

    checker = ("kafka-run-class", "kafka.tools.ConsumerOffsetChecker")
    code, lines, _ = tool(*checker, "--zkconnect", cluster.zookeeper_connect, "--group", "my-group")

    assert code == 0
    rows = [
        ("Group", "Topic", "Pid", "Offset", "logSize", "Lag", "Owner"),
        ("my-group", "my-topic", "0", "4", "10", "6", "test_host-1"),
        ("my-group", "my-topic", "1", "10", "10", "0", "none"),
        ("my-group", "my-topic", "2", "unknown", "10", "unknown", "none"),
    ]
    assert lines == ["{:15} {:30} {:3} {:15} {:15} {:15} {}".format(*row) for row in rows]
    where = ("--zookeeper", cluster.zookeeper_connect, "--topic", "my-topic,nothing")
    code, lines, _ = tool("kafka-consumer-offset-checker", *where, "--group", "x", "--broker-info")
    assert len([line for line in lines if line.startswith("x ")]) == 3
    assert lines[-3] == "BROKER INFO"
    assert lines[-2] == f"0 -> {cluster.brokers[0].bootstrap}"


def test_preferred_replicas_lead_again(cluster: Cluster, client: Client, tool: Run) -> None:
    name = "preferred"
    fill(client, name, [[1, 0]], 1)
    where = ("--zookeeper", cluster.zookeeper_connect)

    def leader() -> int | None:
        return describe_topics(client, [name])[0].partitions[0].leader

    cluster.wait_in_sync(name)
    cluster.brokers[1].stop()
    wait_until(lambda: leader() == 0, 60, "the other broker leads")
    cluster.start()
    cluster.wait_in_sync(name)

    code, lines, _ = tool("kafka-preferred-replica-election", *where)

    assert code == 0
    assert lines[0].startswith("This tool is deprecated. Please use kafka-leader-election tool.")
    assert "preferred-0" in lines[-1]
    assert lines[-1].startswith("Successfully started preferred replica election for partitions ")
    wait_until(lambda: leader() == 1, 60, "the preferred replica leads")


def test_preferred_election_names_what_there_is_to_elect(
    cluster: Cluster, client: Client, tool: Run, tmp_path: Path
) -> None:
    fill(client, "elected", [[0, 1]], 1)
    path = tmp_path / "partitions.json"
    path.write_text('{"partitions": [{"topic": "elected", "partition": 0}, '
                    '{"topic": "elected", "partition": 9}]}')  # fmt: skip
    file = ("--path-to-json-file", str(path))

    code, lines, errors = tool(
        "kafka-preferred-replica-election", "--bootstrap-server", cluster.bootstrap, *file
    )
    assert (code, errors) == (1, "1 preferred replica(s) could not be elected\n")
    assert lines[1] == "Preferred replica already elected for partitions elected-0"
    assert lines[2].startswith(
        "Error completing preferred leader election for partition: elected-9: org.apache.kafka."
    )
    where = ("--zookeeper", cluster.zookeeper_connect)
    code, lines, _ = tool("kafka-preferred-replica-election", *where, *file)
    assert lines[1:] == [
        "Successfully started preferred replica election for partitions Set(elected-0)",
        "Skipping preferred replica leader election for partition elected-9 since it doesn't "
        "exist.",
    ]
    code, _, errors = tool("kafka-preferred-replica-election", *file)
    assert (code, "Exactly one of" in errors) == (1, True)


def test_replicas_are_compared_and_their_lag_is_reported(
    cluster: Cluster, client: Client, tool: Run
) -> None:
    fill(client, "compared", [[0, 1], [1, 0]], 200)
    cluster.wait_in_sync("compared")
    command = [str(BIN / "kafka-replica-verification.sh"), "--broker-list", cluster.bootstrap]
    command += ["--topic-white-list", "compar.d", "--time", "-2", "--report-interval-ms", "300"]
    with subprocess.Popen(
        [*command, "--max-wait-ms", "100"], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline()]
        while "max lag is 0 " not in lines[-1]:
            lines.append(running.stdout.readline())
            assert lines[-1], lines
        running.terminate()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: "
    assert re.fullmatch(f"{time}verification process is started\n", lines[0])
    assert re.fullmatch(
        f"{time}max lag is 0 for partition compared-[01] at offset 100 among 2 partitions\n",
        lines[-1],
    )
    code, _, errors = tool("kafka-replica-verification", "--broker-list", cluster.bootstrap,
                           "--topics-include", "nothing")  # fmt: skip
    assert (code, "No topics found" in errors) == (1, True)


def test_streams_application_begins_anew(cluster: Cluster, client: Client, tool: Run) -> None:
    fill(client, "input", [[0], [1]], 20)
    fill(client, "between", [[0]], 7)
    internal = ["app-counts-changelog", "app-x-repartition", "app-not", "other-x-changelog"]
    create_topics(client, [NewTopic(name, 1, 1) for name in internal])
    commit(client, "app", {("input", 0): (9, ""), ("between", 0): (2, "")})
    where = ("--bootstrap-server", cluster.bootstrap, "--application-id", "app")

    def reset(*words: str) -> tuple[int, list[str], str]:
        return tool("kafka-streams-application-reset", *where, *words)

    topics = ("--input-topics", "input,missing", "--intermediate-topics", "between")
    code, lines, _ = reset(*topics, "--to-offset", "3", "--dry-run")
    assert code == 1
    assert lines[:4] == [
        "----Dry run displays the actions which will be performed when running Streams Reset "
        "Tool----",
        "WARN: `--intermediate-topics` is deprecated and will be removed in a future release",
        "Reset-offsets for input topics [input, missing]",
        "Seek-to-end for intermediate topics [between]",
    ]
    assert "Topic: missing" in lines and "Topic: input Partition: 1 Offset: 3" in lines
    assert committed(client, "app")["input", 0].offset == 9
    assert "app-counts-changelog" in {topic.name for topic in list_topics(client)}

    code, lines, _ = reset("--input-topics", "input", "--intermediate-topics", "between")

    assert (code, lines[-1]) == (0, "Done.")
    assert {key: row.offset for key, row in committed(client, "app").items()} == {
        ("input", 0): 0,
        ("input", 1): 0,
        ("between", 0): 7,
    }
    left = {topic.name for topic in list_topics(client)}
    assert left >= {"app-not", "other-x-changelog", "input"}
    assert not left & {"app-counts-changelog", "app-x-repartition"}
    code, lines, _ = reset("--input-topics", "input", "--shift-by", "99")
    assert "New offset (99) is higher than latest offset. Value will be set to 10" in lines
    code, _, errors = reset("--internal-topics", "app-not")
    assert (code, "Invalid topic specified in the --internal-topics" in errors) == (1, True)


def test_running_streams_application_is_reset_by_force_only(
    cluster: Cluster, client: Client, tool: Run
) -> None:
    fill(client, "read", [[0]], 1)
    where = ("--bootstrap-server", cluster.bootstrap, "--application-id", "running")
    with KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id="running", auto_offset_reset="earliest",
        enable_auto_commit="false",
    ) as consumer:  # fmt: skip
        consumer.subscribe(["read"])
        wait_until(lambda: bool(consumer.poll(1.0)), 60, "it reads")
        code, _, errors = tool("kafka-streams-application-reset", *where)
        assert (code, "is still active" in errors) == (1, True)
        code, lines, _ = tool("kafka-streams-application-reset", *where, "--force")
        assert (code, lines[0]) == (0, "Force deleting all active members in the group: running")


def test_brokers_are_found_by_the_zookeeper_of_older_forms(
    cluster: Cluster, client: Client, tool: Run
) -> None:
    fill(client, "measured", [[0]], 10)
    where = cluster.zookeeper_connect
    code, lines, _ = tool("kafka-consumer-perf-test", "--zookeeper", where, "--topic", "measured",
                          "--messages", "10", "--threads", "1")  # fmt: skip
    assert (code, lines[-1].split(", ")[4]) == (0, "10")
    authorizer = ("--authorizer", "kafka.security.auth.SimpleAclAuthorizer")
    found_by = ("--authorizer-properties", f"zookeeper.connect={where}")
    # There are none: nobody is asked but ZooKeeper, so brokers need no authorizer.
    assert tool("kafka-acls", *authorizer, *found_by, "--list") == (0, [], "")
    code, _, errors = tool("kafka-acls", "--authorizer-properties", "x=y", "--list")
    assert (code, "give zookeeper.connect=" in errors) == (1, True)


def test_records_of_one_replica_are_printed(cluster: Cluster, client: Client, tool: Run) -> None:
    fill(client, "simple", [[0, 1]], 3)
    cluster.wait_in_sync("simple")
    name, where = "kafka-simple-consumer-shell", ("--broker-list", cluster.bootstrap)

    def shown(*words: str) -> list[str]:
        code, lines, errors = tool(name, *where, "--topic", "simple", *words)
        assert code == 0, errors
        return lines

    for replica in ("-1", "0", "1"):
        assert shown("--replica", replica, "--no-wait-at-logend") == [
            "0", "1", "2", "Terminating. Reached the end of partition (simple, 0) at offset 3",
        ]  # fmt: skip
    assert shown("--offset", "1", "--max-messages", "1", "--print-offsets") == [
        "next offset = 2",
        "1",
    ]
    assert shown("--offset", "-1", "--no-wait-at-logend")[0].endswith("at offset 3")
    for words, said in (
        (("--partition", "4"), "Error: partition 4 does not exist for topic simple"),
        (("--replica", "7"), "Error: replica 7 does not exist for partition (simple, 0)"),
        (("--offset", "-3"), "Invalid starting offset: -3"),
        (("--formatter", "X"), "there is no formatter X here"),
    ):
        code, _, errors = tool(name, *where, "--topic", "simple", *words)
        assert (code, said in errors) == (1, True), errors
