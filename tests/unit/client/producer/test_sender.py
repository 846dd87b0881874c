"""What the producer does about each error of a broker, which is scripted here."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from support.clients.scripted_produce import CLOSE, QUICK, Scripted, producer

from kbroker.client import KafkaProducer
from kbroker.client.errors import ClientClosed, ConnectionLost, RejectedError, Timeout
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

RETRIABLE = [code for code in ErrorCode if code.retriable]
PERMANENT = [
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.POLICY_VIOLATION,
]


@pytest.mark.parametrize("code", [*RETRIABLE, CLOSE], ids=str)
def test_batch_is_sent_again_after_an_error_that_may_pass(code):
    with Scripted(code, code) as broker, producer(broker) as made:
        assert made.send("t", b"v").result(10).offset == 0

    assert broker.appended == [b"v"]
    # With the same numbers each time, so that a broker which has it already finds out.
    assert [batch[:3] for batch in broker.batches] == [(70, 0, 0)] * 3


@pytest.mark.parametrize("code", PERMANENT, ids=lambda code: code.name)
def test_record_fails_at_once_after_an_error_that_stays(code):
    with Scripted(int(code)) as broker, producer(broker) as made:
        error = made.send("t", b"bad").exception(10)
        after = made.send("t", b"good").result(10)

    assert isinstance(error, RejectedError) and error.code == code
    assert after.offset == 0
    assert len(broker.batches) == 2
    # The numbers of the failed one are not skipped: a broker would reject what follows.
    # Of an unknown error a client does not know whether the batch was appended after all.
    unsure = code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert broker.batches[1][:3] == ((70, 0, 1) if unsure else (70, 1, 0))


def test_retries_are_limited():
    with Scripted(*[19] * 10) as broker:
        with producer(broker, retries=2, enable_idempotence=False) as made:
            error = made.send("t", b"v").exception(10)

    assert error.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(broker.batches) == 3


def test_without_retries_a_lost_connection_is_the_record_s_error():
    with Scripted(CLOSE) as broker, producer(broker, retries=0) as made:
        error = made.send("t", b"v").exception(10)

    assert isinstance(error, ConnectionLost)
    assert broker.batches[0][:3] == (-1, -1, -1)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
    ids=lambda code: code.name,
)
def test_lost_state_of_a_producer_makes_it_begin_again_with_the_next_epoch(code):
    with Scripted(0, int(code)) as broker, producer(broker) as made:
        made.send("t", b"0").result(10)
        assert made.send("t", b"1").result(10).offset == 1
        made.send("t", b"2").result(10)

    assert [batch[:3] for batch in broker.batches] == [
        (70, 0, 0),
        (70, 0, 1),
        (70, 1, 0),
        (70, 1, 1),
    ]
    assert broker.appended == [b"0", b"1", b"2"]


def test_batch_whose_successor_was_appended_fails_when_it_is_out_of_order():
    """The log is that of a new topic, which began with the second one: with other numbers the first
    one would come after it. What follows needs no other numbers.
    """
    out_of_order = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    both_sent = threading.Event()

    class Waiting(Scripted):
        def produce(self, request: Any, state: dict[str, Any]) -> Any:
            both_sent.wait(10)
            return super().produce(request, state)

    with Waiting(0, 6, 0, out_of_order) as broker, producer(broker, batch_size=1) as made:
        both_sent.set()
        made.send("t", b"0").result(10)
        both_sent.clear()
        first, second = made.send("t", b"1"), made.send("t", b"2")
        wait_until(lambda: made.metrics()["requests-in-flight"] == 2)
        both_sent.set()

        assert second.result(10).offset == 1
        assert first.exception(10).code == out_of_order
        made.send("t", b"3").result(10)

    assert broker.appended == [b"0", b"2", b"3"]
    assert [batch[:3] for batch in broker.batches] == [
        (70, 0, number) for number in (0, 1, 2, 1, 3)
    ]


def test_duplicate_is_a_success():
    with Scripted(ErrorCode.DUPLICATE_SEQUENCE_NUMBER) as broker, producer(broker) as made:
        assert made.send("t", b"v").exception(10) is None


def test_hint_names_the_next_leader_without_another_request():
    with Scripted(6) as broker:
        broker.hint = ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
        with producer(broker) as made:
            made.send("t", b"v").result(10)
            asked = broker.metadata_requests

    assert broker.appended == [b"v"]
    assert asked == 1


def test_a_hint_that_is_older_than_what_is_known_has_the_leader_looked_up():
    """It is of another topic with that name, whose epochs begin again. Records of it went to
    the leader of the former topic until they expired.
    """
    with Scripted(int(ErrorCode.NOT_LEADER_OR_FOLLOWER)) as broker:
        broker.hint = ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=0)
        with producer(broker) as made:
            made.send("t", b"x").result(20)
            wait_until(lambda: broker.metadata_requests == 2)


@pytest.mark.parametrize("says", [None, (0, 0)], ids=["nothing", "an older leader"])
def test_a_late_hint_of_a_former_topic_does_not_outlive_what_its_leader_says(says):
    """Its epoch is newer than all of the topic that has the name now. Records went to its leader,
    which denied it, or to nobody, until they expired.
    """
    with Scripted(*[int(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 2) as broker:
        hints = [ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=9), None]
        if says is not None:
            hints[1] = ProduceResponse.LeaderIdAndEpoch(leader_id=says[0], leader_epoch=says[1])
        produce = broker.produce

        def hinting(request: Any, state: Any) -> Any:
            broker.hint = hints.pop(0) if hints else None
            return produce(request, state)

        broker.answers[ApiKey.PRODUCE] = hinting
        with producer(broker, delivery_timeout_ms=5_500) as made:
            assert made.send("t", b"x").result(20).offset == 0


def test_topic_that_is_not_there_is_waited_for_and_then_a_timeout():
    with Scripted() as broker, producer(broker, max_block_ms=200) as made:
        broker.topic_error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with pytest.raises(Timeout, match="UNKNOWN_TOPIC_OR_PARTITION"):
            made.send("t", b"v")
        broker.topic_error = 0
        made.send("t", b"v").result(10)


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED], ids=int
)
def test_topic_that_cannot_be_written_to_fails_the_record(code):
    with Scripted() as broker, producer(broker) as made:
        broker.topic_error = int(code)

        assert made.send("t", b"v").exception(10).code == code


def test_missing_leader_is_waited_for():
    with Scripted() as broker, producer(broker) as made:
        broker.leader = -1
        future = made.send("t", b"v")
        wait_until(lambda: broker.metadata_requests > 3, 10, "the leader is asked for again")
        assert not future.done()
        broker.leader = 0

        assert future.result(10).offset == 0


def test_record_without_a_leader_fails_after_the_delivery_timeout():
    with Scripted() as broker:
        broker.leader = -1
        with producer(broker, delivery_timeout_ms=300, request_timeout_ms=200) as made:
            error = made.send("t", b"v").exception(10)

    assert isinstance(error, Timeout)
    assert "delivery to t-0" in str(error)


def test_unreachable_broker_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with KafkaProducer(bootstrap_servers=address, **{**QUICK, "max_block_ms": 300}) as made:
        with pytest.raises(Timeout, match=address):
            made.send("t", b"v")


def test_producer_id_is_asked_for_until_there_is_one():
    with Scripted(id_errors=(15, 14)) as broker, producer(broker) as made:
        made.send("t", b"v").result(10)

    assert broker.batches[0][0] == 70


def test_producer_id_that_is_not_granted_fails_what_is_sent():
    denied = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with Scripted(id_errors=(denied,)) as broker:
        made = producer(broker)
        wait_until(lambda: failed_with(made) == denied, 10, "sends fail")
        made.close()


def failed_with(made: KafkaProducer) -> int | None:
    try:
        error = made.send("t", b"v").exception(10)
    except RejectedError as raised:
        error = raised
    return getattr(error, "code", None)


def test_callback_that_raises_harms_nobody(caplog):
    def bad(future: Any) -> None:
        raise ValueError("from a callback")

    with Scripted() as broker, producer(broker, linger_ms=1000) as made:
        first = made.send("t", b"0")
        first.add_done_callback(bad)
        made.flush(10)
        made.send("t", b"1")
        made.flush(10)

    assert broker.appended == [b"0", b"1"]
    assert "from a callback" in caplog.text


def test_close_without_time_fails_what_is_left():
    with Scripted() as broker:
        broker.leader = -1
        made = producer(broker)
        future = made.send("t", b"v")
        made.close(0)

        error = future.exception(0)
        assert isinstance(error, ClientClosed) and not error.retriable
        assert "closed before the delivery to t-0; last: its leader was not reached" in str(error)


def test_frame_that_cannot_be_decoded_ends_the_connection():
    def garbled(request: Any, state: dict[str, Any]) -> bytes:
        body = state["frame_of"](ProduceResponse(responses=[]))
        broker.answers[ApiKey.PRODUCE] = broker.produce
        return body[:-1] + b"\x55"

    with Scripted() as broker:
        broker.answers[ApiKey.PRODUCE] = garbled
        with producer(broker) as made:
            assert made.send("t", b"v").result(10).offset == 0
