"""Verbs that follow from operations, on a real broker: quotas, transactions, log directories, the
first records of topics, offsets of groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.cli import command
from kbroker.client import KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit, committed
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

TOPIC, RECORDS = "orders", 10
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1}) as started:
        yield started


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def run(broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``kbroker ...`` -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def run_it(*words: str) -> tuple[int, str, str]:
        code = command.main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_it


@pytest.fixture
def document(run: Run) -> Callable[..., Any]:
    """What a command that succeeds prints with ``-o json``."""

    def of(*words: str) -> Any:
        code, out, err = run(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    return of


def test_quotas_are_set_listed_and_unset(run: Run, document: Callable[..., Any]) -> None:
    assert run("quota", "list") == (0, "no quotas\n", "")
    words = ("quota", "set", "--user", "alice", "--client-id", "app", "producer_byte_rate=1e6")

    tried = run(*words, "--dry-run")
    assert document("quota", "list")["quotas"] == []
    done = run(*words, "request_percentage=12.5")
    default = run("quota", "set", "--default", "user", "consumer_byte_rate=5000")
    listed = run("quota", "list")[1]

    assert tried == (0, "could change producer_byte_rate=1000000\n", "")
    assert done == (0, "changed producer_byte_rate=1000000, request_percentage=12.5\n", "")
    assert default[0] == 0
    assert "user alice, client-id app" in listed and "any user" in listed
    assert document("quota", "list", "--search", "alice")["quotas"] == [
        {
            "entity": [{"type": "user", "name": "alice"}, {"type": "client-id", "name": "app"}],
            "quotas": {"producer_byte_rate": 1e6, "request_percentage": 12.5},
        }
    ]
    assert run(*words[:6], "--unset", "producer_byte_rate", "--unset", "request_percentage")[1] == (
        "changed producer_byte_rate=default, request_percentage=default\n"
    )
    assert run("quota", "set", "--default", "user", "--unset", "consumer_byte_rate")[0] == 0
    assert document("quota", "list")["total"] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["producer_byte_rate=1"], 2, "whose? Name a user, a client id or an address"),
        (["--user", "a", "producer_byte_rate=fast"], 2, "is not a number"),
        (["--user", "a", "no_such_rate=1"], 1, "no_such_rate"),
        (["--user", "a"], 2, "nothing to set: write NAME=VALUE, or --unset NAME"),
        (["--default", "topic", "producer_byte_rate=1"], 2, "invalid choice: 'topic' (choose from"),
        (["--ip", "nowhere!", "connection_creation_rate=1"], 1, "nowhere!"),
    ],
)
def test_wrong_quotas_are_one_line(run: Run, words: list[str], code: int, text: str) -> None:
    found, out, err = run("quota", "set", *words)

    assert (found, out) == (code, "")
    assert text in err
    assert err.count("\n") == 1


def test_open_transaction_is_listed_described_and_aborted(
    run: Run, document: Callable[..., Any], broker: Broker, cluster: Cluster
) -> None:
    create_topics(cluster, [NewTopic("paid", 1)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="billing-3")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("paid", b"undecided").result()

    listed = document("transaction", "list", "--state", "Ongoing")
    described = run("transaction", "describe", "billing-3")
    unasked = run("transaction", "abort", "billing-3")
    hanging = run("transaction", "hanging", "--topic", "paid")
    aborted = run("transaction", "abort", "billing-3", "--force")
    unknown = run("transaction", "abort", "nobody", "--force")
    with pytest.raises(Exception, match=r"fenced|FENCED|epoch"):
        producer.commit_transaction()
    producer.close(0)

    assert [row["transactional_id"] for row in listed["transactions"]] == ["billing-3"]
    assert described[0] == 0
    assert "transactional id billing-3: Ongoing, open for " in described[1]
    assert "paid" in described[1]
    assert (unasked[0], "add --force" in unasked[2]) == (2, True)
    assert hanging == (0, "no transaction hangs\n", "")
    assert aborted == (0, "aborted the open transaction of billing-3\n", "")
    assert (unknown[0], "TRANSACTIONAL_ID_NOT_FOUND" in unknown[2]) == (1, True)
    assert document("transaction", "list", "--state", "Ongoing")["transactions"] == []


def test_transaction_that_does_not_hang_is_not_aborted(run: Run, cluster: Cluster) -> None:
    create_topics(cluster, [NewTopic("calm", 1)])

    code, out, err = run("transaction", "abort-hanging", "calm", "0", "7", "--force")

    assert (code, out) == (1, "")
    assert "no transaction of calm-0 begins at offset 7" in err


def test_log_directories_are_listed(run: Run, document: Callable[..., Any], broker: Broker) -> None:
    (row,) = document("log-dir", "list")["log_dirs"]
    table = run("log-dir", "list", "0")[1]
    unknown = run("log-dir", "list", "7")

    assert row["path"] == str(broker.data_dir)
    assert row["error"] is None and 0 < row["usable_bytes"] <= row["total_bytes"]
    assert str(broker.data_dir) in table and "online" in table
    assert (unknown[0], "no broker 7: there are 0" in unknown[2]) == (1, True)


def test_first_records_are_trimmed(
    run: Run, document: Callable[..., Any], broker: Broker, cluster: Cluster
) -> None:
    create_topics(cluster, [NewTopic(TOPIC, 2)])
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(2 * RECORDS):
            producer.send(TOPIC, b"v", partition=number % 2)

    code, _, err = run("topic", "trim", TOPIC, "--keep", "4")
    assert code == 0 and "add --execute" in err
    planned = document("topic", "trim", TOPIC, "--keep", "4")
    assert [row["start"] for row in planned["partitions"]] == [0, 0], "nothing was deleted"
    done = document("topic", "trim", TOPIC, "--keep", "4", "--partition", "1", "--execute")
    unclear = run("topic", "trim", TOPIC)
    everything = document("topic", "trim", TOPIC, "--all", "--execute")

    assert [row["deleted"] for row in planned["partitions"]] == [6, 6]
    assert done["partitions"] == [
        {"partition": 1, "start": 0, "new_start": 6, "end": 10, "deleted": 6}
    ]
    assert (unclear[0], "up to where? Give one of" in unclear[2]) == (2, True)
    assert [(row["start"], row["new_start"]) for row in everything["partitions"]] == [
        (0, 10), (6, 10),
    ]  # fmt: skip
    assert run("topic", "trim", "nope", "--all")[0] == 1


def test_offsets_of_a_group_are_deleted(
    run: Run, document: Callable[..., Any], cluster: Cluster
) -> None:
    create_topics(cluster, [NewTopic("read", 2)])
    commit(cluster, "readers", {("read", 0): (0, ""), ("read", 1): (0, "")})

    planned = run("group", "delete-offsets", "readers", "read")
    assert len(committed(cluster, "readers")) == 2, "nothing was deleted"
    one = document("group", "delete-offsets", "readers", "read", "--partition", "1", "--execute")
    left = committed(cluster, "readers")
    wrong = run("group", "delete-offsets", "readers", "other")

    assert planned[0] == 0 and "add --execute" in planned[2]
    assert one["partitions"] == [{"topic": "read", "partition": 1, "offset": 0}]
    assert list(left) == [("read", 0)]
    assert (wrong[0], "has no offset of topic other, but of read" in wrong[2]) == (1, True)
    assert run("group", "delete-offsets", "nobody", "read")[0] == 1
