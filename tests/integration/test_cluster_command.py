"""``kbroker cluster`` and ``kbroker reassignment`` move replicas of three real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.surfaces.answer_schemas import check_answer
from support.surfaces.console_calls import call, got

from kbroker.cli import command
from kbroker.client import KafkaProducer
from kbroker.client.admin.configs import TOPIC, alter_configs, describe_configs
from kbroker.client.admin.topics import NewTopic, create_topics, delete_topics, describe_topics
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.console.api import rebalancing
from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    racks = {number: {"broker.rack": "ab"[number % 2]} for number in range(3)}
    with Cluster(3, num_io_threads=1, each=racks) as started:
        yield started


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, client: Client) -> Iterator[str]:
    """Four partitions on brokers 0 and 1, with records."""
    name = "orders"
    create_topics(client, [NewTopic(name, replicas=[[0, 1], [1, 0], [0, 1], [1, 0]])])
    cluster.wait_in_sync(name)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(40):
            producer.send(name, b"v" * 10_000, partition=number % 4)
    yield name
    delete_topics(client, [name])
    wait_until(lambda: name not in client.topics(), 30, "it is gone")


@pytest.fixture
def run(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs ``kbroker ...`` -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", cluster.bootstrap)

    def run_it(*words: str) -> tuple[int, str, str]:
        code = command.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_it


def replicas(cluster: Cluster, topic: str) -> list[list[int]]:
    return [list(row.replicas) for _, row in sorted(cluster.partitions(topic).items())]


def on_each(cluster: Cluster, topic: str) -> list[int]:
    """How many replicas each broker has."""
    return [sum(node in nodes for nodes in replicas(cluster, topic)) for node in range(3)]


def test_drain_is_planned_throttled_waited_for_and_released(
    run: Run, cluster: Cluster, client: Client, topic: str
) -> None:
    words = ("cluster", "drain", "1", "--throttle", "10MB")
    before = replicas(cluster, topic)

    code, out, err = run(*words, "-o", "json")
    plan = json.loads(out)

    assert code == 0
    assert "add --execute" in err
    check_answer("POST", "/cluster/drain", 200, plan)
    ours = [row for row in plan["moves"] if row["topic"] == topic]
    assert len(ours) == 4
    assert all(row["bytes"] > 90_000 and row["in_sync"] == 2 for row in ours)
    assert plan["bytes"] == sum(row["bytes"] for row in plan["moves"])
    busiest = max(max(row["sends"], row["receives"]) for row in plan["brokers"])
    assert plan["seconds"] == pytest.approx(busiest / 10_000_000)
    (drained,) = (row for row in plan["brokers"] if row["broker"] == 1)
    assert (drained["replicas_then"], drained["leads_then"]) == (0, 0)
    assert replicas(cluster, topic) == before, "nothing has moved"

    code, out, _ = run(*words, "--execute")

    assert code == 0
    assert "kbroker reassignment wait follows it" in out
    assert run("reassignment", "wait")[0] == 0
    assert not any(1 in nodes for nodes in replicas(cluster, topic))
    settings = describe_configs(client, TOPIC, [topic])[topic]
    assert isinstance(settings, list)
    assert not [row.name for row in settings if row.own], "no throttle is left"

    code, out, _ = run("cluster", "balance", "--execute")
    assert code == 0
    assert run("reassignment", "wait")[0] == 0
    assert on_each(cluster, topic) == [2, 4, 2], "one of two racks has one broker"
    assert run("cluster", "balance")[1] == "balance: nothing has to move\n"


def test_spread_and_replication_of_topics_by_pattern(
    run: Run, cluster: Cluster, topic: str
) -> None:
    assert run("cluster", "spread", "ord*", "--execute")[0] == 0
    assert run("reassignment", "wait")[0] == 0
    spread = replicas(cluster, topic)
    assert on_each(cluster, topic) == [2, 4, 2], "one of two racks has one broker"

    assert run("cluster", "replication", "3", topic, "--execute")[0] == 0
    assert run("reassignment", "wait")[0] == 0
    assert [sorted(nodes) for nodes in replicas(cluster, topic)] == [[0, 1, 2]] * 4

    assert run("cluster", "replication", "1", topic, "--execute")[0] == 0
    assert run("reassignment", "wait")[0] == 0
    assert [nodes[0] for nodes in spread] == [nodes[0] for nodes in replicas(cluster, topic)]


def test_move_is_listed_and_cancelled_and_no_plan_is_made_meanwhile(
    run: Run, cluster: Cluster, client: Client, topic: str
) -> None:
    """A rate of one byte a second holds it."""
    with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(20):
            producer.send(topic, b"v" * 900_000, partition=0)
    before = replicas(cluster, topic)
    assert run("cluster", "spread", topic, "--broker", "2", "--broker", "0", "--throttle", "1",
               "--execute")[0] == 0  # fmt: skip

    code, out, _ = run("reassignment", "list", "-o", "json")
    assert code == 0
    moving = json.loads(out)["reassignments"]
    assert {(row["topic"], *row["adding"]) for row in moving} == {(topic, 2)}
    code, _, err = run("cluster", "balance")
    assert code == 1
    assert "kbroker reassignment cancel --all" in err
    code, out, _ = run("reassignment", "cancel", "--all")
    assert code == 0
    assert f"cancelled {topic}-0" in out

    code, out, _ = run("reassignment", "finish")
    assert (code, out) == (0, "removed the throttles of 1 topic and 3 brokers\n")
    assert replicas(cluster, topic)[0] == before[0], "the large one"


IMPOSSIBLE: list[tuple[list[str], int, str]] = [
    (["drain", "9"], 1, "no broker 9: there are 0, 1, 2"),
    (["drain", "0", "1", "2"], 1, "no broker would be left: start another one first"),
    (["drain", "0", "1"], 1, "lower the factor first (kbroker cluster replication 1 "),
    (["drain", "--rack", "z"], 1, "no rack 'z': there are a, b"),
    (["drain"], 2, "which brokers? Name some, or a rack"),
    (["drain", "x"], 2, "argument BROKER: 'x' is not a whole number, 0 or more"),
    (["spread", "nope"], 1, "no topic 'nope': kbroker topic list shows"),
    (["spread", "orders", "--broker", "7"], 1, "no broker 7: there are 0, 1, 2"),
    (["spread"], 2, "the following arguments are required: TOPIC"),
    (["replication", "4", "orders"], 1, "a replication factor of 4 needs 4 brokers, and 3 run"),
    (["replication", "0", "orders"], 2, "'0' is not a whole number, 1 to 32767"),
    (["balance", "--throttle", "fast"], 2, "'fast' is no number of bytes: write 50MB"),
]


def test_what_cannot_be_done_is_one_line(run: Run, topic: str) -> None:
    for words, code, text in IMPOSSIBLE:
        found, out, err = run("cluster", *words)

        assert (found, out) == (code, ""), words
        assert text in err, words
        assert err.count("\n") == 1, words


def test_fewer_replicas_than_writers_need_are_refused(run: Run, client: Client, topic: str) -> None:
    alter_configs(client, TOPIC, topic, {"min.insync.replicas": "2"})

    def refused() -> str:
        code, _, err = run("cluster", "replication", "1", topic)
        assert code == 2  # once every broker knows the setting
        return err

    err = wait_until(refused, 30, "it is refused")
    assert f"kbroker config set topic {topic} min.insync.replicas=1" in err


def test_api_plans_the_same_and_refuses_by_a_problem(
    run: Run, cluster: Cluster, topic: str
) -> None:
    broker = cluster.brokers[0]

    plan = got(broker, "/cluster/drain", {"brokers": [1]})
    refused = call(broker, "/cluster/drain", {"brokers": [0, 1, 2]})

    assert plan == json.loads(run("cluster", "drain", "1", "-o", "json")[1])
    assert (refused.status, refused.json["code"]) == (409, "NO_SUCH_PLAN")
    assert call(broker, "/cluster/drain", {"brokers": [9]}).status == 404


def test_minimum_above_the_number_of_replicas_is_all_of_them(
    cluster: Cluster, client: Client, topic: str
) -> None:
    alter_configs(client, TOPIC, topic, {"min.insync.replicas": "3"})

    def plan() -> Any:
        return got(cluster.brokers[0], "/cluster/spread", {"topics": [topic]})

    wait_until(lambda: {row["min_in_sync"] for row in plan()["moves"]} == {2}, 30, "it is known")
    assert plan()["below_min_in_sync"] == 0


def test_plan_is_not_begun_if_other_brokers_run_than_when_it_was_shown(
    cluster: Cluster, topic: str
) -> None:
    broker = cluster.brokers[0]
    words = {"topics": [topic], "dry_run": False}
    before = replicas(cluster, topic)

    for running, text in (
        ([0, 1, 2, 7], "broker 7 left since the plan was shown: look at the plan again"),
        ([0], "brokers 1, 2 came since the plan was shown"),
    ):
        refused = call(broker, "/cluster/spread", {**words, "running": running})
        assert (refused.status, refused.json["code"]) == (409, "PLAN_CHANGED")
        assert text in refused.message
    assert replicas(cluster, topic) == before
    assert got(broker, "/cluster/spread", {"topics": [topic]})["running"] == [0, 1, 2]


@pytest.mark.slow
def test_plan_whose_broker_leaves_before_it_begins_leaves_nothing(
    run: Run, cluster: Cluster, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter = rebalancing.alter_reassignments

    def late(*args: Any) -> Any:
        cluster.kill(2)
        wait_until(lambda: 2 not in client.nodes(), 60, "it is missed")
        return alter(*args)

    monkeypatch.setattr(rebalancing, "alter_reassignments", late)
    before = replicas(cluster, topic)
    try:
        code, out, err = run("cluster", "spread", topic, "--throttle", "10MB", "--execute")
    finally:
        cluster.start()

    assert (code, out) == (1, "")
    assert "nothing was begun: broker 2 left meanwhile" in err
    assert replicas(cluster, topic) == before
    settings = describe_configs(client, TOPIC, [topic])[topic]
    assert isinstance(settings, list)
    assert not [row.name for row in settings if row.own], "no throttle is left"


@pytest.mark.slow
def test_dead_broker_is_drained(run: Run, cluster: Cluster, client: Client, topic: str) -> None:
    """What it had is copied from the others while it is down."""
    cluster.kill(1)
    try:
        wait_until(
            lambda: {row.leader for row in describe_topics(client, [topic])[0].partitions} == {0},
            60,
            "another one leads",
        )
        code, out, err = run("cluster", "drain", "1", "--execute")
        assert code == 0, err
        assert "1 (missing)" in out
        assert run("reassignment", "wait")[0] == 0
        assert [sorted(nodes) for nodes in replicas(cluster, topic)] == [[0, 2]] * 4
    finally:
        cluster.start()
