"""The ZooKeeper consumer while ZooKeeper, or a consumer of its group, is stopped for a while."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers.zookeeper import ZooKeeperServer
from support.clients.zookeeper_group import WAIT_S, Member, arguments, opened, our_command

from kbroker.client import KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.client.errors import UnreachableError
from kbroker.legacy.zookeeper_consumer import Consumer
from kbroker.testing import Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as started:
        yield started


@pytest.fixture
def cluster(server: ZooKeeperServer) -> Iterator[Cluster]:
    with Cluster(1, zookeeper_connect=f"{server.connect}/kafka", num_io_threads=1) as started:
        yield started


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as found:
        create_topics(found, [NewTopic("t", 4, 1)])
        yield found


def write(client: Client, each: int) -> None:
    with KafkaProducer(bootstrap_servers=client.bootstrap) as producer:
        for number in range(4 * each):
            producer.send("t", b"%d" % number, partition=number % 4)


def test_messages_are_read_while_zookeeper_is_away(
    server: ZooKeeperServer, cluster: Cluster, client: Client
) -> None:
    """Commits fail meanwhile, in a bounded time, and are made once it is back."""
    settings = {
        "group.id": "g",
        "zookeeper.connect": cluster.zookeeper_connect,
        "auto.offset.reset": "smallest",
        "zookeeper.session.timeout.ms": 3000,
        "zookeeper.connection.timeout.ms": 500,
        "rebalance.backoff.ms": 200,
        "rebalance.max.retries": 100,
        "consumer.timeout.ms": WAIT_S * 1000,
    }
    with Consumer.create(settings) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        write(client, 5)
        assert {next(stream).offset for _ in range(20)} == set(range(5))
        server.stop()
        write(client, 5)
        assert {next(stream).offset for _ in range(20)} == set(range(5, 10))
        with pytest.raises(UnreachableError, match="ZooKeeper"):
            connector.commit_offsets()

        server.start()

        with opened(cluster.zookeeper_connect) as store:
            wait_until(lambda: len(store.owners("g", "t")) == 4, WAIT_S, "all are owned")
            write(client, 5)
            # What was not committed in the old session may be read again.
            last: dict[int, int] = {}
            while list(last.values()) != [14] * 4:
                row = next(stream)
                last[row.partition] = row.offset

            def is_committed() -> bool:
                with suppress(UnreachableError):  # until it has a new session
                    connector.commit_offsets()
                return store.offsets("g", "t") == dict.fromkeys(range(4), 15)

            wait_until(is_committed, WAIT_S, lambda: store.offsets("g", "t"))


def test_a_consumer_that_was_stopped_gives_up_what_others_have_taken(
    server: ZooKeeperServer, cluster: Cluster, client: Client
) -> None:
    """CONS-25. Its session ends while it is stopped; when it continues, it joins again."""
    with opened(cluster.zookeeper_connect) as store:
        members = {
            name: Member(
                [*our_command(),
                 *arguments(cluster.zookeeper_connect, "g", {"t": 1}, consumer_id=name)]
            )
            for name in ("a", "b")
        }  # fmt: skip

        def owners() -> set[str]:
            found = store.owners("g", "t")
            return (
                {owner.removeprefix("g_") for owner in found.values()} if len(found) == 4 else set()
            )

        wait_until(lambda: owners() == {"a-0", "b-0"}, WAIT_S, owners)
        os.kill(members["a"].pid, signal.SIGSTOP)
        wait_until(lambda: owners() == {"b-0"}, WAIT_S, owners)
        write(client, 10)
        wait_until(lambda: len(members["b"].rows) == 40, WAIT_S, lambda: members["b"].rows)
        members["b"].commit()

        os.kill(members["a"].pid, signal.SIGCONT)

        wait_until(lambda: owners() == {"a-0", "b-0"}, WAIT_S, owners)
        write(client, 10)

        def new() -> Counter[tuple[int, int]]:
            rows = [row for one in members.values() for row in one.rows if row.offset >= 10]
            return Counter((row.partition, row.offset) for row in rows)

        wait_until(lambda: len(new()) == 40, WAIT_S, "all are read")
        # Before it notices, it may read what others have read; but it does not commit that.
        assert max(new().values()) == 1
        for member in members.values():
            member.end()
        assert store.offsets("g", "t") == dict.fromkeys(range(4), 20)
