"""A controller's links to slow, closed, broken and healthy brokers."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.peer_loop import PeerLoop

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.config.loader import BrokerConfig
from kbroker.controller.state.state import RegisteredBroker
from kbroker.errors import ErrorCode
from kbroker.ipc.pending import Pending
from kbroker.peers.links import Links
from kbroker.protocol.api import ApiKey
from kbroker.protocol.decoder import bounds
from kbroker.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from kbroker.protocol.messages.stop_replica import StopReplicaResponse
from kbroker.protocol.messages.update_metadata import UpdateMetadataResponse
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

ME, OTHER = 0, 1
SENDER = Sender(ME, 5, 100)
LED = LedPartition("t", 0, 5, 1, 0, [1], 0, [1], True)
KNOWN = KnownPartition("t", 0, 5, 1, 0, [1], 0, [1])
LEAD = LeaderAndIsr(SENDER, [LED], {})
STOP = StopReplica(SENDER, [StoppedPartition("t", 0, 1, True), StoppedPartition("t", 1, 1, False)])
STALE = ControlResponse(ErrorCode.STALE_BROKER_EPOCH)


def know(number: int) -> UpdateMetadata:
    return UpdateMetadata(SENDER, [KNOWN._replace(partition=number)], {}, {})


def at(port: int, epoch: int = 100) -> dict[int, RegisteredBroker]:
    endpoints = [["PLAINTEXT", "127.0.0.1", port, "PLAINTEXT"]]
    return {OTHER: RegisteredBroker(epoch, LiveBroker(endpoints, None))}


class Own:
    def __init__(self) -> None:
        self.taken: list[ControlRequest] = []

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        self.taken.append(request)
        done: Pending[ControlResponse] = Pending()
        done.resolve(ControlResponse())
        return done


class Controller:
    """Links in a loop."""

    def __init__(self, **settings: str) -> None:
        self.own = Own()
        self.loop = PeerLoop()
        config = BrokerConfig({key.replace("_", "."): text for key, text in settings.items()})
        self.links = Links(BrokerId(ME), self.own, self.loop, config, self.loop.now_ms)
        self.loop.ticks.append(self.links.tick)

    def answer(self, pending: Pending[ControlResponse]) -> ControlResponse:
        self.loop.run_until(lambda: pending.done)
        assert pending.error is None
        answer: ControlResponse = pending.value
        return answer

    def close(self) -> None:
        self.links.close()
        self.loop.close()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.close()


class Broker27(FakeBroker):
    """Responds to control requests; ``instead``: the responses to the first ones."""

    def __init__(self, *instead: Any) -> None:
        self.instead = list(instead)
        answers = {
            ApiKey.LEADER_AND_ISR: self._reply(LeaderAndIsrResponse),
            ApiKey.UPDATE_METADATA: self._reply(UpdateMetadataResponse),
            ApiKey.STOP_REPLICA: self._reply(StopReplicaResponse),
        }
        super().__init__(answers)

    def _reply(self, cls: Any) -> Any:
        def reply(request: Any, state: dict[str, Any]) -> Any:
            if self.instead:
                answer = self.instead.pop(0)
                return answer(state["frame_of"](cls())) if callable(answer) else answer
            return cls()

        return reply


def test_own_broker_is_told_by_a_call(controller: Controller) -> None:
    assert controller.answer(controller.links.send(ME, LEAD)) == ControlResponse()
    assert controller.own.taken == [LEAD]


def test_request_reaches_another_broker_and_its_response_comes_back(controller: Controller) -> None:
    def refuse(frame: bytes) -> Any:
        entry = LeaderAndIsrResponse.LeaderAndIsrPartitionError
        row = entry(topic_name="t", partition_index=0, error_code=56)
        return LeaderAndIsrResponse(partition_errors=[row])

    with Broker27(refuse) as other:
        controller.links.set_live(at(other.port))

        answer = controller.answer(controller.links.send(OTHER, LEAD))

    assert answer.partitions == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    (request,) = other.requests
    assert (request.controller_epoch, request.broker_epoch) == (5, 100)
    (topic,) = request.topic_states
    assert topic.topic_name == "t" and topic.partition_states[0].is_new


def test_protocol_version_decides_the_versions_of_requests() -> None:
    controller = Controller(inter_broker_protocol_version="1.1")
    with Broker27() as other:
        controller.links.set_live(at(other.port))
        controller.answer(controller.links.send(OTHER, LEAD))
        controller.answer(controller.links.send(OTHER, STOP))
    controller.close()

    lead, deleted, kept = other.requests
    assert lead.ungrouped_partition_states[0].topic_name == "t"
    assert [deleted.delete_partitions, kept.delete_partitions] == [True, False]


def test_requests_arrive_in_order_and_what_waits_is_merged(controller: Controller) -> None:
    with Broker27() as other:
        controller.links.set_live(at(other.port))

        sent = [controller.links.send(OTHER, LEAD)]
        sent += [controller.links.send(OTHER, know(number)) for number in range(5)]
        sent.append(controller.links.send(OTHER, STOP))

        assert [controller.answer(one) for one in sent] == [ControlResponse()] * 7
    assert [len(request.topic_states[0].partition_states) for request in other.requests] == [
        1,
        5,
        2,
    ]


FAULTS = {
    "closes": None,
    "negative length": struct.pack(">i", -1),
    "huge length": struct.pack(">i", 2**31 - 1),
    "short frame": struct.pack(">i", 2) + b"ab",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "other correlation id": lambda frame: frame[:4] + b"\0\0\x7f\x7f" + frame[8:],
    "malformed body": lambda frame: frame[:-1] + b"\x05",
    "more than one response": lambda frame: frame + frame,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_request_is_repeated_until_it_gets_a_response(
    controller: Controller, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker27(fault, fault) as other, caplog.at_level(logging.WARNING):
        controller.links.set_live(at(other.port))

        first, second = controller.links.send(OTHER, LEAD), controller.links.send(OTHER, know(1))

        assert controller.answer(first) == controller.answer(second) == ControlResponse()
    assert [type(request).__name__[0] for request in other.requests] == ["L", "L", "L", "U"]
    (record,) = caplog.records
    assert record.getMessage().startswith("cannot send LeaderAndIsr to broker 1 (1 times): ")


def test_broker_that_does_not_respond_in_time_is_asked_again() -> None:
    controller = Controller(controller_socket_timeout_ms="50")
    release = threading.Event()

    def late(frame: bytes) -> Any:
        release.wait(30)
        return frame

    with Broker27(late) as other:
        controller.links.set_live(at(other.port))

        assert controller.answer(controller.links.send(OTHER, LEAD)) == ControlResponse()
        assert len(other.requests) >= 2, "more on a busy machine, which takes 50 ms for the second"
        release.set()
    controller.close()


def test_response_in_pieces_is_put_together(controller: Controller) -> None:
    with Broker27(lambda frame: (frame[n : n + 1] for n in range(len(frame)))) as other:
        controller.links.set_live(at(other.port))

        assert controller.answer(controller.links.send(OTHER, LEAD)) == ControlResponse()
    assert len(other.requests) == 1


def test_long_request_is_sent_as_the_other_side_takes_it(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than the buffers of a connection."""
    monkeypatch.setattr(bounds, "elements", 10_000_000)
    replicas = list(range(2000))
    partitions = [LED._replace(partition=n, replicas=replicas) for n in range(1000)]
    with Broker27() as other:
        controller.links.set_live(at(other.port))

        request = LeaderAndIsr(SENDER, partitions, {})

        assert controller.answer(controller.links.send(OTHER, request)) == ControlResponse()


