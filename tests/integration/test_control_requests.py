"""A remote controller makes a real broker create, lead, stop and delete a partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.control_client import CONTROLLER_ID, EPOCH, Controller, controlled_broker
from support.clients.wire_client import WireClient, batch_of
from support.network.peer_loop import PeerLoop

from kbroker.cluster.control_requests import (
    LEADER_DURING_DELETE,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    UpdateMetadata,
)
from kbroker.config.loader import BrokerConfig
from kbroker.controller.state.state import RegisteredBroker as Registration
from kbroker.errors import ErrorCode
from kbroker.peers.links import Links
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.batch import iterate_batches
from kbroker.testing import Broker, wait_until
from kbroker.types import BrokerId

pytestmark = pytest.mark.integration

TOPIC = "told"
OLD = {ApiKey.LEADER_AND_ISR: 1, ApiKey.STOP_REPLICA: 0, ApiKey.UPDATE_METADATA: 4}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with controlled_broker(num_io_threads=2) as running:
        yield running


def produce(client: WireClient, topic: str, value: bytes) -> ErrorCode:
    cls = ProduceRequest
    partition = cls.PartitionProduceData(index=0, records=batch_of([value]))
    topics = [cls.TopicProduceData(name=topic, partition_data=[partition])]
    response = client.call(cls(acks=1, timeout_ms=10_000, topic_data=topics), 8)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def fetch(client: WireClient, topic: str, leader_epoch: int = -1) -> tuple[ErrorCode, list[bytes]]:
    cls = FetchRequest
    partition = cls.FetchPartition(
        partition=0,
        current_leader_epoch=leader_epoch,
        fetch_offset=0,
        partition_max_bytes=1 << 20,
    )
    topics = [cls.FetchTopic(topic=topic, partitions=[partition])]
    request = cls(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    row = client.call(request, 11).responses[0].partitions[0]
    values = [
        bytes(record.value)
        for batch in iterate_batches(bytes(row.records or b""))
        for record in batch.records()
    ]
    return ErrorCode(row.error_code), values


def log_dirs(broker: Broker, topic: str) -> list[Path]:
    return list(Path(broker.config["log.dirs"]).glob(f"{topic}-0"))


@pytest.mark.parametrize(("topic", "versions"), [("told", None), ("told-of-old", OLD)])
def test_partition_of_another_controller_lives_from_creation_to_deletion(
    broker: Broker, topic: str, versions: dict[ApiKey, int] | None
) -> None:
    controller = Controller(broker, topic)
    controller.versions = versions or controller.versions
    client = WireClient((broker.host, broker.port))

    assert controller.tell(0) is ErrorCode.NONE
    assert controller.lead(0) is ErrorCode.NONE
    assert controller.tell(0) is ErrorCode.NONE
    wait_until(lambda: produce(client, topic, b"1") is ErrorCode.NONE, 30, "produced")
    assert fetch(client, topic, 0) == (ErrorCode.NONE, [b"1"])

    # A retry, as by a controller that did not get the response.
    assert controller.lead(0) is ErrorCode.STALE_CONTROLLER_EPOCH
    # Another leader epoch: requests with the old one are fenced.
    assert controller.lead(3) is ErrorCode.NONE
    assert controller.tell(3) is ErrorCode.NONE
    wait_until(
        lambda: fetch(client, topic, 0)[0] is ErrorCode.FENCED_LEADER_EPOCH, 30, "epoch 0 fenced"
    )
    wait_until(lambda: produce(client, topic, b"2") is ErrorCode.NONE, 30, "produced")
    assert fetch(client, topic, 3) == (ErrorCode.NONE, [b"1", b"2"])

    # Stopped: nothing is served, and the log stays.
    assert controller.stop(4 if versions is None else -1, delete=False) is ErrorCode.NONE
    wait_until(
        lambda: produce(client, topic, b"3") is ErrorCode.NOT_LEADER_OR_FOLLOWER, 30, "not led"
    )
    assert len(log_dirs(broker, topic)) == 1
    assert controller.lead(5) is ErrorCode.NONE
    wait_until(lambda: fetch(client, topic)[1] == [b"1", b"2"], 30, "the records are still there")

    assert controller.tell(5, LEADER_DURING_DELETE) is ErrorCode.NONE
    assert controller.stop(-2, delete=True) is ErrorCode.NONE
    assert log_dirs(broker, topic) == []
    assert fetch(client, topic)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_earlier_controller_changes_nothing(broker: Broker) -> None:
    controller = Controller(broker, "kept")
    assert controller.lead(3) is controller.tell(3) is ErrorCode.NONE
    client = WireClient((broker.host, broker.port))
    wait_until(lambda: produce(client, "kept", b"1") is ErrorCode.NONE, 30, "produced")

    late = Controller(broker, "kept", EPOCH - 1)

    assert late.lead(9) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert late.tell(9, LEADER_DURING_DELETE) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert late.stop(-2, delete=True) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert fetch(client, "kept", 3) == (ErrorCode.NONE, [b"1"])


def test_earlier_registration_of_the_broker_is_not_meant(broker: Broker) -> None:
    controller = Controller(broker, "reborn")
    controller.sender = Sender(CONTROLLER_ID, EPOCH, 0)

    assert controller.lead(0) is ErrorCode.STALE_BROKER_EPOCH
    assert log_dirs(broker, "reborn") == []


def test_impossible_requests_do_no_harm(broker: Broker) -> None:
    controller = Controller(broker, "harmless")
    row = LedPartition("harmless", 0, EPOCH, 0, 0, [0], 0, [0])
    bad = [
        [row, row],
        [row._replace(topic="../../escaped")],
        [row._replace(partition=2**31 - 1)],
        [row._replace(partition=-1)],
        [row._replace(leader_epoch=-5)],
        [row._replace(replicas=[-1, 0])],
    ]

    codes = [controller.say(LeaderAndIsr(controller.sender, rows, {})).error for rows in bad]

    assert codes == [ErrorCode.INVALID_REQUEST] * len(bad)
    elsewhere = LeaderAndIsr(controller.sender, [row._replace(replicas=[1], isr=[1])], {})
    response = controller.say(elsewhere)
    assert response.partitions == {("harmless", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert log_dirs(broker, "harmless") == []
    assert controller.lead(0) is ErrorCode.NONE, "the broker is still there"


def test_links_of_a_controller_outlast_the_death_of_the_process_they_tell() -> None:
    """Requests sent while no process could respond are served later."""
    loop = PeerLoop()
    with controlled_broker() as other:
        here = LiveBroker([["PLAINTEXT", other.host, other.port, "PLAINTEXT"]], None)
        sender = Sender(CONTROLLER_ID, EPOCH, 2**40)
        nobody: Any = None
        links = Links(BrokerId(CONTROLLER_ID), nobody, loop, BrokerConfig(), loop.now_ms)
        links.set_live({0: Registration(sender.broker_epoch, here)})
        other.kill("controller", 0)

        sent = [
            links.send(0, UpdateMetadata(sender, [], {}, {0: here})),
            links.send(0, LeaderAndIsr(sender, [led(number) for number in range(3)], {})),
            links.send(0, UpdateMetadata(sender, [known(n) for n in range(3)], {}, {0: here})),
        ]
        loop.run_until(lambda: all(one.done for one in sent), 60)

        assert [one.value for one in sent] == [ControlResponse()] * 3
        with WireClient((other.host, other.port)) as client:
            wait_until(lambda: produce(client, "linked", b"1") is ErrorCode.NONE, 30, "produced")
        links.close()
    loop.close()


def led(number: int) -> LedPartition:
    return LedPartition("linked", number, EPOCH, 0, 0, [0], 0, [0], True)


def known(number: int) -> KnownPartition:
    return KnownPartition("linked", number, EPOCH, 0, 0, [0], 0, [0])
