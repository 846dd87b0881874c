"""``KafkaConsumer`` and brokers that say what a test wants: damage, moves, truncation, nonsense."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.clients.consumer_scene import ID, KEY, WAIT_S, Scene, batch, values

from kbroker.client.connections.retry import Backoff
from kbroker.client.consumer.partitions import ReadPartition
from kbroker.client.errors import (
    CommitFailed,
    LogTruncated,
    ProtocolViolation,
    RejectedError,
    UnreadableRecord,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    with made.brokers[0], made.brokers[1]:
        yield made


def test_a_damaged_batch_is_named_and_can_be_skipped(scene):
    bad = bytearray(batch(3, 4))
    bad[-2] ^= 1
    scene.log += [(3, bytes(bad)), (7, batch(7, 2))]
    with scene.consumer() as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        for poll in (consumer.poll, consumer.poll_columns, consumer.poll):
            with pytest.raises(UnreadableRecord, match=r"t-0.*offset 3.*checksum") as raised:
                poll(WAIT_S)
            assert (raised.value.offset, raised.value.next_offset) == (3, 7)
            assert consumer.position(KEY) == 3
        consumer.seek(KEY, raised.value.next_offset)
        assert values(consumer, 2) == [7, 8]


def test_arrow_stops_at_a_damaged_batch_too(scene):
    pytest.importorskip("pyarrow")
    bad = bytearray(batch(3, 4))
    bad[-2] ^= 1
    scene.log += [(3, bytes(bad)), (7, batch(7, 2))]
    with scene.consumer() as consumer:
        (rows,) = consumer.poll_arrow(WAIT_S, columns=["value"])
        assert rows.column(0).to_pylist() == [b"0", b"1", b"2"]
        with pytest.raises(UnreadableRecord):
            consumer.poll_arrow(WAIT_S, columns=["value"])
        assert consumer.position(KEY) == 3


def test_an_impossible_batch_is_named(scene):
    scene.instead[0] = [{"records": b"\0" * 8 + (5).to_bytes(4, "big") + b"\0" * 60}]
    with scene.consumer() as consumer:
        with pytest.raises(UnreadableRecord):
            consumer.poll(WAIT_S)
        consumer.seek(KEY, 0)
        assert values(consumer, 3) == [0, 1, 2]


def test_only_changes_are_asked_for_in_a_session(scene):
    with scene.consumer() as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        consumer.poll(0.1)
    first, second, third = scene.fetches[0][:3]
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert second.topics[0].partitions[0].fetch_offset == 3
    assert (third.session_epoch, third.topics) == (2, [])


def test_a_leader_that_has_moved_is_followed(scene):
    told = FetchResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=1)
    scene.instead[0] = [{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "current_leader": told}]
    with scene.consumer() as consumer:
        assert values(consumer, 3) == [0, 1, 2]
    assert scene.fetches[1]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_rejected_fetches_of_a_partition_have_growing_pauses(scene, monkeypatch, code):
    pauses: list[float] = []
    fetch_later = ReadPartition.fetch_later

    def noting(part: ReadPartition, backoff: Backoff, now: float) -> None:
        fetch_later(part, backoff, now)
        pauses.append(part.retry_at - now)

    monkeypatch.setattr(ReadPartition, "fetch_later", noting)
    scene.instead[0] = [{"error_code": code}] * 3
    with scene.consumer(retry_backoff_max_ms=20) as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        assert pauses == pytest.approx([0.01, 0.02, 0.02])
        scene.instead[0] = [{"error_code": code}]
        scene.log.append((3, batch(3, 1)))
        assert values(consumer, 1) == [3]
    assert pauses[3:] == pytest.approx([0.01]), "what was answered ends the row"


def test_a_replica_that_the_leader_prefers_is_read(scene):
    scene.instead[0] = [{"preferred_read_replica": 1}]
    with scene.consumer(client_rack="here") as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        # It is behind: back to the leader.
        scene.log.append((3, batch(3, 1)))
        scene.instead[1] = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}]
        assert values(consumer, 1) == [3]
    assert scene.fetches[0][0].rack_id == "here"
    assert scene.fetches[1][0].topics[0].partitions[0].fetch_offset == 0


def test_a_replica_that_is_silent_is_left_for_the_leader(scene, monkeypatch):
    """The leader names it again as long as it hears of this rack."""
    monkeypatch.setattr("kbroker.client.consumer.fetcher._SILENT_S", 0.1)
    scene.instead[0] = [{"preferred_read_replica": 1}]
    released = threading.Event()
    scene.brokers[1].answers[ApiKey.FETCH] = lambda request, state: released.wait(60) and None
    with scene.consumer(client_rack="here", fetch_max_wait_ms=50) as consumer:
        assert values(consumer, 3) == [0, 1, 2]
    released.set()
    assert [scene.fetches[0][0].rack_id, scene.fetches[0][1].rack_id] == ["here", ""]


@pytest.mark.parametrize("code", [6, -1, 2], ids=["moved", "unknown", "damaged"])
@pytest.mark.parametrize("place", ["partition", "response"])
def test_a_replica_that_answers_errors_is_left_for_the_leader(scene, code, place):
    """Whatever is wrong there, the leader may be able to; it names the replica while it hears of
    this rack.
    """
    scene.instead[0] = [{"preferred_read_replica": 1}]
    whole = FetchResponse(error_code=code)
    scene.instead[1] = [{"error_code": code} if place == "partition" else whole] * 3
    with scene.consumer(client_rack="here") as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        assert len(scene.fetches[1]) == 1
    assert [one.rack_id for one in scene.fetches[0][:2]] == ["here", ""]


def test_no_thread_waits_for_a_silent_broker_after_close(scene):
    """Each would be there until request.timeout.ms, with its socket."""
    released, asked = threading.Event(), threading.Event()
    scene.brokers[0].answers[ApiKey.LIST_OFFSETS] = lambda request, state: (
        asked.set(),
        released.wait(60),
        None,
    )[2]
    before = set(threading.enumerate())
    seconds = {"request_timeout_ms": 300_000, "socket_connection_setup_timeout_ms": 300_000}
    with scene.consumer(**seconds) as consumer:
        wait_until(lambda: consumer.poll(0.01) or asked.is_set(), WAIT_S)

    def left() -> list[str]:
        names = [one.name for one in threading.enumerate() if one not in before]
        return [name for name in names if name.startswith("kafka-consumer")]

    wait_until(lambda: not left(), 10)
    released.set()


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_records_that_a_new_leader_does_not_have_are_noticed(scene, policy):
    with scene.consumer(auto_offset_reset=policy, metadata_max_age_ms=50) as consumer:
        consumer.seek(KEY, 0)
        assert values(consumer, 3) == [0, 1, 2]
        scene.end_of_epoch = 1
        scene.log = [(1, batch(1, 1, epoch=1))]
        scene.leader, scene.epoch = 1, 1
        if policy == "none":
            with pytest.raises(LogTruncated, match="offset 3"):
                values(consumer, 1)
        else:
            assert values(consumer, 1) == [1]


@pytest.mark.parametrize(
    "nonsense",
    [b"\0\0\0\5\0\0\0\1x", b"\xff\xff\xff\xff"],
)
def test_nonsense_is_an_error_and_the_next_poll_goes_on(scene, nonsense):
    scene.instead[0] = [nonsense]
    with scene.consumer() as consumer:
        with pytest.raises(ProtocolViolation, match="127"):
            consumer.poll(WAIT_S)
        assert values(consumer, 3) == [0, 1, 2]


def test_what_a_broker_refuses_is_raised_and_asked_for_again(scene):
    scene.instead[0] = [{"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}]
    with scene.consumer() as consumer:
        with pytest.raises(RejectedError, match="t-0"):
            consumer.poll(WAIT_S)
        assert values(consumer, 3) == [0, 1, 2]


def test_what_a_broker_refuses_again_and_again_is_raised_once_a_second(scene, monkeypatch):
    """And is asked for no more often."""
    scene.instead[0] = [{"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}] * 50
    now = [1000.0]
    with scene.consumer() as consumer:
        monkeypatch.setattr(consumer._core.fetcher.sets, "_clock", lambda: now[0])
        with pytest.raises(RejectedError, match="t-0"):
            consumer.poll(WAIT_S)
        assert consumer.poll(0.2) == []
        assert len(scene.instead[0]) == 48
        now[0] += 1.0
        with pytest.raises(RejectedError, match="t-0"):
            consumer.poll(WAIT_S)


def test_a_topic_that_was_recreated_is_read_under_its_new_id(scene):
    scene.epoch = 5
    with scene.consumer() as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        scene.topic_id, scene.epoch = bytes(15) + b"\2", 0
        scene.log = [(0, batch(0, 5))]
        assert values(consumer, 5) == [0, 1, 2, 3, 4]  # and not from offset 3 on
    ids = {topic.topic_id for one in scene.fetches[0] for topic in one.topics}
    assert ids == {ID, scene.topic_id}


def test_a_commit_of_who_is_no_member_fails_and_says_why(scene):
    with scene.consumer(group_id="g", enable_auto_commit=False) as consumer:
        with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
            consumer.commit_sync({KEY: 1})
        done: list = []
        consumer.commit_async({KEY: 1}, lambda offsets, error: done.append(error))
        deadline = time.monotonic() + WAIT_S
        while not done and time.monotonic() < deadline:
            consumer.poll(0.01)
        assert isinstance(done[0], CommitFailed)


def test_a_program_that_never_waits_reads_as_well(scene):
    with scene.consumer() as consumer:
        found: list[int] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < 3 and time.monotonic() < deadline:
            found += [int(record.value) for record in consumer.poll(0)]
    assert found == [0, 1, 2]
