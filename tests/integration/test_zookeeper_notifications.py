"""Notifications of brokers to the controller through nodes of a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.brokers.zookeeper import path_of_its_own
from support.faults.shim import FailingCall, broker_command, shimmed

from kbroker.testing import Broker, wait_until
from kbroker.testing.metadata import partition_states

pytestmark = pytest.mark.integration

PARTITIONS = 8
TOPIC = "t"


@pytest.fixture
def store() -> Iterator[KazooClient]:
    client = KazooClient(path_of_its_own())
    client.start()
    yield client
    client.stop()
    client.close()


def broker(store: KazooClient, directory: Path, number: int, **given: Any) -> Broker:
    host, port = store.hosts[0]
    settings = {
        "broker_id": number,
        "zookeeper_connect": f"{host}:{port}{store.chroot}",
        "zookeeper_session_timeout_ms": 10_000,
        "controlled_shutdown_enable": False,
        **given,
    }
    return Broker(directory=directory / f"broker-{number}", **settings)


def create(controller: Broker) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=controller.bootstrap)) as admin:
        # Brokers fill their directories in turns: of two partitions in a row with one leader, one
        # is in each directory.
        replicas = {n: [1, 2] if n % 4 < 2 else [2, 1] for n in range(PARTITIONS)}
        admin.create_topics([NewTopic(TOPIC, -1, -1, replicas)])


def state(store: KazooClient, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        store.get(f"/brokers/topics/{TOPIC}/partitions/{number}/state")[0]
    )
    return found


def in_sync(broker: Broker, number: int) -> set[int]:
    """The ISR in a broker's metadata."""
    return set(partition_states(broker.bootstrap, TOPIC)[number].in_sync)


@pytest.mark.slow
def test_failed_log_directory_has_others_lead_the_partitions_in_it(
    store: KazooClient, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    control = FailingCall(tmp_path / "control")
    with ExitStack() as stack:
        first = stack.enter_context(broker(store, tmp_path, 1))
        stack.enter_context(
            broker(
                store,
                tmp_path,
                2,
                log_dirs=f"{good},{bad}",
                command=broker_command(shimmed(bad, control=control)),
            )
        )
        create(first)
        held = [state(store, number) for number in range(PARTITIONS)]
        led = {number for number, one in enumerate(held) if one["leader"] == 2}
        in_bad = {n for n in range(PARTITIONS) if (bad / f"{TOPIC}-{n}").is_dir()}
        lost, followed = in_bad & led, in_bad - led
        assert lost and led - lost and followed

        control.arm(1)
        with closing(KafkaProducer(bootstrap_servers=first.bootstrap, acks=1)) as producer:
            for number in lost:  # the producer finds the next leader
                producer.send(TOPIC, b"x", partition=number).get(timeout=30)

        wait_until(
            lambda: all(state(store, number)["leader"] == 1 for number in lost), 30, "another leads"
        )
        wait_until(
            lambda: all(state(store, number)["isr"] == [1] for number in lost | followed),
            30,
            "nothing in the directory is in sync",
        )
        assert all(state(store, number)["leader_epoch"] == 0 for number in led - lost)
        wait_until(
            lambda: not store.get_children("/log_dir_event_notification"), 30, "it is deleted"
        )
        assert "broker 2 reports a failed log directory" in first.log_text
        control.disarm()


def test_in_sync_replicas_that_a_leader_has_written_reach_every_broker(
    store: KazooClient, tmp_path: Path
) -> None:
    """As Kafka before 2.7-IV2, or a broker configured like that."""
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                broker(store, tmp_path, number, inter_broker_protocol_version="2.6")
            )
            for number in (1, 2)
        ]
        create(brokers[0])
        wait_until(lambda: in_sync(brokers[1], 0) == {1, 2}, 30, "both are in sync")

        one = state(store, 0)
        document = json.dumps({**one, "isr": [one["leader"]]}).encode()
        store.set(f"/brokers/topics/{TOPIC}/partitions/0/state", document)
        report = {"version": 1, "partitions": [{"topic": TOPIC, "partition": 0}]}
        path = "/isr_change_notification/isr_change_"
        store.create(path, json.dumps(report).encode(), sequence=True)

        for each in brokers:
            wait_until(lambda each=each: in_sync(each, 0) == {one["leader"]}, 30, "told")
        wait_until(lambda: not store.get_children("/isr_change_notification"), 30, "it is deleted")
