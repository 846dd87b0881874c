"""Clients that say they are brokers or a controller, to a broker without ZooKeeper: there is no
other broker, so what they send changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from support.clients.control_client import Controller
from support.clients.wire_client import WireClient, batch_of

from kbroker.cluster.control_requests import LEADER_DURING_DELETE
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.alter_partition import AlterPartitionRequest
from kbroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kbroker.testing import Broker
from kbroker.testing.metadata import PartitionView, partition_states

pytestmark = pytest.mark.integration

TOPIC, STRANGER = "t", 77
TOPICS_AFTER = (f"after-{number}" for number in count())
# Among them is that of the broker's registration: creation ids of a new store are small.
BROKER_EPOCHS = (-1, *range(100), 1 << 40)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        create(running, TOPIC)
        yield running


@pytest.fixture(autouse=True)
def _serves_on(broker: Broker) -> Iterator[None]:
    """The partition and its log remain, and the broker's own controller is obeyed."""
    with closing(WireClient((broker.host, broker.port))) as client:
        before, epoch = records(client), leader_epoch(client)
        yield
        assert leader_epoch(client) == epoch
        assert records(client) == before + 1
        after = next(TOPICS_AFTER)
        create(broker, after)
        assert client.produce(after, {0: batch_of([b"x"])})[0].error_code == 0
    alone = PartitionView(0, (0,), frozenset({0}))
    for topic in (TOPIC, after):
        assert partition_states(broker.bootstrap, topic) == {0: alone}


def create(broker: Broker, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])


def records(client: WireClient) -> int:
    """Append one; returns how many there are."""
    result = client.produce(TOPIC, {0: batch_of([b"x"])})[0]
    assert result.error_code == 0
    return int(result.base_offset) + 1


def leader_epoch(client: WireClient) -> int:
    return int(client.metadata(TOPIC).topics[0].partitions[0].leader_epoch)


@pytest.mark.parametrize("epoch", [1, 1 << 20])
def test_there_is_no_other_controller(broker: Broker, epoch: int) -> None:
    """With the epoch of the broker's own, and with one that nobody knows."""
    imposter = Controller(broker, TOPIC, epoch)

    assert imposter.lead(50, STRANGER) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert imposter.tell(50, LEADER_DURING_DELETE) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert imposter.stop(-2, delete=True) is ErrorCode.STALE_CONTROLLER_EPOCH

    assert "rejected controller 7 with epoch " in broker.log_text


def test_there_is_no_broker_that_shuts_down(broker: Broker) -> None:
    """Not this one either: it would be given no partitions to lead from then on."""
    with closing(WireClient((broker.host, broker.port))) as client:
        for broker_id in (0, STRANGER):
            asked = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=-1)
            assert client.call(asked, 3).error_code == ErrorCode.STALE_BROKER_EPOCH

    assert "rejected ControlledShutdown of broker 0 with epoch -1 " in broker.log_text


def test_there_is_no_leader_that_asks_for_an_isr(broker: Broker) -> None:
    """One that cannot be accepted would begin a new leader epoch."""
    cls = AlterPartitionRequest
    with closing(WireClient((broker.host, broker.port))) as client:
        data = cls.PartitionData(
            partition_index=0,
            leader_epoch=leader_epoch(client),
            new_isr=[0, STRANGER],
            partition_epoch=0,
        )
        topics = [cls.TopicData(topic_name=TOPIC, partitions=[data])]
        for epoch in BROKER_EPOCHS:
            asked = cls(broker_id=0, broker_epoch=epoch, topics=topics)
            assert client.call(asked, 0).error_code == ErrorCode.STALE_BROKER_EPOCH

    lines = broker.log_text.count("rejected AlterIsr of broker 0 with epoch ")
    assert 0 < lines < len(BROKER_EPOCHS), "not each request is logged"
