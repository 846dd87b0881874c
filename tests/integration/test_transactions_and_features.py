"""``kafka-transactions``, ``kafka-cluster`` and ``kafka-features`` on a real broker."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator

import pytest
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.surfaces.console_calls import got

from kbroker.cli import command
from kbroker.cli.kafka import table
from kbroker.client import KafkaProducer
from kbroker.client.admin.transactions import describe_producers, list_transactions
from kbroker.client.connections.cluster import Cluster
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker, wait_until
from kbroker.testing import Cluster as Zookeepers

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=1) as started:
        yield started


@pytest.fixture
def tool(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs kafka-transactions -> (exit code, lines of stdout, stderr)."""

    def run(*words: str, name: str = "kafka-transactions") -> tuple[int, list[str], str]:
        code = table.main(["--bootstrap-server", broker.bootstrap, *words], name)
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


@pytest.fixture
def opened(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The transactional id, and the topic, of an open transaction with two records."""
    name = f"pays-{request.node.name[:40]}"
    with KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(2):
            producer.send(name, b"v")
        producer.flush()
        yield name


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")]


def test_open_transaction_is_listed_and_described(tool: Run, opened: str) -> None:
    code, lines, _ = tool("list")
    rows = {cells(line)[0]: cells(line) for line in lines}
    assert code == 0
    assert lines[0].split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert [rows[opened][at] for at in (1, 3)] == ["0", "Ongoing"]
    assert tool("list", "--transactional-id-pattern", "no.*")[1][1:] == []
    assert tool("list", "--duration-filter", "3600000")[1][1:] == []

    code, lines, _ = tool("describe", "--transactional-id", opened)
    row = cells(lines[1])
    assert (code, row[1], row[4], row[8]) == (0, opened, "Ongoing", f"{opened}-0")
    assert int(row[7]) >= 0

    where = ("--topic", opened, "--partition", "0")
    code, lines, _ = tool("describe-producers", *where)
    row = cells(lines[1])
    assert (code, row[0], row[3], row[5]) == (0, rows[opened][2], "1", "0")
    assert tool("describe-producers", *where, "--broker-id", "0")[1] == lines


def test_hanging_transaction_is_found_and_aborted(tool: Run, opened: str, broker: Broker) -> None:
    """Its coordinator forgets it: the partition is left with an open transaction."""
    where = ("--topic", opened, "--partition", "0")
    assert tool("find-hanging", *where, "--max-transaction-timeout", "-1")[1][1:] == []
    code, _, errors = tool("abort", *where, "--start-offset", "1")
    assert (code, "Could not find any open transactions" in errors) == (1, True)

    assert tool("abort", *where, "--start-offset", "0") == (0, [], "")

    with Cluster(broker.bootstrap) as cluster:
        [producer] = describe_producers(cluster, [(opened, 0)])[opened, 0]
        assert producer.open_from is None


@pytest.fixture
def left_open() -> Iterator[tuple[Broker, int]]:
    """A broker with a transaction in ``left-0`` from offset 0 on, which no coordinator knows; its
    producer's id.
    """
    unverified = {"transaction.partition.verification.enable": "false"}
    with Broker(unverified, num_io_threads=2) as broker:
        with WireClient((broker.host, broker.port)) as client:
            for name in ("left", *(f"other-{number}" for number in range(5))):
                client.create_topic(name)
            options = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}
            leave_open(client, "left", batch_of([b"v"], transactional=True, **options))
        yield broker, 77


def leave_open(client: WireClient, topic: str, batch: bytes) -> None:
    request = produce_request(topic, {0: batch}, acks=-1)
    request.transactional_id = "forgotten"
    response = client.call(request, 8)
    assert response.responses[0].partition_responses[0].error_code == 0


def test_transaction_that_no_coordinator_knows_is_found_without_its_topic(
    left_open: tuple[Broker, int], capsys: pytest.CaptureFixture[str]
) -> None:
    broker, producer_id = left_open
    (row,) = got(broker, "/transactions/hanging?minutes=0")["transactions"]
    at_once = got(broker, "/transactions/hanging")["transactions"]

    where = ["--bootstrap-server", broker.bootstrap, "find-hanging", "--broker-id", "0"]
    assert table.main([*where, "--max-transaction-timeout", "-1"], "kafka-transactions") == 0
    lines = capsys.readouterr().out.splitlines()

    assert (row["topic"], row["partition"], row["offset"]) == ("left", 0, 0)
    assert (row["producer_id"], at_once) == (producer_id, [])
    assert [cells(line)[:3] for line in lines[1:]] == [["left", "0", str(producer_id)]]

    where = {"topic": "left", "partition": 0, "offset": 0}
    got(broker, "/transactions/hanging/abort", where)
    assert got(broker, "/transactions/hanging?minutes=0")["transactions"] == []


def test_doctor_finds_a_transaction_that_no_coordinator_knows(
    left_open: tuple[Broker, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what ends it. That of ``left`` may still be one that somebody is at work on."""
    broker, _ = left_open
    batch = BatchBuilder(0, producer_id=78, producer_epoch=0, base_sequence=0, transactional=True)
    batch.append(b"v", timestamp=int(time.time() * 1000) - HOUR_MS)
    with WireClient((broker.host, broker.port)) as client:
        leave_open(client, "other-1", batch.build())

    assert command.main(["doctor", "-b", broker.bootstrap, "--watch", "0", "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]

    assert (found["kind"], found["subject"]) == ("transaction-left-open", "other-1-0")
    _, *words = shlex.split(found["command"])
    assert command.main([*words, "--force"]) == 0
    assert command.main(["doctor", "-b", broker.bootstrap, "--watch", "0"]) == 0


def test_transaction_is_terminated_by_its_id(tool: Run, opened: str, broker: Broker) -> None:
    assert tool("forceTerminateTransaction", "--transactionalId", opened)[0] == 0

    with Cluster(broker.bootstrap) as cluster:
        states = {row.transactional_id: row.state for row in list_transactions(cluster)}
    assert states[opened] in ("PrepareAbort", "CompleteAbort", "PrepareEpochFence", "Empty")


def test_unknown_ids_and_partitions_are_named(tool: Run) -> None:
    code, lines, errors = tool("describe", "--transactional-id", "nobody")
    assert (code, lines) == (1, [])
    assert errors == (
        "Failed to describe transaction state of transactional-id `nobody`: The transactionalId "
        "could not be found.\n"
    )
    code, _, errors = tool("describe-producers", "--topic", "nothing", "--partition", "0")
    assert (code, "Failed to describe producers for partition nothing-0 on leader" in errors) == (
        1,
        True,
    )


def test_cluster_and_its_brokers_are_printed(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        code = table.main([*words, "--bootstrap-server", broker.bootstrap], "kafka-cluster")
        assert code == 0
        return capsys.readouterr().out

    with Cluster(broker.bootstrap) as cluster:
        host, port = cluster.address(cluster.nodes()[0]) or ("", 0)
    assert run("cluster-id").startswith("Cluster ID: ")
    heads, row = run("list-endpoints").splitlines()
    assert heads.split() == ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]
    assert row.split() == ["0", host, str(port), "null", "unfenced", "broker"]
    assert run("list-endpoints", "--include-fenced-brokers").splitlines() == [heads, row]


def test_features_are_described_and_one_is_not_changed(tool: Run) -> None:
    code, lines, _ = tool("describe", name="kafka-features")
    assert code == 0
    assert any(line.startswith("Feature: metadata.version  ") for line in lines)
    assert any("FinalizedVersionLevel: 4.3-IV0 " in line for line in lines)

    code, lines, errors = tool("upgrade", "--feature", "group.version=9", name="kafka-features")
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("Could not upgrade group.version to 9. ")
    assert errors == "1 out of 1 operation(s) failed.\n"


@pytest.fixture
def features(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs kafka-features on a broker with ZooKeeper, which has finalized none."""
    skip_without_zookeeper()
    with Zookeepers(1, {"cluster.features.enable": "false"}) as cluster:

        def run(*words: str, name: str = "kafka-features") -> tuple[int, list[str], str]:
            code = table.main(["--bootstrap-server", cluster.bootstrap, *words], name)
            captured = capsys.readouterr()
            return code, captured.out.splitlines(), captured.err

        yield run


def test_features_are_upgraded_downgraded_and_disabled(features: Run) -> None:
    """``upgrade`` alone worked: the others set a field that only the oldest request has."""
    both = ("--feature", "group.version=1", "--feature", "transaction.version=2")
    done = ["group.version was upgraded to 1.", "transaction.version was upgraded to 2."]
    assert features("upgrade", *both) == (0, done, "")

    code, lines, errors = features("downgrade", "--feature", "group.version=0")
    assert (code, errors) == (1, "1 out of 1 operation(s) failed.\n")
    assert "only an unsafe downgrade disables it" in lines[0]
    down = ("downgrade", "--unsafe", "--feature", "group.version=0")
    assert features(*down, "--dry-run")[:2] == (0, ["group.version can be downgraded to 0."])
    assert features(*down) == (0, ["group.version was downgraded to 0."], "")
    off = ("disable", "--feature", "transaction.version")
    assert features(*off)[0] == 1
    assert features(*off, "--unsafe") == (0, ["transaction.version was disabled."], "")

    def levels() -> set[str]:
        return {line.split()[7] for line in features("describe")[1]}

    # Each process of the broker hears of it in turn.
    wait_until(lambda: levels() == {"0"}, 30, "both are disabled")
