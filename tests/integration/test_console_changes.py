"""The console's API over HTTP: lag over time, quotas, reassignments, and read-only mode."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from support.surfaces.console_calls import call, got

from kbroker.client import KafkaProducer
from kbroker.client.admin.quotas import describe_quotas
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.console.operations import OPERATIONS
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

NASTY = 'u/<img src=x onerror=alert(1)>&?#"\\'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(group_initial_rebalance_delay_ms=0) as started:
        got(started, "/topics", {"name": "read", "partitions": 2})
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for _ in range(10):
                producer.send("read", b"v", partition=0)
        yield started


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as made:
        yield made


def test_lag_is_kept_from_the_first_scrape_or_the_opening_of_the_console_on() -> None:
    with Broker() as broker, Cluster(broker.bootstrap) as cluster:
        create_topics(cluster, [NewTopic("read", 2)])  # the console is not opened yet
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for _ in range(10):
                producer.send("read", b"v", partition=0)
        commit(cluster, NASTY, {("read", 0): (4, ""), ("read", 1): (0, "")})

        def lags() -> list[int]:
            call(broker, "//metrics")
            found = got(broker, "/group/lags?group=" + quote(NASTY, safe=""))
            assert found["broker"] == 0
            rows = found["topics"]
            assert [(row["topic"], row["partial"]) for row in rows] in ([], [("read", False)])
            assert all(len(row["lags"]) == len(found["times"]) for row in rows)
            return [lag for row in rows for lag in row["lags"] if lag is not None]

        wait_until(lambda: lags() == [6], 60)
        assert got(broker, "/group/lags?group=nobody")["topics"] == []


@pytest.mark.parametrize(
    ("body", "entity"),
    [
        ({"user": NASTY}, (("user", NASTY),)),
        ({"client_id": NASTY, "defaults": ["user"]}, (("user", None), ("client-id", NASTY))),
        ({"user": "u", "client_id": "c"}, (("user", "u"), ("client-id", "c"))),
    ],
)
def test_quota_is_checked_set_listed_and_removed(
    broker: Broker, cluster: Cluster, body: dict, entity: tuple
) -> None:
    wanted = {**body, "quotas": {"producer_byte_rate": "1024", "request_percentage": "12.5"}}

    tried = got(broker, "/quotas", {**wanted, "dry_run": True})
    before = describe_quotas(cluster, [], strict=False)
    got(broker, "/quotas", wanted)
    named = [{"type": kind, "name": name} for kind, name in entity]
    wait_until(lambda: any(row["entity"] == named for row in got(broker, "/quotas")["quotas"]))
    (row,) = [row for row in got(broker, "/quotas")["quotas"] if row["entity"] == named]
    got(broker, "/quotas", {**body, "quotas": {"request_percentage": None}})
    wait_until(
        lambda: describe_quotas(cluster, [], strict=False) == {entity: {"producer_byte_rate": 1024}}
    )
    got(broker, "/quotas", {**body, "quotas": {"producer_byte_rate": None}})
    wait_until(lambda: got(broker, "/quotas")["total"] == 0)

    assert tried == {"quotas": row["quotas"], "dry_run": True}
    assert before == {}
    assert row["quotas"] == {"producer_byte_rate": 1024.0, "request_percentage": 12.5}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"quotas": {"producer_byte_rate": "1"}}, "whose? Name a user, a client id or an address"),
        ({"user": "u", "quotas": {"producer_byte_rate": "fast"}}, "'fast' is not a number"),
        ({"user": "u", "quotas": {"producer_byte_rate": "-1"}}, "must be greater than 0"),
        ({"user": "u", "quotas": {"speed": "1"}}, "speed"),
        ({"user": "u", "defaults": ["user"], "quotas": {}}, "either a name or among defaults"),
        ({"defaults": ["host"], "quotas": {}}, "'host' is not allowed"),
        ({"user": "u", "ip": "1.2.3.4", "quotas": {"producer_byte_rate": "1"}}, "ip"),
    ],
)
def test_quota_that_makes_no_sense_is_rejected(broker: Broker, body: dict, message: str) -> None:
    refused = call(broker, "/quotas", body)

    assert refused.status == 400
    assert message in refused.message


def test_partition_that_cannot_move_there_stays(broker: Broker) -> None:
    def move(partition: int, replicas: list[int], dry_run: bool = True) -> str:
        body = {"topic": "read", "partition": partition, "replicas": replicas, "dry_run": dry_run}
        answer = call(broker, "/reassignments", body)
        assert answer.status in (200, 400), answer.body
        return "" if answer.status == 200 else answer.message

    assert move(0, [0]) == move(0, [0], dry_run=False) == ""
    assert "no partition 2, but 0 to 1" in move(2, [0])
    assert "there is no broker 7, but 0" in move(0, [0, 7])
    assert "name each broker once" in move(0, [0, 0])
    assert "name each broker once" in move(0, [])
    found = got(broker, "/reassignments")
    assert found == {"total": 0, "reassignments": [], "next_cursor": None}
    nothing = call(broker, "/reassignments/cancel", {"topic": "read", "partition": 0})
    assert nothing.json["code"] == "NO_REASSIGNMENT_IN_PROGRESS"


def test_console_that_only_shows_changes_nothing() -> None:
    with Broker(console_read_only="true") as broker, Cluster(broker.bootstrap) as cluster:
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send("t", b"v")
        commit(cluster, "g", {("t", 0): (0, "")})
        refused = [
            call(broker, "/topics", {"name": "made"}),
            call(broker, "/topics/t", method="DELETE"),
            call(broker, "/topics/t/messages", {"value": "v"}),
            call(broker, "/group/offsets", {"group": "g", "to": "latest", "dry_run": False}),
            call(broker, "/group?group=g", method="DELETE"),
            call(broker, "/quotas", {"user": "u", "quotas": {"producer_byte_rate": "1"}}),
        ]

        tried = got(broker, "/group/offsets", {"group": "g", "to": "latest", "dry_run": True})
        checked = got(broker, "/topics", {"name": "made", "dry_run": True})
        found = got(broker, "/topics/t/messages?from=earliest")["records"]
        page = call(broker, "//console/").body

        assert {(answer.status, answer.json["code"]) for answer in refused} == {(403, "READ_ONLY")}
        assert "console.read.only=true" in refused[0].message
        assert [row["new_offset"] for row in tried["partitions"]] == [1]
        assert checked["name"] == "made"
        assert len(found) == 1
        assert got(broker, "/group?group=g")["lag"] == 1
        assert b"<html data-read-only " in page


def test_whatever_changes_something_is_no_get() -> None:
    """That is what a console that only shows rejects."""
    changing = (
        "create", "delete", "alter", "set", "reset", "begin", "cancel", "add", "terminate", "abort",
        "trim", "finish", "drain", "balance", "spread", "replicate", "replay",
    )  # fmt: skip

    for each in OPERATIONS:
        words = each.serve.__name__.strip("_").split("_")
        assert (each.method == "GET") == (words[0] not in (*changing, "produce", "write")), each
