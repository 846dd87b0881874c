"""Streams: what fetchers queue, as messages; what cannot be read, and what is given up."""

from __future__ import annotations

import threading

import pytest
from support.storage.message_sets import OldMessage, set_bytes, wrapper_bytes

from kbroker.client.errors import DeserializationFailed, RejectedError, UnreadableRecord
from kbroker.legacy.zookeeper_consumer import kafka_stream
from kbroker.legacy.zookeeper_consumer.consumer_errors import ConsumerTimeout
from kbroker.legacy.zookeeper_consumer.kafka_stream import (
    Chunk,
    DefaultDecoder,
    KafkaStream,
    MessageAndMetadata,
    PartitionReading,
    StringDecoder,
)
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, LZ4, SNAPPY

pytestmark = pytest.mark.unit


def made(timeout_s: float | None = 0.0, chunks_max: int = 10, **decoders) -> KafkaStream:
    return KafkaStream("t-0", chunks_max=chunks_max, timeout_s=timeout_s, **decoders)


def reading(stream: KafkaStream, partition: int = 0, at: int = 0) -> PartitionReading:
    part = PartitionReading(("t", partition), stream, 1 << 20)
    part.consumed = part.fetch_offset = at
    return part


def batch(base: int, values, codec: int = 0) -> bytes:
    builder = BatchBuilder(codec, base_offset=base)
    for n, value in enumerate(values):
        builder.append(value, b"k%d" % n, 1000, ())
    return builder.build()


def put(part: PartitionReading, data: bytes, count: int, at: int | None = None, fault=None) -> None:
    first = part.fetch_offset if at is None else at
    part.fetch_offset = first + count
    part.stream.put(Chunk(part, first, data, first + count, 1 << 40, fault))


def taken(stream: KafkaStream) -> list[MessageAndMetadata]:
    rows = []
    with pytest.raises(ConsumerTimeout):
        for row in stream:
            rows.append(row)
    return rows


def test_messages_have_their_metadata_and_are_consumed_when_they_are_returned():
    stream = made()
    part = reading(stream, 3)
    put(part, batch(0, [b"a", None]), 2)

    first = next(stream)

    assert first == ("t", 3, 0, b"k0", b"a")
    assert (first.topic, first.partition, first.offset) == ("t", 3, 0)
    assert (first.key, first.message) == (b"k0", b"a")
    assert part.consumed == 1
    assert taken(stream) == [("t", 3, 1, b"k1", None)]
    assert part.consumed == 2


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_read_from_the_offset_on(magic, codec):
    """The first message may be in the middle of a compressed set."""
    rows = [OldMessage(n, -1 if magic == 0 else 5, b"k", b"v%d" % n) for n in range(6)]
    data = wrapper_bytes(magic, codec, rows) if codec else set_bytes(magic, rows)
    stream = made()
    put(reading(stream, at=2), data, 4)

    assert [(row.offset, row.message) for row in taken(stream)] == [
        (n, b"v%d" % n) for n in range(2, 6)
    ]


def test_decoders_make_keys_and_messages():
    class Upper:
        def from_bytes(self, data: bytes) -> bytes:
            return data.upper()

    stream = made(key_decoder=Upper(), value_decoder=StringDecoder())
    put(reading(stream), batch(0, ["ä".encode(), None]), 2)
    assert [(row.key, row.message) for row in taken(stream)] == [(b"K0", "ä"), (b"K1", None)]
    assert kafka_stream.deserializer_of(DefaultDecoder()) is None
    assert DefaultDecoder().from_bytes(b"x") == b"x"


def test_a_decoder_that_fails_is_asked_again():
    calls = []

    def decode(data: bytes) -> bytes:
        calls.append(data)
        if data == b"b" and calls.count(b"b") <= 2:
            raise KeyError("not yet")
        return data

    stream = made(value_decoder=decode)
    part = reading(stream)
    put(part, batch(0, [b"a", b"b", b"c"]), 3)

    assert next(stream).message == b"a"
    with pytest.raises(DeserializationFailed, match=r"t-0: .*offset 1.*KeyError") as raised:
        next(stream)

    assert isinstance(raised.value.__cause__, KeyError) and part.consumed == 1
    assert [row.message for row in taken(stream)] == [b"b", b"c"]


