"""What ``BatchProducer`` does about each error of a broker, and about an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.scripted_produce import CLOSE, Scripted

from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.end_txn import EndTxnResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit


def batch_of(*values: bytes) -> bytearray:
    builder = BatchBuilder()
    for value in values:
        builder.append(value, timestamp=1)
    return bytearray(builder.build())


@pytest.fixture
def broker() -> Iterator[Scripted]:
    with Scripted() as made:
        yield made


@pytest.fixture
def cluster(broker: Scripted) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as made:
        yield made


def send(producer: BatchProducer, *values: bytes) -> None:
    producer.send("t", 0, batch_of(*values), len(values))


RETRIABLE = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, CLOSE)


@pytest.mark.parametrize("code", RETRIABLE, ids=str)
def test_a_batch_is_sent_again_with_its_numbers_after_an_error_that_may_pass(broker, cluster, code):
    broker.script.extend([code, code])
    with BatchProducer(cluster) as producer:
        send(producer, b"a", b"b")
    assert [batch[:3] for batch in broker.batches] == [(70, 0, 0)] * 3
    assert broker.appended == [b"a", b"b"]
    assert producer.acknowledged == {("t", 0): 2}
    assert producer.last_offsets == {("t", 0): 0}


def test_the_first_error_that_stays_ends_the_producer(broker, cluster):
    """Every later call raises it, and nothing is sent any more."""
    broker.script.extend([0, int(ErrorCode.INVALID_RECORD)])
    producer = BatchProducer(cluster)
    send(producer, b"a")
    producer.flush()
    with pytest.raises(RejectedError) as first:
        send(producer, b"b")
        producer.flush()
    for call in (producer.flush, lambda: send(producer, b"c")):
        with pytest.raises(RejectedError) as later:
            call()
        assert later.value is first.value
    assert broker.appended == [b"a"]
    assert producer.acknowledged == {("t", 0): 1}
    producer.close()


def test_a_batch_that_is_too_large_is_not_cut(broker, cluster):
    """As it is another producer's, whose offsets are counted."""
    broker.script.append(int(ErrorCode.MESSAGE_TOO_LARGE))
    producer = BatchProducer(cluster)
    with pytest.raises(RejectedError) as caught:
        send(producer, b"a", b"b")
        producer.flush()
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert len(broker.batches) == 1
    producer.close()


def test_the_leader_that_a_broker_names_is_asked_without_another_request(broker, cluster):
    broker.script.append(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    broker.hint = ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    with BatchProducer(cluster) as producer:
        send(producer, b"a")
        producer.flush()
        assert broker.metadata_requests == 1
    assert broker.appended == [b"a"]


def test_a_connection_goes_on_to_the_next_producer_of_the_cluster(broker, cluster, monkeypatch):
    made: list[Any] = []
    cluster.on_connected = made.append
    for value in (b"a", b"b", b"c"):
        with BatchProducer(cluster, idempotent=False) as producer:
            send(producer, value)
    assert broker.appended == [b"a", b"b", b"c"]
    assert len(made) == 2  # for metadata, and for batches


def test_an_interruption_while_a_connection_is_made_loses_nothing(broker, cluster, monkeypatch):
    borrow = cluster.borrow
    interruptions = [KeyboardInterrupt]

    def interrupted(*parts: Any) -> Any:
        if interruptions:
            raise interruptions.pop()
        return borrow(*parts)

    monkeypatch.setattr(cluster, "borrow", interrupted)
    with BatchProducer(cluster) as producer:
        with pytest.raises(KeyboardInterrupt):
            send(producer, b"a")
        producer.flush()
    assert broker.appended == [b"a"]


def test_an_interruption_while_a_response_is_looked_at_ends_the_producer(
    broker, cluster, monkeypatch
):
    """Nobody knows what has become of the batch: a flush must not say that it is written."""
    broker.script.append(int(ErrorCode.NOT_ENOUGH_REPLICAS))
    producer = BatchProducer(cluster)

    def interrupted(*parts: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(producer._sender, "_take_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        send(producer, b"a")
        producer.flush()
    with pytest.raises(ClientError, match="KeyboardInterrupt"):
        producer.flush()
    producer.close()


def test_an_abort_of_what_no_coordinator_has_heard_of_ends(broker, cluster):
    """Its only batch was never sent, so there is no transaction to be aborted."""
    broker.answers[ApiKey.END_TXN] = lambda request, state: EndTxnResponse(
        error_code=ErrorCode.INVALID_TXN_STATE
    )
    broker.answers[ApiKey.ADD_PARTITIONS_TO_TXN] = lambda request, state: (
        AddPartitionsToTxnResponse()
    )
    broker.leader = -1
    producer = BatchProducer(cluster, transactional_id="x")
    producer.begin()
    send(producer, b"a")
    producer.end(commit=False)
    assert broker.batches == []
    producer.close()
