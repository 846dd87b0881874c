"""Topics are deleted while a broker with their replicas is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.running.grids import some_of

from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster

pytestmark = pytest.mark.integration

TOOL = Path(__file__).resolve().parents[2] / "bin" / "kafka-topics.sh"
PATIENCE_S = 60
_numbers = count()


class Topics(NamedTuple):
    """Of the first, each partition has a replica on the broker that goes; of the other, none."""

    left: str
    other: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def victim(cluster: Cluster) -> int:
    """The controller and another broker stay."""
    return next(number for number in range(3) if number != cluster.controller)


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture
def topics(cluster: Cluster, victim: int) -> Topics:
    number = next(_numbers)
    made = Topics(f"left{number}", f"other{number}")
    others = [number for number in range(3) if number != victim]
    new = [
        NewTopic(made.left, 2, replica_assignment=[[others[0], victim], [victim, others[1]]]),
        NewTopic(made.other, 1, replica_assignment=[others]),
    ]
    admin = admin_of(cluster)
    for outcome in admin.create_topics(new).values():
        outcome.result(PATIENCE_S)
    cluster.wait_in_sync(made.left)
    return made


def tool(cluster: Cluster, *arguments: str) -> str:
    """What our kafka-topics prints; it must exit with 0."""
    bootstrap = ",".join(one.bootstrap for one in cluster.brokers if one.running)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [TOOL, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until_deleted(cluster: Cluster, topic: str) -> None:
    """Files go ``file.delete.delay.ms`` later."""

    def directories(broker: Broker) -> list[Path]:
        return list(broker.data_dir.glob(f"{topic}-[01]"))

    wait_until(lambda: not any(map(directories, cluster.brokers)), PATIENCE_S, "logs are deleted")


@pytest.mark.parametrize("moment", some_of(["at once", "when its session has ended"], ["at once"]))
def test_a_deletion_is_answered_when_the_topic_has_left_the_metadata(
    cluster: Cluster, victim: int, topics: Topics, moment: str
) -> None:
    """A tool that waited for the dead replicas would time out, ask again and say that there is no
    such topic.
    """
    cluster.kill(victim)
    if moment != "at once":
        cluster.wait_ready()

    assert tool(cluster, "--delete", "--topic", topics.left) == ""
    admin = admin_of(cluster)
    admin.delete_topics([topics.other])[topics.other].result(PATIENCE_S)

    assert not set(topics) & set(tool(cluster, "--list").split())
    cluster.start()
    wait_until_deleted(cluster, topics.left)


def test_a_stalled_broker_holds_up_no_deletion(
    cluster: Cluster, victim: int, topics: Topics
) -> None:
    pids = [*cluster.brokers[victim].pids.values(), cluster.brokers[victim].pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert tool(cluster, "--delete", "--topic", topics.left) == ""
        assert topics.left not in tool(cluster, "--list").split()
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    wait_until_deleted(cluster, topics.left)
    cluster.wait_ready()
