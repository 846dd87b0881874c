"""``kafka-reassign-partitions`` on three brokers with two log directories each: the run of Kafka's
documents with ``--zookeeper``, and throttles, cancelling and log directories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.cli.kafka import table
from kbroker.client import KafkaProducer
from kbroker.client.admin.configs import BROKER, TOPIC, describe_configs
from kbroker.client.admin.topics import NewTopic, create_topics, describe_topics
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

NAME = "kafka-reassign-partitions"
RATE = "leader.replication.throttled.rate"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_zookeeper()
    home = tmp_path_factory.mktemp("dirs")
    each = {n: {"log.dirs": ",".join(str(home / f"{d}{n}") for d in "ab")} for n in range(3)}
    with Cluster(3, each=each, num_io_threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as opened:
        yield opened


class Tool:
    """Runs it; the exit code and the lines on stdout."""

    def __init__(self, cluster: Cluster, capsys: Any, path: Path) -> None:
        self._ways = {
            "zookeeper": ("--zookeeper", cluster.zookeeper_connect),
            "broker": ("--bootstrap-server", cluster.bootstrap),
        }
        self._capsys = capsys
        self._path = path

    def __call__(self, way: str, *words: str) -> tuple[int, list[str]]:
        code = table.main([*words, *self._ways[way]], NAME)
        captured = self._capsys.readouterr()
        assert not captured.err
        return code, captured.out.splitlines()

    def with_file(self, way: str, action: str, document: Any, *words: str) -> tuple[int, list[str]]:
        self._path.write_text(json.dumps(document))
        return self(way, action, "--reassignment-json-file", str(self._path), *words)


@pytest.fixture
def tool(cluster: Cluster, capsys: Any, tmp_path: Path) -> Tool:
    return Tool(cluster, capsys, tmp_path / "moves.json")


def moves(*rows: tuple[str, int, list[int]], **more: list[str]) -> dict[str, Any]:
    named = [{"topic": t, "partition": n, "replicas": nodes, **more} for t, n, nodes in rows]
    return {"version": 1, "partitions": named}


def create(client: Client, name: str, replicas: list[list[int]], records: int = 0) -> None:
    result = create_topics(client, [NewTopic(name, replicas=replicas)])[name]
    assert not isinstance(result, Exception), result
    with KafkaProducer(bootstrap_servers=client.bootstrap) as producer:
        for number in range(records):
            producer.send(name, bytes(1000), partition=number % len(replicas))


def replicas_of(client: Client, name: str) -> list[list[int]]:
    return [row.replicas for row in describe_topics(client, [name])[0].partitions]


def until_done(verify: Callable[[], list[str]], words: str) -> list[str]:
    found: list[str] = []

    def done() -> bool:
        found[:] = verify()
        # The broker that is asked for replicas may hear of the end after the controller.
        unlike = ("progress", "don't match the list", "There is no active reassignment")
        return not any(words in line for line in found for words in unlike)

    wait_until(done, 60, words)
    return found


def test_the_run_of_the_documents_with_zookeeper(
    cluster: Cluster, client: Client, tool: Tool, tmp_path: Path
) -> None:
    """SMP-10 to SMP-14: generate, execute what was proposed, verify, and more replicas."""
    before = {"foo1": [[0], [1], [0]], "foo2": [[1], [0], [1]]}
    for name, replicas in before.items():
        create(client, name, replicas, records=30)
    path = tmp_path / "topics.json"
    path.write_text('{"topics": [{"topic": "foo1"},{"topic": "foo2"}],"version":1}')

    code, lines = tool(
        "zookeeper", "--generate", "--topics-to-move-json-file", str(path), "--broker-list", "2"
    )

    assert code == 0
    assert [lines[at] for at in (0, 1, 3, 4)] == [
        "Current partition replica assignment",
        "",
        "",
        "Proposed partition reassignment configuration",
    ]
    rows = [(name, n, nodes) for name in before for n, nodes in enumerate(before[name])]
    proposed = [(name, number, [2]) for name, number, _ in rows]
    assert json.loads(lines[2]) == moves(*rows)
    assert json.loads(lines[6]) == moves(*proposed)

    code, lines = tool.with_file("zookeeper", "--execute", json.loads(lines[6]))

    assert code == 0
    assert json.loads(lines[2]) == moves(*rows)
    assert lines[4:6] == [
        "Save this to use as the --reassignment-json-file option during rollback",
        "Successfully started reassignment of partitions",
    ]
    assert json.loads(lines[6]) == moves(*proposed)
    lines = until_done(
        lambda: tool.with_file("zookeeper", "--verify", moves(*proposed))[1], "all are moved"
    )
    assert lines == [
        "Status of partition reassignment:",
        *(
            f"Reassignment of partition [{name},{number}] completed successfully"
            for name, number, _ in proposed
        ),
    ]
    assert replicas_of(client, "foo1") == [[2], [2], [2]]

    more = moves(("foo1", 0, [2, 0, 1]))
    assert tool.with_file("zookeeper", "--execute", more)[0] == 0
    until_done(lambda: tool.with_file("zookeeper", "--verify", more)[1], "it has three replicas")
    assert replicas_of(client, "foo1")[0] == [2, 0, 1]
    code, lines = tool.with_file("zookeeper", "--verify", moves(("foo1", 0, [1])))
    assert lines[-1] == "Reassignment of partition [foo1,0] failed"


def test_throttled_reassignment_is_listed_cancelled_and_its_throttle_removed(
    client: Client, tool: Tool
) -> None:
    create(client, "slow", [[0, 1]], records=5000)
    wanted = moves(("slow", 0, [1, 2]))

    code, lines = tool.with_file("broker", "--execute", wanted, "--throttle", "1024")

    assert code == 0
    assert lines[5:] == [
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure "
        "the throttle is removed.",
        "The inter-broker throttle limit was set to 1024 B/s",
        "Successfully started partition reassignment for slow-0",
    ]

    def own(kind: int, name: str) -> dict[str, str | None]:
        rows = describe_configs(client, kind, [name])[name]
        assert isinstance(rows, list)
        return {row.name: row.value for row in rows if row.own}

    def rates() -> list[str | None]:
        return [own(BROKER, str(node)).get(RATE) for node in range(3)]

    throttled = {
        "leader.replication.throttled.replicas": "0:0,0:1",
        "follower.replication.throttled.replicas": "0:2",
    }
    # Each broker learns of it a moment later.
    wait_until(lambda: own(TOPIC, "slow") == throttled, 30, "the topic is throttled")
    wait_until(lambda: rates() == ["1024"] * 3, 30, "the brokers are throttled")
    code, lines = tool("broker", "--list")
    assert lines == [
        "Current partition reassignments:",
        "slow-0: replicas: 1,2,0. adding: 2. removing: 0.",
    ]
    code, lines = tool.with_file("broker", "--execute", wanted)
    assert (code, lines[0][:61]) == (
        1,
        "Cannot execute because there is an existing partition assignm",
    )
    code, lines = tool.with_file("broker", "--verify", wanted)
    assert lines == [
        "Status of partition reassignment:",
        "Reassignment of partition slow-0 is still in progress.",
        "",
    ]

    code, lines = tool.with_file("broker", "--cancel", wanted)

    assert (code, lines) == (
        0,
        [
            "Successfully cancelled partition reassignment for: slow-0",
            "None of the specified partition moves are active."
            "Clearing broker-level throttles on brokers 0,1,2",
            "Clearing topic-level throttles on topic slow",
        ],
    )
    assert replicas_of(client, "slow") == [[1, 0]]
    wait_until(lambda: not own(TOPIC, "slow"), 30, "the topic is not throttled any more")
    wait_until(lambda: rates() == [None] * 3, 30, "the brokers are not throttled any more")
    assert tool("broker", "--list") == (0, ["No partition reassignments found."])


def test_throttle_is_set_on_all_brokers_but_one_that_is_away(
    cluster: Cluster, client: Client, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is often a broker that has died why partitions are reassigned."""
    create(client, "rescued", [[0, 2]], records=10)
    cluster.wait_in_sync("rescued")
    path = tmp_path / "rescue.json"
    path.write_text(json.dumps(moves(("rescued", 0, [0, 1]))))

    def run(*words: str) -> tuple[int, str, str]:
        where = ("--bootstrap-server", cluster.brokers[0].bootstrap)
        file = ("--reassignment-json-file", str(path))
        return table.main([*where, *file, *words], NAME), *capsys.readouterr()

    cluster.brokers[2].stop()
    try:
        wait_until(lambda: 2 not in nodes_of(cluster), 30, "the broker is away")
        code, out, errors = run("--execute", "--throttle", "5000000")
        assert code == 0, errors
        assert "The inter-broker throttle limit was set to 5000000 B/s" in out
        said = "The throttles of broker 2 were not changed: it is not running\n"
        assert errors == said
        until_done(lambda: run("--verify")[1].splitlines(), "the replica is moved")
        assert replicas_of(client, "rescued") == [[0, 1]]
        for node in ("0", "1"):
            found = describe_configs(client, BROKER, [node])[node]
            assert isinstance(found, list)
            assert RATE not in {row.name for row in found if row.own}
    finally:
        cluster.start()


