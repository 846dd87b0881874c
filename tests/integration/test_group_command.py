"""``kbroker group`` and the calls below it, on a real broker with librdkafka's consumers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.cli import command
from kbroker.client.admin import groups as group_admin
from kbroker.client.admin import topics as topic_admin
from kbroker.client.batches.offsets import commit, committed
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC, RECORDS = "orders", 10
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"log.retention.ms": -1, "offsets.topic.num.partitions": 2}
    with Broker(settings, group_initial_rebalance_delay_ms=0) as started:
        with Cluster(started.bootstrap) as cluster:
            topic_admin.create_topics(cluster, [topic_admin.NewTopic(TOPIC, 2)])
        producer = Producer({"bootstrap.servers": started.bootstrap})
        for number in range(2 * RECORDS):
            # One record a second, in each of the partitions.
            at = FIRST_MS + 1000 * (number // 2)
            producer.produce(TOPIC, b"v", partition=number % 2, timestamp=at)
        assert producer.flush(30) == 0
        yield started


@pytest.fixture
def cluster(broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as opened:
        yield opened


@pytest.fixture
def group(broker, capsys, monkeypatch):
    """Runs ``kbroker group ...`` -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", broker.bootstrap)

    def run(*words: str) -> tuple[int, str, str]:
        code = command.main(["group", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@contextmanager
def member(broker: Broker, name: str, protocol: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "client.id": f"client-of-{name}",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        wait_until(lambda: consumer.poll(0.1) is not None, 60, "the member reads")
        wait_until(lambda: len(consumer.assignment()) == 2, 60, "it has both partitions")
        yield consumer
    finally:
        consumer.close()


def described(group, name: str):
    code, out, err = group("describe", name, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)[0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_lag_of_both_protocols(broker, group, protocol):
    name = f"live-{protocol}"
    with member(broker, name, protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 4)], asynchronous=False)

        found = described(group, name)

        assert (found["type"], found["state"], found["lag"]) == (protocol, "Stable", 6)
        (only,) = found["members"]
        assert only["client"] == f"client-of-{name}"
        assert only["partitions"] == [f"{TOPIC}-0", f"{TOPIC}-1"]
        rows = {row["partition"]: row for row in found["partitions"]}
        assert (rows[0]["offset"], rows[0]["end"], rows[0]["lag"]) == (4, RECORDS, 6)
        assert (rows[1]["offset"], rows[1]["end"], rows[1]["lag"]) == (None, RECORDS, None)
        assert {row["member"] for row in rows.values()} == {only["member"]}

        text = group("describe", name)[1].splitlines()
        assert text[0].startswith(f"group {name}: Stable, 1 member, lag 6, coordinator ")
        assert text[1].split() == ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "CLIENT", "HOST"]
        assert "orders-0, orders-1" in group("describe", name, "--members")[1]

        listed = json.loads(group("list", "live-*", "--state", "stable", "-o", "json")[1])
        assert [(row["group"], row["type"]) for row in listed] == [(name, protocol)]

        code, _, err = group("reset", name, "--all-topics", "--to-earliest", "--execute")
        assert code == 1
        assert f"group {name} has 1 member: stop them" in err
        code, _, err = group("delete", name, "--force")
        assert (code, "NON_EMPTY_GROUP" in err) == (1, True)


def offsets(cluster: Cluster, name: str) -> dict[int, int]:
    return {number: row.offset for (_, number), row in committed(cluster, name).items()}


def test_reset_shows_only_and_changes_nothing_without_execute(group, cluster):
    commit(cluster, "dry", {(TOPIC, 0): (5, ""), (TOPIC, 1): (6, "")})

    code, out, err = group("reset", "dry", "--all-topics", "--to-earliest", "-o", "json")

    assert code == 0
    assert [(row["offset"], row["new_offset"]) for row in json.loads(out)] == [(5, 0), (6, 0)]
    assert err == "nothing was changed; add --execute to do it\n"
    assert offsets(cluster, "dry") == {0: 5, 1: 6}


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("--all-topics --to-earliest", {0: 0, 1: 0}),
        ("--all-topics --to-latest", {0: 10, 1: 10}),
        ("--all-topics --to-current", {0: 5, 1: 6}),
        ("--all-topics --to-offset 7", {0: 7, 1: 7}),
        ("--all-topics --to-offset 70", {0: 10, 1: 10}),
        ("--all-topics --shift-by -2", {0: 3, 1: 4}),
        ("--all-topics --shift-by -100", {0: 0, 1: 0}),
        ("--all-topics --shift-by 1", {0: 6, 1: 7}),
        (f"--all-topics --to-datetime {FIRST_MS + 3000}", {0: 3, 1: 3}),
        ("--all-topics --to-datetime 2023-11-14T22:13:22.500", {0: 3, 1: 3}),
        ("--all-topics --to-datetime 2100-01-01", {0: 10, 1: 10}),
        ("--all-topics --by-duration 1h", {0: 10, 1: 10}),
        ("--all-topics --by-duration 5000w", {0: 0, 1: 0}),
        ("--topic orders:1 --to-latest", {0: 5, 1: 10}),
        ("--topic orders --to-offset 2", {0: 2, 1: 2}),
    ],
)
def test_reset_with_execute(group, cluster, words, after):
    commit(cluster, "moved", {(TOPIC, 0): (5, ""), (TOPIC, 1): (6, "")})

    code, _, err = group("reset", "moved", *words.split(), "--execute")

    assert (code, err) == (0, "")
    assert offsets(cluster, "moved") == after


