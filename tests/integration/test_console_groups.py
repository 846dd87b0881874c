"""The console's API over HTTP: groups, transactions, ACLs and users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from support.surfaces.console_calls import call, got

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.batches.offsets import commit, committed
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

NASTY = "g/<img src=x onerror=alert(1)>&?#"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as started:
        got(started, "/topics", {"name": "read", "partitions": 2})
        stamp = int(time.time() * 1000) - HOUR_MS
        with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
            for number in range(10):
                producer.send("read", b"v", partition=0, timestamp_ms=stamp + number)
            producer.send("read", b"v", partition=1, timestamp_ms=stamp)
        yield started


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as made:
        yield made


def offsets_of(cluster: Cluster, group: str) -> dict[int, int]:
    return {key[1]: row.offset for key, row in committed(cluster, group).items()}


def test_group_without_members_has_lag_in_records_and_seconds(
    broker: Broker, cluster: Cluster
) -> None:
    commit(cluster, NASTY, {("read", 0): (4, ""), ("read", 1): (1, "")})

    found = got(broker, "/group?group=" + quote(NASTY, safe=""))
    listed = {row["group"]: row for row in got(broker, "/groups")["groups"]}

    first, second = found["partitions"]
    assert (first["offset"], first["end"], first["lag"]) == (4, 10, 6)
    assert HOUR_MS / 1000 - 60 < first["seconds"] < HOUR_MS / 1000 + 600
    assert (second["lag"], second["seconds"]) == (0, 0.0)
    assert found["lag"] == listed[NASTY]["lag"] == 6
    assert found["members"] == []


def test_groups_are_sorted_by_their_lag(broker: Broker, cluster: Cluster) -> None:
    for name, offset in (("sort-a", 9), ("sort-b", 1), ("sort-c", 5)):
        commit(cluster, name, {("read", 0): (offset, "")})

    found = got(broker, "/groups?search=sort-&sort=lag&limit=2")
    rest = got(broker, f"/groups?search=sort-&sort=lag&limit=2&cursor={found['next_cursor']}")

    rows = [(row["group"], row["lag"]) for row in found["groups"] + rest["groups"]]
    assert rows == [("sort-b", 9), ("sort-c", 5), ("sort-a", 1)]
    by_id = [row["group"] for row in got(broker, "/groups?search=sort-")["groups"]]
    assert by_id == ["sort-a", "sort-b", "sort-c"]


def test_group_that_stands_still_is_a_finding(broker: Broker, cluster: Cluster) -> None:
    """Nobody waits for the second look: whoever asks again gets it."""
    commit(cluster, "still", {("read", 0): (1, "")})

    def finding() -> dict[str, Any] | None:
        rows = {row["subject"]: row for row in got(broker, "/findings")["findings"]}
        return rows.get("group still")

    got(broker, "/findings")
    found = wait_until(finding)
    commit(cluster, "still", {("read", 0): (10, "")})

    assert found["kind"] == "group-stands-still" and "no members" in found["what"]
    assert found["command"].startswith("kbroker group describe still ")
    wait_until(lambda: finding() is None)


def test_group_has_members_with_their_partitions(broker: Broker) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id="members",
        client_id=NASTY,
        auto_offset_reset="earliest",
    )
    with consumer:
        consumer.subscribe(["read"])
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment())
        found = got(broker, "/group?group=members")
        refused = call(
            broker, "/group/offsets", {"group": "members", "to": "earliest", "dry_run": False}
        )
        deleted = call(broker, "/group?group=members", method="DELETE")

    (member,) = found["members"]
    assert member["client"] == NASTY
    assert member["partitions"] == [
        {"topic": "read", "partition": 0},
        {"topic": "read", "partition": 1},
    ]
    assert {row["member"] for row in found["partitions"]} == {member["member"]}
    assert refused.status in (400, 409) and deleted.status == 409


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"to": "earliest"}, {0: 0, 1: 0}),
        ({"to": "latest"}, {0: 10, 1: 1}),
        ({"to": "offset", "value": 3}, {0: 3, 1: 1}),
        ({"to": "shift", "value": -2}, {0: 3, 1: 0}),
        ({"to": "earliest", "topic": "read", "partitions": [1]}, {0: 5, 1: 0}),
        ({"to": "time", "value": 0}, {0: 0, 1: 0}),
    ],
)
def test_reset_does_what_its_dry_run_said(
    broker: Broker, cluster: Cluster, target: dict, expected: dict[int, int]
) -> None:
    commit(cluster, "reset", {("read", 0): (5, ""), ("read", 1): (1, "")})
    body = {"group": "reset", **target}

    tried = got(broker, "/group/offsets", body)
    untouched = offsets_of(cluster, "reset")
    done = got(broker, "/group/offsets", {**body, "dry_run": False})

    assert untouched == {0: 5, 1: 1}
    assert tried["partitions"] == done["partitions"]
    assert offsets_of(cluster, "reset") == expected


def test_group_may_begin_in_a_topic_that_it_has_not_read(broker: Broker, cluster: Cluster) -> None:
    body = {"group": "new", "topic": "read", "to": "latest", "dry_run": False}

    got(broker, "/group/offsets", body)
    begun = offsets_of(cluster, "new")
    got(broker, "/group?group=new", method="DELETE")

    assert begun == {0: 10, 1: 1}
    assert call(broker, "/group?group=new").status == 404


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"to": "latest"}, 400, "group is missing"),
        ({"group": "reset"}, 400, "earliest, latest, offset, time, shift"),
        ({"group": "reset", "to": "offset"}, 400, "need value"),
        ({"group": "reset", "to": "latest", "value": 1}, 400, "have none"),
        ({"group": "reset", "to": "latest", "partitions": [0]}, 400, "partitions needs topic"),
        ({"group": "reset", "to": "latest", "topic": "read", "partitions": [7]}, 400, "0 to 1"),
        ({"group": "reset", "to": "latest", "topic": "none"}, 404, "topic none"),
        ({"group": "nobody", "to": "latest"}, 400, "name a topic"),
    ],
)
def test_wrong_resets_are_explained(
    broker: Broker, cluster: Cluster, body: dict, status: int, text: str
) -> None:
    commit(cluster, "reset", {("read", 0): (5, "")})

    answer = call(broker, "/group/offsets", {**body, "dry_run": False})

    assert (answer.status, text in answer.message) == (status, True), answer.message
    assert offsets_of(cluster, "reset")[0] == 5


def test_open_transaction_is_listed_described_and_aborted(broker: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=NASTY)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("read", b"undecided", partition=0).result()
    place = quote(NASTY, safe="")

    listed = got(broker, "/transactions")
    found = got(broker, f"/transaction?id={place}")
    got(broker, "/transaction/terminate", {"id": NASTY})

    assert listed["open"] == 1
    assert listed["transactions"][0]["transactional_id"] == NASTY
    assert found["partitions"] == [{"topic": "read", "partition": 0}]
    assert 0 <= found["open_seconds"] < 600
    wait_until(lambda: got(broker, "/transactions")["open"] == 0)
    producer.close(0)


def test_unknown_transaction_is_404(broker: Broker) -> None:
    assert call(broker, "/transaction?id=none").status == 404
    ended = call(broker, "/transaction/terminate", {"id": "none"})

    assert (ended.status, ended.json["code"]) == (404, "TRANSACTIONAL_ID_NOT_FOUND")
    assert got(broker, "/transactions?search=none")["total"] == 0


def test_acls_are_created_listed_and_deleted(broker: Broker) -> None:
    acl = {
        "resource_type": "TOPIC",
        "name": "read",
        "principal": f"User:{NASTY}",
        "operation": "READ",
    }

    got(broker, "/acls", acl)
    (row,) = got(broker, "/acls?search=img")["acls"]
    got(broker, "/acls/delete", row)

    assert row == {**acl, "pattern": "LITERAL", "host": "*", "permission": "ALLOW"}
    assert got(broker, "/acls?search=img")["total"] == 0
    assert call(broker, "/acls/delete", row).status == 404


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"principal": "alice"}, "User:alice"),
        ({"operation": "FLY"}, "READ, WRITE"),
        ({"resource_type": "ANY"}, "TOPIC, GROUP"),
        ({"permission": "ANY"}, "DENY, ALLOW"),
    ],
)
def test_wrong_acls_are_explained(broker: Broker, changed: dict, text: str) -> None:
    acl = {"resource_type": "TOPIC", "name": "a", "principal": "User:a", "operation": "READ"}

    answer = call(broker, "/acls", {**acl, **changed})

    assert answer.status == 400 and text in answer.message


def test_users_are_added_and_deleted(broker: Broker) -> None:
    got(broker, "/users", {"user": "carol", "password": "word"})
    (row,) = got(broker, "/users")["users"]
    got(broker, "/users?user=carol", method="DELETE")

    assert row["user"] == "carol"
    assert [each["mechanism"] for each in row["credentials"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert got(broker, "/users")["users"] == []
    wrong = call(broker, "/users", {"user": "a", "password": "b", "mechanisms": ["PLAIN"]})
    assert wrong.status == 400 and "SCRAM-SHA-256, SCRAM-SHA-512" in wrong.message
