"""The console of one broker of a cluster shows what all of its brokers have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.surfaces.console_calls import got

from kbroker.client import KafkaProducer
from kbroker.client.admin.configs import BROKER, TOPIC, alter_configs
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SPREAD = [[0], [1], [2], [0], [1], [2]]
GROUPS = [f"group-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, num_io_threads=1, group_initial_rebalance_delay_ms=0) as started:
        with Client(started.bootstrap) as client:
            create_topics(client, [NewTopic("spread", replicas=SPREAD)])
            started.wait_in_sync("spread")
            with KafkaProducer(bootstrap_servers=started.bootstrap) as producer:
                for number in range(len(SPREAD)):
                    producer.send("spread", b"v" * 100_000, partition=number)
            for group in GROUPS:
                commit(client, group, {("spread", number): (0, "") for number in range(6)})
        yield started


@pytest.mark.parametrize("number", range(3))
def test_every_broker_shows_all_brokers_and_partitions(cluster: Cluster, number: int) -> None:
    broker = cluster.brokers[number]

    overview = got(broker, "/overview")
    topic = got(broker, "/topics/spread")
    dirs = got(broker, "/log-dirs")["log_dirs"]
    groups = got(broker, "/groups")["groups"]

    assert overview["broker"] == number
    assert [row["node"] for row in overview["brokers"]] == [0, 1, 2]
    assert [row["leader"] for row in topic["rows"]] == [replicas[0] for replicas in SPREAD]
    assert [row["end"] for row in topic["rows"]] == [1] * 6
    assert all(row["bytes"] >= 100_000 for row in topic["rows"])
    assert topic["records"] == topic["growth"]["records_last_hour"] == 6
    assert {row["broker"] for row in dirs} == {0, 1, 2}
    assert {row["group"]: row["lag"] for row in groups} == dict.fromkeys(GROUPS, 6)


def test_messages_of_all_brokers_are_read(cluster: Cluster) -> None:
    found = got(cluster.brokers[1], "/topics/spread/messages?from=earliest")["records"]

    assert sorted(record["partition"] for record in found) == list(range(6))


def test_lag_over_time_is_known_whichever_broker_coordinates_a_group(cluster: Cluster) -> None:
    """Each has replicas of two of six partitions, and coordinates some of the groups."""
    coordinators = {
        got(cluster.brokers[0], f"/group?group={name}")["coordinator"] for name in GROUPS
    }
    assert len(coordinators) > 1

    for number, broker in enumerate(cluster.brokers):
        for group in GROUPS:

            def last_lag(broker: Broker = broker, group: str = group) -> tuple[bool, int] | None:
                found = got(broker, f"/group/lags?group={group}")
                rows = [(row["partial"], row["lags"][-1]) for row in found["topics"]]
                return rows[0] if rows else None

            wait_until(lambda: last_lag() == (False, 6), 90, f"{group} on {number}")


def test_move_is_shown_with_what_has_arrived_and_cancelled(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    with Client(cluster.bootstrap) as client:
        create_topics(client, [NewTopic("heavy", replicas=[[0]])])
        cluster.wait_in_sync("heavy")
        with KafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            for _ in range(40):
                producer.send("heavy", b"v" * 100_000)
        # So slow that it is under way as long as the test takes.
        throttled = {
            "leader.replication.throttled.replicas": "*",
            "follower.replication.throttled.replicas": "*",
        }
        alter_configs(client, TOPIC, "heavy", throttled)
        for node in range(3):
            rates = {"leader.replication.throttled.rate": "1000",
                     "follower.replication.throttled.rate": "1000"}  # fmt: skip
            alter_configs(client, BROKER, str(node), rates)
    body = {"topic": "heavy", "partition": 0, "replicas": [2, 1]}

    tried = got(broker, "/reassignments", body)
    assert got(broker, "/reassignments")["total"] == 0
    got(broker, "/reassignments", {**body, "dry_run": False})
    wait_until(lambda: got(broker, "/reassignments")["total"] == 1)
    (row,) = got(cluster.brokers[2], "/reassignments")["reassignments"]
    got(broker, "/reassignments/cancel", {"topic": "heavy", "partition": 0})
    wait_until(lambda: got(broker, "/reassignments")["total"] == 0)

    assert (tried["from"], tried["to"], tried["dry_run"]) == ([0], [2, 1], True)
    assert (sorted(row["adding"]), row["removing"]) == ([1, 2], [0])
    assert row["bytes"]["0"] >= 4_000_000
    assert cluster.partitions("heavy")[0].replicas == (0,)


def test_pages_are_there_while_a_broker_is_gone(cluster: Cluster) -> None:
    """The last test: it takes broker 2 away."""
    cluster.kill(2)
    broker = cluster.brokers[0]
    wait_until(lambda: got(broker, "/overview")["offline"]["count"] >= 2, 60)

    overview = got(broker, "/overview")
    topic = got(broker, "/topics/spread")
    messages = got(broker, "/topics/spread/messages?partitions=0,1,3,4&from=earliest")["records"]
    dirs = got(broker, "/log-dirs")["log_dirs"]
    plan = got(broker, "/cluster/balance", {})

    (gone,) = (row for row in dirs if row["broker"] == 2)
    assert gone["path"] is None
    assert cluster.brokers[2].bootstrap in gone["error"] and "is missing" in gone["error"]
    assert plan["running"] == [0, 1] and 2 in [row["broker"] for row in plan["brokers"]]
    assert [row["node"] for row in overview["brokers"]] == [0, 1]
    assert {row["topic"] for row in overview["offline"]["partitions"]} >= {"spread"}
    ends = {row["partition"]: row["end"] for row in topic["rows"]}
    assert ends == {0: 1, 1: 1, 2: None, 3: 1, 4: 1, 5: None}
    assert topic["records"] is None and topic["offline"] == 2
    assert len(messages) == 4