def test_group_can_be_prepared_before_it_exists(group, cluster):
    code, out, _ = group("reset", "prepared", "--topic", "orders:0", "--to-offset", "3",
                         "--execute", "-o", "json")  # fmt: skip

    assert code == 0
    assert json.loads(out) == [{"topic": TOPIC, "partition": 0, "offset": None, "new_offset": 3}]
    assert offsets(cluster, "prepared") == {0: 3}


def test_group_is_deleted_with_its_offsets(group, cluster):
    commit(cluster, "old", {(TOPIC, 0): (5, "")})

    assert group("delete", "old", "--force") == (0, "deleted group old\n", "")

    assert offsets(cluster, "old") == {}
    assert group("describe", "old")[0] == 1


def test_nearest_name_of_a_group_is_named(group, cluster):
    commit(cluster, "billing", {(TOPIC, 0): (5, "")})

    line = "group biling does not exist; did you mean billing?\n"
    assert group("describe", "biling") == (1, "", f"kbroker group describe: {line}")
    assert group("delete", "biling", "--force") == (1, "", f"kbroker group delete: {line}")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("reset g --to-earliest", 2, "which partitions? Give --topic or --all-topics"),
        ("reset g --all-topics --to-datetime soon", 2, "'soon' is no time"),
        ("reset g --all-topics --by-duration 5", 2, "'5' is no duration"),
        ("reset g --all-topics --to-offset -1", 2, "'-1' is not an offset"),
        ("reset g --topic t:x --to-latest", 2, "'t:x': write TOPIC, or TOPIC:0,1"),
        ("reset g --all-topics --to-latest --to-earliest", 2, "not allowed with argument"),
        ("reset g --all-topics --to-latset", 2, "did you mean --to-latest?"),
        ("reset nobody --all-topics --to-latest", 1, "group nobody has no offsets"),
        ("reset g --topic nowhere --to-latest", 1, "topic nowhere does not exist"),
        ("reset g --topic orders:9 --to-latest", 1, "topic orders has no partition 9"),
        ("delete g", 2, "add --force to delete without being asked"),
    ],
)
def test_wrong_use_is_one_line(group, monkeypatch, words, code, line):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)

    found, out, err = group(*words.split())

    assert (found, out) == (code, "")
    assert line in err and err.count("\n") == 1


# -- the calls


def test_offsets_are_deleted_by_partition(cluster):
    commit(cluster, "some", {(TOPIC, 0): (5, ""), (TOPIC, 1): (6, "")})

    group_admin.delete_offsets(cluster, "some", [(TOPIC, 0)])

    assert offsets(cluster, "some") == {1: 6}


def test_deletion_has_a_result_for_each_group(cluster):
    commit(cluster, "there", {(TOPIC, 0): (5, "")})

    results = group_admin.delete_groups(cluster, ["there", "absent"])

    assert results["there"] is None
    assert isinstance(results["absent"], RejectedError)
    assert results["absent"].code == ErrorCode.GROUP_ID_NOT_FOUND


def test_partitions_that_are_gone_are_left_out(cluster):
    topic_admin.create_topics(cluster, [topic_admin.NewTopic("short-lived", 1)])
    commit(cluster, "late", {(TOPIC, 0): (5, ""), ("short-lived", 0): (0, "")})
    topic_admin.delete_topics(cluster, ["short-lived"])

    rows = group_admin.progress(cluster, "late")

    assert [(row.topic, row.partition, row.lag) for row in rows] == [(TOPIC, 0, 5)]


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0", b"\xff\xff\xff", b"\0\1\x7f\xff\xff\xff"])
def test_assignment_that_is_none_has_no_partitions(data):
    """Any client may write any bytes there."""
    assert group_admin._assigned(data) == []
