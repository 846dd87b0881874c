"""Batches on their way: requests, responses, retries, sequence numbers, deadlines."""

from __future__ import annotations

import threading

import pytest
from support.clients.produce_link import NODE, ProduceLink, Row, Where, pool

from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.record.batch import RecordBatch

pytestmark = pytest.mark.unit


def send(made, value=b"v", partition=None, topic="t"):
    return made.append(topic, None, value, None, partition, 5)


def producer_of(received, topic="t", partition=0):
    header = RecordBatch(received.batches[topic, partition]).header
    return header.producer_id, header.producer_epoch, header.base_sequence


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
def test_acknowledged_records_know_where_they_are(version):
    made = pool(topic="t")
    with ProduceLink(made, version) as link:
        futures = [send(made, b"abc"), send(made, None)]
        link.turn()
        link.respond(link.receive(), base_offset=41, log_append_time_ms=-1)
        link.turn(0.02)

        assert [one.result(0) for one in futures] == [
            Where("t", 0, 41, 5, -1, 3),
            Where("t", 0, 42, 5, -1, -1),
        ]
    assert made.unended == made.used_bytes == 0


def test_append_time_of_the_broker_is_told():
    made = pool()
    with ProduceLink(made) as link:
        future = send(made)
        link.turn()
        link.respond(link.receive(), log_append_time_ms=77)
        link.turn(0.02)

        assert future.result(0).timestamp == 77


def test_topics_and_partitions_of_a_request_are_each_named_once():
    made = pool(3, topic="a")
    made.set_topic("b", [NODE] * 2, [0] * 2)
    with ProduceLink(made) as link:
        for n in range(3):
            send(made, partition=n, topic="a")
            send(made, partition=n % 2, topic="b")
        link.turn()
        got = link.receive()

        names = [topic.name for topic in got.request.topic_data]
        assert sorted(names) == ["a", "b"]
        assert len(got.batches) == 5
        link.respond(got)
        link.turn(0.02)
    assert made.unended == 0


def test_requests_keep_to_their_size():
    made = pool(10)
    with ProduceLink(made, request_bytes_max=3000) as link:
        for n in range(10):
            send(made, b"x" * 1000, n)
        link.turn()

        assert [len(link.receive().batches) for _ in range(5)] == [2, 2, 2, 2, 2]


def test_no_more_requests_are_in_flight_than_allowed():
    made = pool(batch_bytes=1)
    with ProduceLink(made, in_flight_max=2) as link:
        futures = [send(made, b"%d" % n) for n in range(4)]
        link.turn()
        first, second = link.receive(), link.receive()
        assert link.loop.in_flight(NODE) == 2
        link.respond(first)
        link.turn(0.02)
        third = link.receive()
        for got in (second, third):
            link.respond(got)
            link.turn(0.02)
        link.respond(link.receive())
        link.turn(0.02)

        assert all(future.done() for future in futures)


def test_batch_that_is_not_full_waits_for_linger():
    made = pool(linger_us=50_000)
    with ProduceLink(made) as link:
        send(made)
        link.turn()
        assert link.loop.in_flight(NODE) == 0
        send(made)
        link.turn(0.2)

        assert len(link.receive().records()) == 2


def test_record_wakes_the_loop_that_sleeps():
    made = pool()
    with ProduceLink(made).start() as link:
        for n in range(3):
            future = send(made, b"%d" % n)
            link.respond(link.receive())
            future.result(10)


def test_flush_sends_what_lingers():
    made = pool(linger_us=60_000_000)
    with ProduceLink(made).start() as link:
        send(made)
        flushed = threading.Thread(target=made.flush, args=(10,))
        flushed.start()
        link.respond(link.receive())
        flushed.join(10)

        assert not flushed.is_alive()
        assert made.unended == 0


def test_flush_of_what_is_not_acknowledged_ends_at_its_deadline():
    made = pool()
    with ProduceLink(made).start():
        send(made)

        assert made.flush(0.05) is False


def test_without_acknowledgements_records_are_done_once_they_are_written():
    made = pool()
    with ProduceLink(made, acks=0) as link:
        future = send(made)
        link.turn()

        assert future.result(0).offset == -1
        assert link.receive().request.acks == 0