def test_broker_that_is_down_is_told_when_it_is_up(controller: Controller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    controller.links.set_live(at(port))
    pending = controller.links.send(OTHER, LEAD)
    controller.loop.run_until(lambda: controller.loop._sleepers)

    with Broker27() as other:
        controller.links.set_live(at(other.port))  # the same registration, elsewhere

        assert controller.answer(pending) == ControlResponse()


@pytest.mark.parametrize("now", [{}, at(1, epoch=101)], ids=["gone", "registered again"])
def test_requests_to_an_ended_registration_complete_as_stale(
    controller: Controller, now: dict[int, RegisteredBroker]
) -> None:
    release = threading.Event()
    with Broker27(lambda frame: release.wait(30) and None) as other:
        controller.links.set_live(at(other.port))
        sent = [controller.links.send(OTHER, one) for one in (LEAD, know(1), STOP)]
        controller.loop.run_until(lambda: other.requests)

        controller.links.set_live(now)

        assert [one.value for one in sent] == [STALE] * 3
        release.set()


@pytest.mark.parametrize("brokers", [{}, at(1, epoch=99), at(1, epoch=101)])
def test_request_for_another_registration_is_not_sent(
    controller: Controller, brokers: dict[int, RegisteredBroker]
) -> None:
    controller.links.set_live(brokers)

    assert controller.links.send(OTHER, LEAD).value == STALE


def test_resigned_controller_says_nothing_more(controller: Controller) -> None:
    with Broker27(None) as other:
        controller.links.set_live(at(other.port))
        pending = controller.links.send(OTHER, LEAD)
        controller.loop.run_until(lambda: controller.loop._sleepers)

        controller.links.resign()

        assert pending.value == STALE
        assert len(other.requests) == 1
