"""``kbroker bench``: it measures on a topic of its own, and says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kbroker.cli import command
from kbroker.client.admin import topics as topic_admin
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

FEW = ("-n", "3000", "--round-trips", "5")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def run(broker, capsys, monkeypatch):
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def call(*words: str) -> tuple[int, str, str]:
        code = command.main(("bench", *words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def names(broker: Broker) -> list[str]:
    with Cluster(broker.bootstrap) as cluster:
        return [topic.name for topic in topic_admin.list_topics(cluster)]


def test_steps_are_measured_on_a_topic_that_is_deleted(run, broker):
    code, out, err = run(*FEW, "-s", "50", "-p", "3", "-z", "lz4", "-o", "json")

    assert (code, err) == (0, "")
    write, read, trip = json.loads(out)
    assert [row["step"] for row in (write, read, trip)] == ["write", "read", "round trip"]
    assert [row["records"] for row in (write, read, trip)] == [3000, 3000, 5]
    assert write["p50_ms"] <= write["p99_ms"] <= write["p99_9_ms"]
    assert read["p50_ms"] is None and trip["p50_ms"] > 0
    assert all(row["records_per_second"] > 0 and row["seconds"] > 0 for row in (write, read))
    assert [name for name in names(broker) if name.startswith("kbroker-bench")] == []


@pytest.mark.parametrize("acks", ["1", "0"])
def test_an_existing_topic_stays_with_what_was_written(run, broker, acks):
    with Cluster(broker.bootstrap) as cluster:
        topic_admin.create_topics(cluster, [topic_admin.NewTopic(f"kept{acks}", 2)])
    code, out, _ = run(*FEW, "-t", f"kept{acks}", "--acks", acks, "-X", "linger.ms=1")

    assert code == 0
    assert out.splitlines()[0].split() == [
        "STEP", "RECORDS", "SECONDS", "RECORDS/S", "MB/S", "P50", "MS", "P99", "MS", "P99.9", "MS"
    ]  # fmt: skip
    assert f"kept{acks}" in names(broker)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("-t", "t", "-p", "3"), 2, "for a topic that is created"),
        (("-n", "0"), 2, "at least 1"),
        (("-n", "x"), 2, "is not a number"),
        (("-X", "linger.ms"), 2, "write NAME=VALUE"),
        (("-X", "no.such=1"), 2, "have no.such"),
        (("-n", "10", "-r", "3"), 1, "replication factor"),
        (("-n", "10", "-s", "2000000"), 1, "records were not written: "),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_said(run, broker, words, code, why):
    found, _, err = run(*words)

    assert found == code
    assert why.lower() in err.lower()
    assert [name for name in names(broker) if name.startswith("kbroker-bench")] == []