def test_response_with_an_error_is_for_python():
    made = pool(2)
    with ProduceLink(made) as link:
        futures = [send(made, partition=n) for n in range(2)]
        link.turn()
        link.respond(link.receive(), error_code=10)
        ((what, node, version, frame, batches),) = link.turn(0.02)

        assert (what, node, version) == ("answered", NODE, 9)
        assert isinstance(frame, bytes)
        assert sorted((one.topic, one.partition, one.records) for one in batches) == [
            ("t", 0, 1),
            ("t", 1, 1),
        ]
        for one in batches:
            link.loop.fail(one, RejectedError(10, "test"))
        assert [future.exception(0).code for future in futures] == [10, 10]
    assert made.unended == made.used_bytes == 0


def test_batch_that_is_put_back_is_sent_before_newer_ones_and_with_its_number():
    made = pool(batch_bytes=1, idempotent=True)
    made.set_producer(11, 0)
    with ProduceLink(made) as link:
        futures = [send(made, b"0")]
        link.turn()
        link.respond(link.receive())
        link.turn(0.02)
        futures += [send(made, b"%d" % n) for n in range(1, 4)]
        link.turn()
        sent = [link.receive() for _ in range(3)]
        assert [producer_of(one) for one in sent] == [(11, 0, 1), (11, 0, 2), (11, 0, 3)]
        for one in sent:
            link.respond(one, error_code=19)
        batches = [one for event in link.turn(0.02) + link.turn(0.2) for one in event[4]]
        for one in reversed(batches):
            link.loop.put_back(one, 0.0)
        link.turn()
        again = [link.receive()]
        assert producer_of(again[0]) == (11, 0, 1)
        while len(again) < 3:
            link.respond(again[-1])
            link.turn(0.2)
            again.append(link.receive())
        assert [one.records()[0].value for one in again] == [b"1", b"2", b"3"]
        assert [producer_of(one) for one in again] == [(11, 0, 1), (11, 0, 2), (11, 0, 3)]


def test_only_one_batch_of_an_unknown_producer_is_in_flight():
    made = pool(batch_bytes=1, idempotent=True)
    made.set_producer(11, 0)
    with ProduceLink(made) as link:
        for n in range(3):
            send(made, b"%d" % n)
        link.turn()
        first = link.receive()
        assert link.loop.in_flight(NODE) == 1
        link.respond(first)
        link.turn(0.2)
        assert link.loop.in_flight(NODE) == 2


@pytest.mark.parametrize("was_acknowledged", [True, False])
@pytest.mark.parametrize("change", ["nothing", "another", "gone and back"])
def test_only_one_batch_is_in_flight_to_the_log_of_a_new_topic(change, was_acknowledged):
    """It knows no producer, so it would begin with the second one if the first is refused. What was
    sent before may be in the former log.
    """
    made = pool(batch_bytes=1, idempotent=True)
    made.set_producer(11, 0)
    with ProduceLink(made) as link:
        send(made)
        link.turn()
        link.respond(link.receive())
        link.turn(0.2)
        send(made)
        link.turn()
        second = link.receive()
        if was_acknowledged:
            link.respond(second)
            link.turn(0.2)
        if change == "gone and back":
            made.set_topic("t", [], [])
        made.set_topic("t", [NODE], [0], change == "another")
        if not was_acknowledged:
            link.respond(second)
            link.turn(0.2)
        for _ in range(3):
            send(made)
        link.turn()

        assert link.loop.in_flight(NODE) == (3 if change == "nothing" else 1)
        link.respond(link.receive())
        link.turn(0.2)
        assert link.loop.in_flight(NODE) == 2


def test_nothing_is_sent_without_the_id_of_an_idempotent_producer():
    made = pool(idempotent=True)
    with ProduceLink(made) as link:
        send(made)
        link.turn()
        assert link.loop.in_flight(NODE) == 0
        made.set_producer(5, 2)
        link.turn()

        assert producer_of(link.receive()) == (5, 2, 0)