def test_a_corrupt_message_is_named_and_ends_its_partition_alone():
    """Its offset is not passed, so that another consumer does not skip it either."""
    stream = made()
    bad, good = reading(stream, 1), reading(stream, 2)
    data = bytearray(batch(0, [b"a"]) + batch(1, [b"b", b"c"]))
    data[-1] ^= 1
    put(bad, bytes(data), 3)
    put(bad, batch(3, [b"d"]), 1)
    put(good, batch(0, [b"x"]), 1)

    assert next(stream).message == b"a"
    with pytest.raises(UnreadableRecord) as raised:
        next(stream)

    error = raised.value
    assert (error.topic, error.partition, error.offset, error.next_offset) == ("t", 1, 1, 3)
    assert next(stream).message == b"x"
    for _ in range(2):
        with pytest.raises(UnreadableRecord):
            next(stream)
    assert bad.stopped and bad.consumed == 1


def test_a_corrupt_old_message_is_named():
    rows = [OldMessage(n, -1, b"k", b"v%d" % n) for n in range(3)]
    data = bytearray(set_bytes(0, rows))
    data[-1] ^= 1
    stream = made()
    put(reading(stream), bytes(data), 3)
    assert [next(stream).offset, next(stream).offset] == [0, 1]
    with pytest.raises(UnreadableRecord, match="t-0: the records at offset 2 are corrupt"):
        next(stream)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_compressed_set_has_a_budget(magic, monkeypatch):
    monkeypatch.setattr(kafka_stream, "DECOMPRESSED_MAX", 100_000)
    rows = [OldMessage(n, -1 if magic == 0 else 1, None, bytes(1000)) for n in range(200)]
    data = batch(0, [bytes(1000)] * 200, GZIP) if magic == 2 else wrapper_bytes(magic, GZIP, rows)
    stream = made()
    put(reading(stream), data, 200)
    with pytest.raises(UnreadableRecord, match="t-0: the records at offset 0 are corrupt"):
        next(stream)


def test_messages_before_a_fault_of_the_fetch_come_first():
    stream = made()
    part = reading(stream)
    part.stopped = True
    put(part, batch(0, [b"a"]), 1, fault=UnreadableRecord("t", 0, 1, 2, "damaged"))
    assert next(stream).message == b"a"
    for _ in range(2):
        with pytest.raises(UnreadableRecord, match="damaged"):
            next(stream)


def test_what_a_broker_refuses_is_raised_once():
    stream = made()
    part = reading(stream)
    stream.fail(part, RejectedError(29, "fetch of t-0"))
    with pytest.raises(RejectedError, match="fetch of t-0"):
        next(stream)
    with pytest.raises(ConsumerTimeout):
        next(stream)


def test_a_full_queue_holds_the_fetcher_until_there_is_room():
    """CONS-17: the bound of a consumer's memory."""
    stream = made(timeout_s=None, chunks_max=2)
    part = reading(stream)
    done = threading.Event()

    def fill() -> None:
        for n in range(4):
            put(part, batch(n, [b"%d" % n]), 1)
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert next(stream).message == b"0"  # 1 and 2 fit, 3 does not
        assert not done.wait(0.05)
        assert [next(stream).message for _ in range(3)] == [b"1", b"2", b"3"]
        assert done.wait(10)
    finally:
        stream.end()
        thread.join()


def test_what_is_given_up_is_not_returned_any_more():
    """Another consumer reads it from what was consumed."""
    stream = made(chunks_max=2)
    part = reading(stream)
    put(part, batch(0, [b"a", b"b"]), 2)
    put(part, batch(2, [b"c"]), 1)
    assert next(stream).message == b"a"

    stream.give_up([part])

    assert taken(stream) == []
    assert part.consumed == 1
    put(part, batch(3, [b"d"]), 1)  # was in flight
    assert taken(stream) == []


def test_a_fetcher_that_waits_for_room_drops_what_is_given_up():
    stream = made(chunks_max=1)
    part = reading(stream)
    put(part, batch(0, [b"a"]), 1)
    thread = threading.Thread(target=put, args=(part, batch(1, [b"b"]), 1))
    thread.start()
    stream.give_up([part])
    thread.join(10)
    assert not thread.is_alive()
    assert taken(stream) == []


def test_offsets_that_were_reset_are_read_from_there():
    """The topic was recreated: its messages begin at 0 again."""
    stream = made()
    part = reading(stream, at=5)
    put(part, batch(5, [b"old"]), 1)
    put(part, batch(0, [b"new"]), 1, at=0)
    assert [(row.offset, row.message) for row in taken(stream)] == [(5, b"old"), (0, b"new")]
    assert part.consumed == 1


def test_a_stream_ends_for_a_thread_that_waits():
    stream = made(timeout_s=None)
    rows: list[MessageAndMetadata] = []
    thread = threading.Thread(target=lambda: rows.extend(stream))
    thread.start()
    put(reading(stream), batch(0, [b"a"]), 1)
    stream.end()
    thread.join(10)
    assert not thread.is_alive() and len(rows) <= 1
    assert list(stream) == []
