"""The verbs of ``kbroker`` with Apache Kafka 2.7 and 3.9."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.kafka_servers import Kafka27, Kafka39

from kbroker.cli import command
from kbroker.testing import wait_until
from kbroker.testing.zookeeper import ZooKeeperServer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture(scope="module", params=["2.7", "3.9"])
def kafka(request, tmp_path_factory) -> Iterator[Any]:
    place: Path = tmp_path_factory.mktemp("kafka")
    if request.param == "3.9":
        with Kafka39(place) as started:
            yield started
        return
    with ZooKeeperServer(place / "zookeeper") as zookeeper:
        with Kafka27(place / "kafka", zookeeper.connect) as started:
            yield started


@pytest.fixture
def run(kafka, capsysbinary, monkeypatch):
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", kafka.bootstrap)
    monkeypatch.setenv("KBROKER_TIMEOUT", "60")

    def call(*words: str, given: bytes = b"") -> bytes:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        code = command.main(words)
        captured = capsysbinary.readouterr()
        assert code == 0, captured.err
        return captured.out

    return call


def described(run, *words: str) -> Any:
    return json.loads(run(*words, "-o", "json"))


def test_topics_and_settings(run):
    run("health", "--wait")
    run("topic", "create", "t", "-p", "2", "-r", "1", "-c", "retention.ms=7000")
    run("topic", "alter", "t", "-p", "3", "-c", "segment.ms=8000")
    run("config", "set", "topic", "t", "max.message.bytes=90000")
    run("config", "unset", "topic", "t", "retention.ms")

    def has_settings() -> bool:
        (topic,) = described(run, "topic", "describe", "t")
        wanted = {"max.message.bytes": "90000", "segment.ms": "8000"}
        return len(topic["partitions"]) == 3 and topic["configs"] == wanted

    wait_until(has_settings, 60, "the brokers know it")
    assert [row["name"] for row in described(run, "topic", "list", "t*")] == ["t"]
    run("config", "set", "broker", "default", "log.cleaner.threads=1")
    assert described(run, "status")["brokers"][0]["leads"] >= 3
    assert described(run, "doctor", "--watch", "0")["findings"] == []
    run("topic", "delete", "t", "--force")
    wait_until(lambda: not described(run, "topic", "list", "t"), 60, "it is gone")


def test_records_and_groups(run):
    run("topic", "create", "r", "-p", "1", "-r", "1")
    run("produce", "r", "-K", ":", "-H", "h=1", "-z", "gzip", given=b"a:1\nb:2\nc:3\n")

    assert run("consume", "r", "--exit", "-f", "%o %k %v %h\\n") == (
        b"0 a 1 h=1\n1 b 2 h=1\n2 c 3 h=1\n"
    )
    assert run("consume", "r", "--exit", "--tail", "1") == b"3\n"

    run("group", "reset", "g", "--topic", "r", "--to-offset", "1", "--execute")
    (group,) = described(run, "group", "describe", "g")
    assert (group["state"], group["lag"], group["members"]) == ("Empty", 2, [])
    assert [row["group"] for row in described(run, "group", "list")] == ["g"]
    run("group", "delete", "g", "--force")
    assert described(run, "group", "list") == []


def test_operations(run):
    """Those that have a row in the table of admin operations."""
    run("topic", "create", "o", "-p", "1", "-r", "1")
    run("produce", "o", given=b"1\n2\n3\n")
    run("quota", "set", "--user", "alice", "--default", "client_id", "producer_byte_rate=1000")

    def has_quota() -> bool:
        rows = described(run, "quota", "list")["quotas"]
        return [row["quotas"] for row in rows] == [{"producer_byte_rate": 1000.0}]

    wait_until(has_quota, 60, "the brokers know it")
    run(
        "quota", "set", "--user", "alice", "--default", "client_id", "--unset", "producer_byte_rate"
    )
    wait_until(lambda: not described(run, "quota", "list")["quotas"], 60, "it is gone")
    (place,) = described(run, "log-dir", "list")["log_dirs"]
    assert place["error"] is None and place["replicas"] >= 1
    trimmed = described(run, "topic", "trim", "o", "--keep", "1", "--execute")["partitions"]
    assert [(row["new_start"], row["end"]) for row in trimmed] == [(2, 3)]
    run("group", "reset", "of-o", "--topic", "o", "--to-offset", "2", "--execute")
    assert described(run, "group", "delete-offsets", "of-o", "o", "--execute")["partitions"]
    assert described(run, "reassignment", "list")["reassignments"] == []
    assert described(run, "cluster", "balance")["moves"] == []
    assert described(run, "reassignment", "finish")["topics"] == []


def test_brokers_of_27_are_drained(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KBROKER_TIMEOUT", "60")
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        Kafka27(tmp_path / "first", zookeeper.connect) as first,
        Kafka27(tmp_path / "second", zookeeper.connect, **{"broker.id": "1"}),
    ):
        monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", first.bootstrap)

        def run(*words: str) -> Any:
            code = command.main([*words, "-o", "json"] if words[1] != "wait" else words)
            captured = capsys.readouterr()
            assert code == 0, captured.err
            return json.loads(captured.out) if words[1] != "wait" else None

        wait_until(lambda: len(run("status", "-b", first.bootstrap)["brokers"]) == 2, 60)
        run("topic", "create", "d", "-p", "4", "-r", "1")
        plan = run("cluster", "drain", "0", "--throttle", "10MB", "--execute")
        run("reassignment", "wait")
        (topic,) = run("topic", "describe", "d")

    assert plan["partitions"] >= 1 and plan["running"] == [0, 1]
    assert {tuple(row["replicas"]) for row in topic["partitions"]} == {(1,)}