def test_rewritten_batches_begin_again_with_the_next_epoch():
    made = pool(2, batch_bytes=1, idempotent=True)
    made.set_producer(5, 0)
    with ProduceLink(made) as link:
        for n in range(2):
            send(made, b"%d" % n, 0)
            send(made, b"%d" % n, 1)
        link.turn()
        link.respond(link.receive(), error_code=int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
        ((_, _, _, _, batches),) = link.turn(0.02)
        bad = next(one for one in batches if one.partition == 0)
        good = next(one for one in batches if one.partition == 1)
        assert link.loop.is_oldest(bad)
        made.set_producer(5, 1)
        link.loop.rewrite(bad)
        link.loop.put_back(bad, 0.0)
        link.loop.complete(good, 3, -1)
        link.turn()
        got = link.receive()

        # The other partition takes the new epoch over, too, as nothing of it is undecided.
        assert producer_of(got, partition=0) == (5, 1, 0)
        assert producer_of(got, partition=1) == (5, 1, 0)


def test_undecided_batch_keeps_its_epoch_when_another_partition_gets_the_next():
    made = pool(2, idempotent=True)
    made.set_producer(5, 0)
    with ProduceLink(made) as link:
        send(made, b"0", 1)
        link.turn()
        link.respond(link.receive(), error_code=7)
        ((_, _, _, _, (undecided,)),) = link.turn(0.02)
        made.set_producer(5, 1)
        link.loop.put_back(undecided, 0.0)
        send(made, b"1", 0)
        link.turn()
        got = link.receive()

        assert producer_of(got, partition=1) == (5, 0, 0)
        assert producer_of(got, partition=0) == (5, 1, 0)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\0\0\0\1", b"\xff\xff\xff\xff", b"HTTP/1.1 400 Bad", b"\0\0\0\4\0\0\0\7"],
    ids=repr,
)
def test_bytes_that_are_no_response_end_the_connection(frame):
    made = pool()
    with ProduceLink(made) as link:
        send(made)
        link.turn()
        link.receive()
        if frame:
            link.theirs.sendall(frame)
        link.theirs.close()
        found = link.turn(0.02)
        while not found:
            found = link.turn(0.02)
        ((what, node, why, (batch,)),) = found

        assert (what, node) == ("lost", NODE)
        assert why
        assert link.loop.in_flight(NODE) == -1
        link.loop.fail(batch, RejectedError(13, "lost"))
    assert made.unended == 0


@pytest.mark.parametrize("version", [3, 9, 12])
def test_response_cut_anywhere_ends_the_connection_or_is_for_python(version):
    for cut in range(1, 40):
        made = pool()
        with ProduceLink(made, version) as link:
            future = send(made)
            link.turn()
            got = link.receive()
            whole = response_body(got)
            link.send(got.correlation_id, whole[:-cut])
            ((what, *_, (batch,)),) = link.turn(0.02)
            assert what in ("lost", "answered")
            assert not future.done()
            link.loop.fail(batch, RejectedError(13, "cut"))
        if cut >= len(whole) - 1:
            break


def response_body(received):
    topic = ProduceResponse.TopicProduceResponse(
        name="t", partition_responses=[Row(index=0, error_code=0, base_offset=1)]
    )
    return codec.encode(ProduceResponse(responses=[topic]), received.version)


def test_response_that_comes_too_late_ends_the_connection():
    made = pool()
    with ProduceLink(made, request_us=20_000) as link:
        send(made)
        link.turn()
        link.receive()
        ((what, _, why, batches),) = link.turn(5)

        assert (what, why, len(batches)) == ("lost", "no response within request.timeout.ms", 1)


@pytest.mark.parametrize("sent", [False, True])
def test_record_that_is_not_acknowledged_in_time_expires(sent):
    made = pool(delivery_us=30_000)
    with ProduceLink(made) as link:
        if not sent:
            made.set_leader("t", 0, -1, -1)
        future = send(made)
        found = link.turn()
        if sent:
            got = link.receive()
        while not any(event[0] == "expired" for event in found):
            found = link.turn(0.02)
        (batch,) = next(event[1] for event in found if event[0] == "expired")
        link.loop.fail(batch, RejectedError(7, "expired"))
        assert future.exception(0).code == 7
        if sent:  # the response is of no use any more, and does no harm
            link.respond(got)
            link.turn(0.2)
            assert future.exception(0).code == 7
    assert made.unended == made.used_bytes == 0


