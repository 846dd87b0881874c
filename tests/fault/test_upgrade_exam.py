"""Three brokers go from an earlier build to this one, one after the other and under load, and back.

What docs/upgrading.md promises: nothing acknowledged is lost, nothing of an idempotent producer
comes twice, transactions are whole, committed offsets stay, and all replicas end with the same
bytes, whether a broker is stopped or killed. KBROKER_FAULT_SCALE: so many times forth and back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fault.cluster_exam import PARTITIONS, SETTINGS, goes_on
from fault.cluster_load import (
    ClusterLoad,
    assert_replicas_agree,
    create_replicated,
    read_leaders,
)
from support.faults.history import History
from support.faults.load import TOPIC
from support.faults.transactions import (
    PATIENCE_S,
    Transactions,
    check,
    read_committed,
    running,
    write_last,
)

from kbroker.testing import Broker, Cluster, wait_until
from perf.checkouts import RevisionMissing, built, python_of

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(0)]

BEFORE = "0153d3d9"
REPLICATED = {
    **SETTINGS,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
GROUP = "upgraded"
Command = list[str] | None


@pytest.fixture(scope="module")
def before() -> Command:
    """What starts a broker of the earlier build."""
    try:
        checkout = built(BEFORE)
    except RevisionMissing as error:
        pytest.skip(str(error))
    return ["env", f"PYTHONPATH={checkout}", python_of(checkout), "-m", "kbroker.cli.start"]


def done(call: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """What the call returns once the group has a coordinator that serves it."""

    def attempt() -> list[TopicPartition]:
        try:
            places = call()
        except KafkaException as error:
            raise AssertionError(str(error)) from error
        assert all(place.error is None for place in places), f"{places}"
        return places

    return wait_until(attempt, PATIENCE_S, "the group's coordinator serves")


class Offsets:
    """Commits of a group: each of a partition is one more than the last that was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0}
        )
        self._next = 1

    def commit(self) -> None:
        """What was committed before is there, and the next is taken."""
        places = [TopicPartition(TOPIC, number, self._next) for number in range(PARTITIONS)]
        if self._next > 1:
            stored = done(lambda: self._consumer.committed(places, timeout=PATIENCE_S))
            assert {place.offset for place in stored} == {self._next - 1}
        done(lambda: self._consumer.commit(offsets=places, asynchronous=False))
        self._next += 1

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def transacting(cluster: Cluster, seed: int) -> Iterator[None]:
    """Two transactional producers write all the time; each transaction is whole in the end."""
    ending = threading.Event()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values()
    created.result(PATIENCE_S)
    producers = [Transactions(cluster.bootstrap, f"p{n}", seed, ending) for n in range(2)]
    with running(producers, ending):
        yield
    write_last(cluster.bootstrap, seed, ending)
    check(producers, read_committed(cluster.bootstrap))
    assert all(producer.committed for producer in producers)


def change(
    cluster: Cluster, broker: Broker, end: Callable[[Broker], object], command: Command
) -> None:
    """It ends and goes on with the command; then all replicas are in sync."""
    end(broker)
    broker.command = command
    broker.start()
    cluster.wait_ready()
    cluster.wait_in_sync(TOPIC)
    cluster.wait_in_sync("t")


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill_at_once], ids=["stopped", "killed"])
def test_nothing_is_lost_from_build_to_build_and_back(
    end: Callable[[Broker], object],
    before: Command,
    tmp_path: Path,
    seed: int,
    scale: int,
) -> None:
    history = History()
    cluster = Cluster(3, REPLICATED, directory=tmp_path)
    for broker in cluster.brokers:
        broker.command = before
    with cluster:
        create_replicated(cluster, PARTITIONS)
        offsets = Offsets(cluster.bootstrap)
        with (
            ClusterLoad(cluster, history, PARTITIONS, seed).begin(),
            transacting(cluster, seed),
        ):
            wait_until(lambda: all(one.acked for one in history.writers.values()), 30, "all write")
            for command in (None, before) * scale:
                for broker in cluster.brokers:
                    change(cluster, broker, end, command)
                    goes_on(history)
                    offsets.commit()
        offsets.close()
        problems = history.check(read_leaders(cluster))
        assert not problems, f"{len(problems)} problems: " + "\n".join(problems[:10])
        assert_replicas_agree(cluster, PARTITIONS)
