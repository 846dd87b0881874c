"""Controlled shutdowns of brokers in a cluster, and the remains of killed brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.brokers.zookeeper import path_of_its_own, shared
from support.network.cable import Cable
from support.running.grids import some_of

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SESSION_MS = 10_000
PARTITIONS = 6
TOPICS = (f"t-{number}" for number in count())


@pytest.fixture(scope="module")
def place() -> str:
    return path_of_its_own()


@pytest.fixture(scope="module")
def store(place: str) -> Iterator[KazooClient]:
    client = KazooClient(place)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def brokers(place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Broker]]:
    """Two brokers; the first is the controller."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(
                Broker(
                    broker_id=number,
                    zookeeper_connect=place,
                    zookeeper_session_timeout_ms=SESSION_MS,
                    log_dirs=str(tmp_path_factory.mktemp(f"broker-{number}")),
                )
            )
            for number in (1, 2)
        }


def admin(store: KazooClient, brokers: dict[int, Broker]) -> KafkaAdminClient:
    """An admin client of the controller."""
    controller = json.loads(store.get("/controller")[0])["brokerid"]
    return KafkaAdminClient(bootstrap_servers=brokers[controller].bootstrap)


@contextmanager
def created(store: KazooClient, brokers: dict[int, Broker], replicas: int) -> Iterator[str]:
    """A topic whose partitions have leaders; it does not remain for the next shutdown."""
    name = next(TOPICS)
    with closing(admin(store, brokers)) as client:
        client.create_topics([NewTopic(name, PARTITIONS, replicas)])
    yield name
    with closing(admin(store, brokers)) as client:
        client.delete_topics([name])
    wait_until(lambda: store.exists(f"/brokers/topics/{name}") is None, 30, "it is deleted")


def states(store: KazooClient, topic: str) -> list[dict[str, Any]]:
    return [
        json.loads(store.get(f"/brokers/topics/{topic}/partitions/{number}/state")[0])
        for number in range(PARTITIONS)
    ]


# Brokers that are restarted in order (test_rolling_restart.py) are the controller in turn.
@pytest.mark.parametrize("number", some_of([1, 2], [2]))
def test_broker_that_stops_in_order_hands_over_what_it_leads(
    brokers: dict[int, Broker], store: KazooClient, number: int
) -> None:
    """Before its session ends: then nothing is left for the controller to do."""
    stopped, other = brokers[number], 3 - number
    with created(store, brokers, 2) as topic:
        led = [state for state in states(store, topic) if state["leader"] == number]
        assert 0 < len(led) < PARTITIONS

        assert stopped.stop() == 0

        found = [(s["leader"], s["isr"], s["leader_epoch"]) for s in states(store, topic)]
        # One new epoch each, by the controlled shutdown: another would come from the broker's
        # failure.
        assert found == [(other, [other], 1)] * PARTITIONS
        assert "controlled shutdown succeeded" in stopped.log_text
        stopped.start()
        wait_until(lambda: store.exists(f"/brokers/ids/{number}"), 30, "it is registered again")


def test_broker_without_others_replicas_stops_at_once(
    brokers: dict[int, Broker], store: KazooClient
) -> None:
    with created(store, brokers, 1) as topic:
        before = states(store, topic)

        began = time.monotonic()
        assert brokers[2].stop() == 0
        took_s = time.monotonic() - began

        assert "attempt" not in brokers[2].log_text, "the controller was not asked again"
        assert took_s < 10
        led_by_1 = [state for state in before if state["leader"] == 1]
        assert 0 < len(led_by_1) < PARTITIONS
        assert [s for s in states(store, topic) if s["leader"] == 1] == led_by_1
        brokers[2].start()
        wait_until(
            lambda: sum(s["leader"] == 2 for s in states(store, topic)) == PARTITIONS // 2,
            30,
            "it leads again",
        )


def test_killed_broker_ends_its_session_itself(
    brokers: dict[int, Broker], store: KazooClient
) -> None:
    """The kernel kills its other processes; the one with the session survives long enough."""
    with created(store, brokers, 1) as topic:
        before = states(store, topic)
        killed = brokers[2]

        killed.kill_all()  # until its last process has exited

        assert store.exists("/brokers/ids/2") is None
        assert "the supervisor was killed; ending this broker's session" in killed.log_text
        killed.start()
        wait_until(
            lambda: [s["leader"] for s in states(store, topic)] == [s["leader"] for s in before],
            30,
            "it leads again",
        )


def test_broker_stops_without_zookeeper(tmp_path: Path) -> None:
    """Nobody can say who the controller is, and no controller could decide anything."""
    with Cable(shared().port) as cable:
        path = path_of_its_own().partition("/")[2]
        settings = {
            "controlled.shutdown.retry.backoff.ms": 100,
            "zookeeper.connect": f"{cable.address}/{path}",
        }
        with Broker(settings, directory=tmp_path / "broker") as broker:
            cable.cut()
            wait_until(lambda: " lost: " in broker.log_text, 30, "it is noticed")
            began = time.monotonic()

            assert broker.stop() == 0

            assert time.monotonic() - began < 20
            assert "ZooKeeper, which knows the controller, cannot be reached" in broker.log_text