def test_throttled_connection_waits():
    made = pool(batch_bytes=1)
    with ProduceLink(made, in_flight_max=1) as link:
        send(made)
        send(made)
        link.turn()
        link.respond(link.receive(), throttle_ms=60_000)
        link.turn(0.1)

        assert link.loop.in_flight(NODE) == 0
        assert made.unended == 1


def test_missing_leaders_and_connections_are_asked_for_once():
    made = pool(3)
    made.set_topic("t", [-1, 55, NODE], [2, 2, 2])
    with ProduceLink(made) as link:
        send(made, partition=0)
        send(made, partition=1)
        found = link.turn()
        assert sorted(found) == [("connect", 55), ("leaders", ["t"])]
        assert link.turn() == []
        link.loop.leaders_known()
        link.loop.unreachable(55, 0.0)
        assert sorted(link.turn()) == [("connect", 55), ("leaders", ["t"])]


def test_older_leader_epoch_changes_nothing():
    made = pool()
    made.set_leader("t", 0, 55, 9)
    made.set_topic("t", [NODE], [8])
    with ProduceLink(made) as link:
        send(made)

        assert link.turn() == [("connect", 55)]


def test_older_leader_epoch_is_believed_once_the_known_leader_denies_it():
    """A late hint may have been of a former topic with that name."""
    made = pool()
    made.set_leader("t", 0, 55, 9)
    made.set_leader("t", 0, -1, -1, 44)
    made.set_topic("t", [44], [8])
    with ProduceLink(made) as link:
        send(made)
        assert link.turn() == [("connect", 55)], "somebody else has denied it"
        made.set_leader("t", 0, 55, 3, 55)
        made.set_topic("t", [66], [8])

        assert link.turn() == [("connect", 66)]


@pytest.mark.parametrize("was_away", [True, False])
def test_the_leader_of_a_recreated_topic_is_believed(was_away):
    """Its epochs begin again. Records of it were never sent: the producer kept the leader of the
    former topic, or none.
    """
    made = pool()
    made.set_leader("t", 0, 55, 9)
    made.set_leader("t", 0, -1, -1)
    if was_away:
        made.set_topic("t", [], [])
        made.set_topic("t", [66], [0])
    else:
        made.set_topic("t", [66], [0], True)
    with ProduceLink(made) as link:
        send(made)

        assert link.turn() == [("connect", 66)]


def test_partitions_are_added_to_a_transaction_before_they_are_sent_to():
    made = pool(idempotent=True, transactional=True)
    made.set_producer(1, 0)
    with ProduceLink(made, transactional_id="tx") as link:
        send(made)
        assert link.turn() == [("add", [("t", 0)])]
        assert link.turn() == []
        made.added([("t", 0)], True)
        link.turn()
        got = link.receive()
        assert got.request.transactional_id == "tx"
        assert RecordBatch(got.batches["t", 0]).header.attributes & 0x10
        link.respond(got)
        link.turn(0.02)
        made.begin_transaction()
        send(made)
        assert link.turn() == [("add", [("t", 0)])]


def test_callbacks_are_handed_out_after_the_end_of_their_batch():
    made = pool()
    with ProduceLink(made) as link:
        future = send(made)
        called = []
        future.add_done_callback(called.append)
        link.turn()
        link.respond(link.receive())
        ((what, callbacks),) = link.turn(0.02)

        assert what == "ended"
        for one, function in callbacks:
            function(one)
        assert called == [future]
        future.add_done_callback(called.append)
        assert called == [future, future]


def test_waiting_batches_can_be_taken_and_failed():
    made = pool(3, linger_us=60_000_000)
    with ProduceLink(made) as link:
        futures = [send(made, partition=n) for n in range(3)]
        for batch in link.loop.take_all():
            link.loop.fail(batch, RejectedError(48, "aborted"))

        assert all(future.exception(0) is not None for future in futures)
    assert made.unended == 0


def test_memory_of_futures_that_nobody_keeps_is_given_back():
    made = pool(batch_bytes=1)
    with ProduceLink(made) as link:
        for _ in range(20):
            send(made)
        for _ in range(20):
            link.turn()
            link.respond(link.receive())
            link.turn(0.02)
    assert made.used_bytes == 0
