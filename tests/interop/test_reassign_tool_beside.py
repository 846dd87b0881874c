"""``kafka-reassign-partitions`` beside Kafka's own, on three brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.beside import BESIDE, Beside

from kbroker.client import KafkaProducer
from kbroker.testing import Cluster, wait_until

pytestmark = BESIDE

REASSIGN = (
    "kafka-reassign-partitions",
    "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
)
# Kafka's adds a stack trace to an error. Where replicas of a new topic go is chosen by brokers.
MASKS = [r"(?s)\n(?:\S+Exception(?:: |\n).*)?\Z", r"(?<=dirs0/)[ab](?=\d)"]
TOPICS = "kafka-topics", "org.apache.kafka.tools.TopicCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("dirs")
    each = {n: {"log.dirs": ",".join(str(home / f"{d}{n}") for d in "ab")} for n in range(3)}
    with Cluster(3, each=each, num_io_threads=1) as started:
        yield started


class Reassigning:
    """Runs both with a file of their own; what both print."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self._both = Beside(cluster.bootstrap)
        self._home = home

    def close(self) -> None:
        self._both.close()

    def create(self, name: str, replicas: str) -> None:
        words = ("--create", "--topic", name, "--replica-assignment", replicas)
        self._both.same(*TOPICS, *words)

    def __call__(self, *words: str, masks: tuple[str, ...] = ()) -> str:
        return self._both.same(*REASSIGN, *words, masks=[*MASKS, *masks]).stdout

    def of_file(self, *words: str, document: Any, masks: tuple[str, ...] = ()) -> str:
        """The file's name and topics have ``-@-`` in them, for which each tool puts its own."""
        text = document if isinstance(document, str) else json.dumps(document)
        for own in ("-j-", "-k-"):
            (self._home / f"moves{own}.json").write_text(text.replace("-@-", own))
        return self(*words, str(self._home / "moves-@-.json"), masks=masks)

    def moves(self, action: str, *rows: tuple[Any, ...], words: tuple[str, ...] = ()) -> str:
        named = [
            {"topic": row[0], "partition": row[1], "replicas": row[2]}
            | ({"log_dirs": row[3]} if len(row) > 3 else {})
            for row in rows
        ]
        document = {"version": 1, "partitions": named}
        return self.of_file(action, *words, "--reassignment-json-file", document=document)

    def moved(self, *rows: tuple[Any, ...]) -> None:
        """Wait until both are."""

        def done() -> bool:
            return "progress" not in self.moves("--verify", *rows)

        wait_until(done, 60, f"{rows} are moved")


@pytest.fixture(scope="module")
def both(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reassigning]:
    found = Reassigning(cluster, tmp_path_factory.mktemp("files"))
    yield found
    found.close()


def test_partitions_are_moved_alike(both: Reassigning) -> None:
    name = "moved-@-around"
    both.create(name, "0:1,1:2,2:0")
    both("--list")
    there = (name, 0, [2, 1]), (name, 2, [1, 0])
    assert f"reassignments for {name}-0,{name}-2" in both.moves("--execute", *there)
    both.moved(*there)
    assert f"{name}-0 is completed." in both.moves(
        "--verify", *there, words=("--preserve-throttles",)
    )
    both.moves("--verify", (name, 0, [0, 1]))
    both.moves("--cancel", *there)
    both.moves("--execute", (name, 1, [0, 1, 2]))
    both.moved((name, 1, [0, 1, 2]))
    both.moves("--execute", (name, 1, [0, 1]), words=("--disallow-replication-factor-change",))
    both("--list")


def test_wrong_moves_are_refused_alike(both: Reassigning) -> None:
    name = "stays-@-there"
    both.create(name, "0:1,1:2")
    both.moves("--execute", (name, 0, [0, 7]))
    both.moves("--execute", (name, 9, [0]))
    both.moves("--execute", ("no-@-such", 0, [0]))
    both.moves("--execute")
    both.moves("--execute", (name, 0, []))
    both.moves("--execute", (name, 0, [1, 1]), (name, 1, [0, 0, 2, 2]))
    both.moves("--execute", (name, 0, [1]), (name, 0, [2]))
    both.moves("--execute", (name, 0, [1, 2], ["any"]))
    both.moves("--verify", ("no-@-such", 0, [0]))
    both.moves("--verify")


def test_proposals_are_printed_alike(both: Reassigning) -> None:
    name = "proposed-@-for"
    both.create(name, "0,1,2")
    topics = {"topics": [{"topic": name}], "version": 1}

    def generate(nodes: str, document: Any = topics, *more: str, masks: Any = ()) -> str:
        words = ("--generate", "--broker-list", nodes, *more, "--topics-to-move-json-file")
        return both.of_file(*words, document=document, masks=masks)

    assert generate("2").count('"replicas":[2]') == 4
    chosen = (r"(?s)(?<=configuration\n).*",)
    generate("0,1", masks=chosen)
    generate("0,1", topics, "--disable-rack-aware", masks=chosen)
    generate("0,1,0")
    generate("0", {"topics": [{"topic": name}, {"topic": name}]})
    generate("0", {"topics": [{"topic": "no-@-such"}]})
    generate("7")


def test_throttles_and_cancelling_are_reported_alike(both: Reassigning, cluster: Cluster) -> None:
    name = "slow-@-ly"
    both.create(name, "0,1")
    with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for own in ("-j-", "-k-"):
            for number in range(10_000):
                producer.send(name.replace("-@-", own), bytes(1000), partition=number % 2)
    there, kept = ((name, 0, [2]), (name, 1, [2])), ("--preserve-throttles",)
    more = ("--throttle", "2048", "--replica-alter-log-dirs-throttle", "4096", "--additional")

    assert "limit was set to 2048 B/s" in both.moves("--execute", *there, words=more)
    both.moves("--execute", *there)
    listed = both("--list")
    assert f"{name}-0: replicas: 2,0. adding: 2. removing: 0.\n" in listed
    assert "still in progress" in both.moves("--verify", *there)
    assert f"for: {name}-0,{name}-1\n" in both.moves("--cancel", *there, words=kept)
    both("--list")
    both.moves("--cancel", *there)


def test_log_directories_are_changed_alike(both: Reassigning, cluster: Cluster) -> None:
    name = "packed-@-in"
    both.create(name, "1")
    one = (name, 0, [1])
    dirs = cluster.brokers[1].config["log.dirs"].split(",")
    for there in dirs:
        assert "Successfully started moving" in both.moves("--execute", (*one, [there]))
        both.moved((*one, [there]))
    both.moves("--verify", (*one, [dirs[0]]))
    both.moves("--cancel", (*one, [dirs[0]]))
    both.moves("--execute", (*one, ["/nowhere"]))


def test_wrong_use_of_reassign_partitions_has_the_same_exit_code(both: Reassigning) -> None:
    for words in (
        ("--bogus",), ("--list", "--verify"), ("--verify",), ("--generate",), ("--execute",),
        ("--list", "--throttle", "5"), ("--verify", "--reassignment-json-file", "x", "--timeout",
         "1"),
    ):  # fmt: skip
        both(*words)