def nodes_of(cluster: Cluster) -> list[int]:
    with Client(cluster.brokers[0].bootstrap) as fresh:
        return list(fresh.nodes())


def test_replica_moves_to_the_other_directory_of_its_broker(client: Client, tool: Tool) -> None:
    create(client, "packed", [[1]], records=10)
    code, lines = tool.with_file("broker", "--execute", moves(("packed", 0, [1])))
    (row,) = json.loads(lines[2])["partitions"]
    (here,) = row["log_dirs"]
    there = here[:-2] + {"a1": "b1", "b1": "a1"}[here[-2:]]
    wanted = moves(("packed", 0, [1]), log_dirs=[there])

    code, lines = tool.with_file("broker", "--execute", wanted)

    assert code == 0
    assert lines[-1] == (
        f"Successfully started moving log directory to {there} for replica packed-0 with broker 1 "
    )
    lines = until_done(lambda: tool.with_file("broker", "--verify", wanted)[1], "it has moved")
    assert "Reassignment of replica packed-0-1 completed successfully." in lines


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (moves(("nothing", 0, [1])), "Topic nothing not found."),
        (moves(("small", 7, [1])), "Unable to find partition: small-7"),
        (moves(("small", 0, [9])), "Error: Unknown broker id 9"),
    ],
)
def test_what_cannot_be_reassigned_is_named(
    client: Client, tool: Tool, wanted: dict[str, Any], said: str
) -> None:
    create_topics(client, [NewTopic("small", replicas=[[0]])])

    code, lines = tool.with_file("broker", "--execute", wanted)

    assert code == 1
    assert said in lines[-1]
