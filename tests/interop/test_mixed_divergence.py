"""Followers with more records than the next leader: what was never committed is removed,
and all replicas are the same in the end.

Four brokers take long to start: ``tools/exam.py mixed``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest
from interop.mixed import PATIENCE_S, MixedCluster, read, texts, waited, write
from kafka import KafkaProducer
from support.brokers.kafka_servers import Kafka27

from kbroker.testing import Broker, processes

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

KAFKAS, KBROKERS = (1, 3), (2, 4)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    # A member that stands still keeps its session, also on a busy machine, and stays in sync.
    settings = {"auto.leader.rebalance.enable": "false", "zookeeper.session.timeout.ms": "20000"}
    with MixedCluster(tmp_path_factory.mktemp("cluster"), settings) as started:
        for number in KAFKAS:
            started.kafka(number)
        for number in KBROKERS:
            started.kbroker(number)
        yield started


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


def signal_all(member: Kafka27 | Broker, number: int) -> None:
    pids = [member.pid]
    if isinstance(member, Broker):
        pids += processes.child_pids(member.pid)
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.parametrize(
    ("first", "second", "follower"),
    [(1, 3, 2), (2, 4, 1), (1, 4, 2), (2, 3, 4)],
    ids=["kbroker-from-kafka", "kafka-from-kbroker", "kbroker-from-kbroker", "from-kafka-2"],
)
def test_follower_removes_what_the_next_leader_never_had(
    cluster: MixedCluster, first: int, second: int, follower: int
) -> None:
    """The second stands still while the first leads and the follower follows; then the first is
    killed, and the second is the leader."""
    topic = f"d{first}{second}{follower}"
    cluster.create(topic, {0: [first, second, follower]})
    replicas = {first, second, follower}
    waited(lambda: cluster.isr(topic) == replicas, "all are in sync")
    members = cluster.members
    write(members[first].bootstrap, topic, texts(50, "a"))
    cluster.assert_same_logs(topic, among=replicas)
    committed = cluster.log_bytes(second, topic)

    def follower_has_more_than(data: bytes) -> bool:
        found = cluster.log_bytes(follower, topic)
        return found == cluster.log_bytes(first, topic) and len(found) > len(data)

    with closing(KafkaProducer(bootstrap_servers=members[first].bootstrap, acks=1)) as producer:
        # It has its metadata before: it might ask the one that stands still, for 10 s a time.
        assert producer.partitions_for(topic) == {0}
        signal_all(members[second], signal.SIGSTOP)
        # This may be the response to the fetch that it had under way: it then has that, too.
        producer.send(topic, b"between", partition=0).get(PATIENCE_S)
        waited(lambda: follower_has_more_than(committed), "the follower has that")
        for text in texts(50, "lost"):
            producer.send(topic, text.encode(), partition=0)
        producer.flush(PATIENCE_S)
    waited(lambda: b"lost00049" in cluster.log_bytes(follower, topic), "the follower has more")
    assert cluster.isr(topic) == replicas, "the second has kept its session"
    killed = members[first]
    killed.kill() if isinstance(killed, Kafka27) else killed.kill_all()
    signal_all(members[second], signal.SIGCONT)

    waited(lambda: cluster.leader(topic) == second, "the second leads")
    cluster.wait_ready()
    write(members[second].bootstrap, topic, texts(50, "b"))
    assert cluster.log_bytes(second, topic).startswith(committed)
    cluster.assert_same_logs(topic, among={second, follower})
    # Kafka's broker ends at once if its former session is still there.
    waited(lambda: not cluster.is_registered(first), "the session of the first has ended")
    killed.start()
    waited(lambda: cluster.isr(topic) == replicas, "all are in sync again")
    cluster.assert_same_logs(topic, among=replicas)
    kept = ["between"] if b"between" in cluster.log_bytes(second, topic) else []
    expected = [*texts(50, "a"), *texts(50, "b"), *kept]
    assert read(members[follower].bootstrap, topic, len(expected)) == expected
