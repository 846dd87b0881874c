"""Fetches for streams: where they begin, who is asked, and what a broker answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.running.pace import hold

from kbroker._ext.record.record_cursor import end_offset
from kbroker.client.errors import ClientError, OffsetOutOfRange, RejectedError, UnreadableRecord
from kbroker.errors import ErrorCode
from kbroker.legacy.zookeeper_consumer import chunk_fetcher
from kbroker.legacy.zookeeper_consumer.chunk_fetcher import ChunkFetcher
from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    ConsumerTimeout,
    NoInitialOffset,
)
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream, PartitionReading
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import ConsumerConfig
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import EARLIEST, ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.record.builder import BatchBuilder
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

START, END = 3, 8


class Leader(FakeBroker):
    """Leads t-0 to t-3, whose logs are offsets 3 to 7; ``change`` replaces rows of responses."""

    def __init__(self) -> None:
        self.change: Callable[[int, int, Any], Any] = lambda partition, at, row: row
        self.waits_ms = 20
        super().__init__({ApiKey.FETCH: self.fetch, ApiKey.LIST_OFFSETS: self.list_offsets})

    def metadata(self, request: Any, state: dict[str, Any]) -> Any:
        found = super().metadata(request, state)
        assert isinstance(found, MetadataResponse)
        partition = MetadataResponse.MetadataResponsePartition
        found.topics = [
            MetadataResponse.MetadataResponseTopic(
                name=topic.name,
                partitions=[partition(partition_index=n, leader_id=0) for n in range(4)],
            )
            for topic in request.topics or ()
        ]
        return found

    def list_offsets(self, request: Any, state: dict[str, Any]) -> Any:
        made = ListOffsetsResponse.ListOffsetsPartitionResponse
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        made(
                            partition_index=row.partition_index,
                            offset=START if row.timestamp == EARLIEST else END,
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def fetch(self, request: Any, state: dict[str, Any]) -> Any:
        rows = []
        for asked in request.topics[0].partitions:
            at = asked.fetch_offset
            row = FetchResponse.PartitionData(
                partition_index=asked.partition, high_watermark=END, log_start_offset=START,
                records=log(at) if START <= at < END else b"",
            )  # fmt: skip
            if not START <= at <= END:
                row.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            rows.append(self.change(asked.partition, at, row))
        if not any(row.records for row in rows):
            hold(self.waits_ms / 1000)
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=rows)
        return FetchResponse(responses=[topic])


def log(at: int) -> bytes:
    builder = BatchBuilder(0, base_offset=at)
    for offset in range(at, END):
        builder.append(b"%d" % offset, None, 1000, ())
    return builder.build()


@pytest.fixture
def leader() -> Iterator[Leader]:
    with Leader() as broker:
        yield broker


Start = Callable[..., tuple[KafkaStream, list[PartitionReading]]]


@pytest.fixture
def start(leader: Leader) -> Iterator[Start]:
    """Begin to fetch partitions, from an offset or by the reset."""
    running: list[tuple[ChunkFetcher, KafkaStream]] = []

    def begin(
        at: int | None = None, partitions: int = 1, timeout_s: float = 1.0, **settings: Any
    ) -> tuple[KafkaStream, list[PartitionReading]]:
        given = {"refresh_leader_backoff_ms": 10, "fetch_wait_max_ms": 20, **settings}
        config = ConsumerConfig(group_id="g", zookeeper_connect="x:1", **given)
        stream = KafkaStream("s", chunks_max=10, timeout_s=timeout_s)
        parts = [PartitionReading(("t", n), stream, 100_000) for n in range(partitions)]
        for part in parts:
            part.consumed = part.fetch_offset = at
        fetcher = ChunkFetcher(config, "test")
        running.append((fetcher, stream))
        fetcher.start(parts, [leader.bootstrap])
        return stream, parts

    yield begin
    for fetcher, stream in running:
        stream.end()
        fetcher.close()


def asked(leader: Leader, cls: str) -> list[Any]:
    return [one for one in leader.requests if type(one).__name__ == cls]


def test_messages_are_fetched_from_the_committed_offset(start: Start, leader: Leader) -> None:
    stream, (part,) = start(at=5, fetch_min_bytes=7)
    assert [next(stream).offset for _ in range(3)] == [5, 6, 7]
    assert part.high_watermark == END
    request = asked(leader, "FetchRequest")[0]
    assert (request.min_bytes, request.max_wait_ms, request.isolation_level) == (7, 20, 0)
    assert request.topics[0].partitions[0].partition_max_bytes == 100_000
    assert not asked(leader, "ListOffsetsRequest")


@pytest.mark.parametrize(("reset", "offset"), [("smallest", START), ("largest", END)])
def test_without_an_offset_reset_decides(
    reset: str, offset: int, start: Start, leader: Leader
) -> None:
    """CONS-15. The offset to begin at is committed, although nothing was read."""
    _, (part,) = start(auto_offset_reset=reset)
    wait_until(lambda: part.consumed == offset, 10, lambda: part.consumed)


@pytest.mark.parametrize(("reset", "first"), [("smallest", START), ("largest", None)])
def test_an_offset_that_is_gone_is_reset(reset: str, first: int | None, start: Start) -> None:
    stream, (part,) = start(at=1, auto_offset_reset=reset)
    if first is None:
        wait_until(lambda: part.consumed == END, 10, lambda: part.consumed)
    else:
        assert next(stream).offset == first


def test_with_another_word_for_reset_the_stream_raises(start: Start) -> None:
    """ERR-11."""
    stream, _ = start(auto_offset_reset="none")
    for _ in range(2):
        with pytest.raises(NoInitialOffset, match=r"t-0: .*auto.offset.reset=none"):
            next(stream)
    stream, _ = start(at=1, auto_offset_reset="none")
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match=r"t-0: offset 1 .*\[3, 8\)"):
            next(stream)


def test_a_partition_that_has_moved_is_looked_up_again(start: Start, leader: Leader) -> None:
    """CONS-20."""
    times: list[float] = []

    def moved(partition: int, at: int, row: Any) -> Any:
        times.append(time.monotonic())
        if len(times) < 3:
            row.error_code, row.records = ErrorCode.NOT_LEADER_OR_FOLLOWER, b""
        return row

    leader.change = moved
    stream, _ = start(at=5, refresh_leader_backoff_ms=50)
    assert next(stream).offset == 5
    assert len(asked(leader, "MetadataRequest")) >= 3
    assert times[1] - times[0] >= 0.05


def test_what_a_broker_refuses_is_told_and_tried_again(start: Start, leader: Leader) -> None:
    refused = []

    def refuse(partition: int, at: int, row: Any) -> Any:
        if not refused:
            refused.append(1)
            row.error_code, row.records = ErrorCode.TOPIC_AUTHORIZATION_FAILED, b""
        return row

    leader.change = refuse
    stream, _ = start(at=5)
    with pytest.raises(RejectedError, match="TOPIC_AUTHORIZATION_FAILED"):
        next(stream)
    assert next(stream).offset == 5


def test_a_batch_that_is_too_large_is_asked_for_with_more_bytes(
    start: Start, leader: Leader
) -> None:
    """VER-56: an old broker cuts the first batch."""

    def cut(partition: int, at: int, row: Any) -> Any:
        size = asked(leader, "FetchRequest")[-1].topics[0].partitions[0].partition_max_bytes
        if at == START and size < 400_000:
            row.records = row.records[:40]
        return row

    leader.change = cut
    stream, (part,) = start(at=START)
    assert next(stream).offset == START
    assert part.max_bytes == 400_000


def test_damage_is_told_with_its_place_and_others_are_read(start: Start, leader: Leader) -> None:
    def damage(partition: int, at: int, row: Any) -> Any:
        if partition == 1 and row.records:
            row.records = row.records[:-1] + b"\xff"
        return row

    leader.change = damage
    stream, parts = start(at=5, partitions=2)
    found = []
    with pytest.raises(UnreadableRecord) as raised:
        for row in stream:
            found.append(row.partition)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("t", 1, 5)
    if not found:
        found = [next(stream).partition for _ in range(3)]
    assert found == [0, 0, 0]
    assert parts[1].consumed == 5


def test_fetchers_share_the_partitions_of_a_broker(start: Start, leader: Leader) -> None:
    """num.consumer.fetchers: each has a connection of its own."""
    stream, _ = start(at=7, partitions=4, num_consumer_fetchers=2)
    assert sorted(next(stream).partition for _ in range(4)) == [0, 1, 2, 3]
    sets = {
        tuple(sorted(row.partition for row in one.topics[0].partitions))
        for one in asked(leader, "FetchRequest")
    }
    assert {(0, 2), (1, 3)} <= sets


def test_nothing_is_fetched_after_stop_and_threads_end(leader: Leader) -> None:
    config = ConsumerConfig(group_id="g", zookeeper_connect="x:1", fetch_wait_max_ms=20)
    stream = KafkaStream("s", chunks_max=10, timeout_s=0.0)
    part = PartitionReading(("t", 0), stream, 1000)
    part.consumed = part.fetch_offset = END
    fetcher = ChunkFetcher(config, "test")
    fetcher.start([part], [leader.bootstrap])
    wait_until(lambda: asked(leader, "FetchRequest"), 10, "a fetch")
    fetcher.stop()
    stream.give_up([part])
    wait_until(lambda: not fetcher._threads, 10, lambda: fetcher._threads)
    fetcher.close()
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_a_thread_that_fails_tells_why_and_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[int] = []

    def fail_once(records: Any, at: int) -> int:
        if not failed:
            failed.append(at)
            raise KeyError("a bug")
        return end_offset(records, at)

    monkeypatch.setattr(chunk_fetcher, "end_offset", fail_once)
    stream, _ = start(at=5)
    with pytest.raises(ClientError, match="KeyError: 'a bug'"):
        next(stream)
    assert next(stream).offset == 5
    assert "a thread of a consumer failed" in caplog.text


def test_a_lost_connection_is_replaced(start: Start, leader: Leader) -> None:
    lost = []
    serve = leader.answers[ApiKey.FETCH]

    def lose(request: Any, state: dict[str, Any]) -> Any:
        if not lost:
            lost.append(1)
            return None
        return serve(request, state)

    leader.answers[ApiKey.FETCH] = lose
    stream, _ = start(at=5, timeout_s=20.0)
    assert next(stream).offset == 5
