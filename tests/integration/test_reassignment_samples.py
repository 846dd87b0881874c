"""The sample runs of ``kafka-reassign-partitions`` in documents of Kafka 0.8.2 (SMP-10 to SMP-14),
with brokers of the numbers that they name. Documents of the tool are one line each, in which
partitions are sorted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.checkout import Checkout
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TOOL = "bin/kafka-reassign-partitions.sh --zookeeper localhost:2181"
TOPICS = "bin/kafka-topics.sh --zookeeper localhost:2181"
BROKERS = range(1, 8)
MOVED = ["foo1", "foo2"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    skip_without_zookeeper()
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    try:
        made.open("bin/zookeeper-server-start.sh config/zookeeper.properties")
        terminals = []
        for number in BROKERS:
            (made.home / f"config/server-{number}.properties").write_text(
                f"broker.id={number}\nlisteners=PLAINTEXT://127.0.0.1:{9092 + number}\n"
                f"log.dir={made.home}/kafka-logs-{number}\nnum.io.threads=1\n"
            )
            line = f"bin/kafka-server-start.sh config/server-{number}.properties"
            terminals.append(made.open(line))
        for terminal in terminals:
            terminal.wait_for("processes are ready")
        yield made
    finally:
        made.close()


def document(*rows: tuple[str, int, list[int]]) -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [{"topic": t, "partition": n, "replicas": nodes} for t, n, nodes in rows],
    }


def of_both(*replicas: list[int]) -> dict[str, Any]:
    return document(*((t, n, nodes) for t in MOVED for n, nodes in enumerate(replicas)))


def saved(checkout: Checkout, name: str, content: dict[str, Any]) -> str:
    """The options with this file."""
    (checkout.home / name).write_text(json.dumps(content))
    return f"--reassignment-json-file {name}"


def execute(checkout: Checkout, options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents that ``--execute`` prints: before and after."""
    lines = checkout.run(f"{TOOL} {options} --execute").splitlines()
    assert lines[0] == "Current partition replica assignment"
    assert lines[1] == lines[3] == ""
    assert lines[4:6] == [
        "Save this to use as the --reassignment-json-file option during rollback",
        "Successfully started reassignment of partitions",
    ]
    assert len(lines) == 7
    return json.loads(lines[2]), json.loads(lines[6])


def verify(checkout: Checkout, options: str, *partitions: str) -> None:
    """Until all are moved."""
    head = "Status of partition reassignment:"
    done = [f"Reassignment of partition [{name}] completed successfully" for name in partitions]
    moving = [f"Reassignment of partition [{name}] is in progress" for name in partitions]

    def ended() -> bool:
        first, *rows = checkout.run(f"{TOOL} {options} --verify").splitlines()
        assert first == head
        assert len(rows) == len(partitions)
        for row, ways in zip(rows, zip(done, moving, strict=True), strict=True):
            assert row in ways
        return rows == done

    wait_until(ended, 60, "all are moved")


def test_topics_move_to_new_brokers(checkout: Checkout) -> None:
    """SMP-10 to SMP-12."""
    for name in MOVED:
        checkout.run(f"{TOPICS} --create --topic {name} --replica-assignment 3:4,2:3,1:2")
    (checkout.home / "topics-to-move.json").write_text(
        '{"topics": [{"topic": "foo1"},\n            {"topic": "foo2"}],\n "version":1\n}\n'
    )

    lines = checkout.run(
        f'{TOOL} --topics-to-move-json-file topics-to-move.json --broker-list "5,6" --generate '
    ).splitlines()

    before = of_both([3, 4], [2, 3], [1, 2])
    assert [lines[at] for at in (0, 1, 3, 4, 5)] == [
        "Current partition replica assignment",
        "",
        "",
        "Proposed partition reassignment configuration",
        "",
    ]
    assert json.loads(lines[2]) == before
    proposed = json.loads(lines[6])
    assert {(p["topic"], p["partition"]) for p in proposed["partitions"]} == {
        (name, number) for name in MOVED for number in range(3)
    }
    assert all(sorted(p["replicas"]) == [5, 6] for p in proposed["partitions"])

    wanted = of_both([5, 6], [5, 6], [5, 6])
    options = saved(checkout, "expand-cluster-reassignment.json", wanted)
    assert execute(checkout, options) == (before, wanted)
    verify(checkout, options, *(f"{name},{number}" for name in MOVED for number in range(3)))


def test_chosen_partitions_move(checkout: Checkout) -> None:
    """SMP-13, with topics of its own."""
    checkout.run(f"{TOPICS} --create --topic bar1 --replica-assignment 1:2")
    checkout.run(f"{TOPICS} --create --topic bar2 --replica-assignment 1:2,3:4")
    wanted = document(("bar1", 0, [5, 6]), ("bar2", 1, [2, 3]))
    options = saved(checkout, "custom-reassignment.json", wanted)

    assert execute(checkout, options) == (
        document(("bar1", 0, [1, 2]), ("bar2", 1, [3, 4])),
        wanted,
    )

    verify(checkout, options, "bar1,0", "bar2,1")


def test_topic_gets_more_replicas(checkout: Checkout) -> None:
    """SMP-14."""
    checkout.run(f"{TOPICS} --create --topic foo --replica-assignment 5")
    wanted = document(("foo", 0, [5, 6, 7]))
    options = saved(checkout, "increase-replication-factor.json", wanted)

    assert execute(checkout, options) == (document(("foo", 0, [5])), wanted)

    verify(checkout, options, "foo,0")
    assert checkout.run(f"{TOPICS} --topic foo --describe") == (
        "Topic:foo\tPartitionCount:1\tReplicationFactor:3\tConfigs:\n"
        "\tTopic: foo\tPartition: 0\tLeader: 5\tReplicas: 5,6,7\tIsr: 5,6,7\n"
    )
