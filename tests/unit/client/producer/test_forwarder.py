"""Records pass from a fetched set to a producer, also as whole batches where that fits."""

from __future__ import annotations

import random
import time

import pytest
from support.clients.produce_link import ProduceLink, pool

from kbroker._ext.arrow.arrow_writer import partition_of
from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_reader import RecordReader
from kbroker.batch_summary import HEADER
from kbroker.client.errors import ClientClosed, RecordTooLarge
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import CODEC_NAMES, GZIP, LZ4, ZSTD
from kbroker.record.control import marker_batch

pytestmark = pytest.mark.unit

HEADERS = (("a", b"1"), ("b", None))


def batch(base: int, rows, codec: int = 0, gap: int = 0, **settings) -> bytes:
    """rows: (key, value) pairs. gap: offsets behind the last record that are gone."""
    builder = BatchBuilder(codec, base_offset=base, leader_epoch=3, **settings)
    for n, (key, value) in enumerate(rows):
        builder.append(value, key, 1000 + base + n, HEADERS if n % 2 else ())
    return builder.build(last_offset_delta=len(rows) - 1 + gap) if gap else builder.build()


def values(count: int, size: int = 100, key: bytes | None = None):
    """Values that cannot be compressed."""
    return [(key, random.Random(n).randbytes(size)) for n in range(count)]


def passed(made, forwarder: Forwarder, data: bytes, start: int = 0, partition: int = 0):
    """The futures and what was received, by partition."""
    reader = RecordReader("t", partition, start)
    reader.load(data)
    futures = forwarder.forward(reader, "t")
    found: dict[int, list[bytes]] = {}
    with ProduceLink(made) as link:
        while made.unended:
            link.turn()
            got = link.receive()
            for (_, number), one in got.batches.items():
                found.setdefault(number, []).append(one)
            link.respond(got)
            link.turn(0.02)
    return reader, futures, found


def rows_of(batches):
    from kbroker.record.batch import RecordBatch

    return [
        (one.key, one.value, one.timestamp, [tuple(pair) for pair in one.headers])
        for each in batches
        for one in RecordBatch(each).records()
    ]


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
@pytest.mark.parametrize("target", range(5), ids=CODEC_NAMES)
def test_key_value_headers_and_timestamp_stay_through_any_codec(codec, target):
    made = pool(codec=target)
    data = batch(0, [(b"k", b"v"), (None, None), (b"", b"x" * 20_000)], codec)
    reader, futures, found = passed(made, Forwarder(made, keep_codecs=False), data)

    expected = [(b"a", b"1"), (b"b", None)]
    assert rows_of(found[0]) == [
        (b"k", b"v", 1000, []),
        (None, None, 1001, expected),
        (b"", b"x" * 20_000, 1002, []),
    ]
    assert {HEADER.unpack_from(one)[5] & 7 for one in found[0]} <= {target}
    assert len(futures) == 3 and futures.done() and futures.exceptions() == {}
    assert reader.position == 3


def test_keys_place_records_and_what_is_before_the_position_stays():
    made = pool(5, batch_bytes=100_000)
    rows = [(b"key-%d" % (n % 17), b"%d" % n) for n in range(500)]
    forwarder = Forwarder(made)
    _, futures, found = passed(made, forwarder, batch(0, rows) + batch(500, rows), 250)

    wanted: dict[int, list[bytes]] = {}
    for key, value in rows[250:] + rows:
        wanted.setdefault(partition_of(key, 5), []).append(value)
    assert {at: [row[1] for row in rows_of(some)] for at, some in found.items()} == wanted
    assert (len(futures), forwarder.records, forwarder.whole_records) == (750, 750, 0)


@pytest.mark.parametrize("codec", [0, GZIP, LZ4, ZSTD])
def test_batch_whose_records_belong_together_is_not_unpacked(codec):
    made = pool(4)
    forwarder = Forwarder(made)
    first = batch(7, values(200, key=b"one"), codec)
    reader, futures, found = passed(made, forwarder, first + batch(207, values(200), codec), 7)

    assert (forwarder.records, forwarder.whole_records, len(futures)) == (400, 400, 400)
    at = partition_of(b"one", 4)
    assert found[at][0][61:] == first[61:]
    fields = HEADER.unpack_from(found[at][0])
    assert fields[0] == 0, "offsets begin at 0"
    assert fields[5] & 7 == codec
    assert sum(len(rows_of(some)) for some in found.values()) == 400
    assert reader.position == 407


def test_kept_partition_needs_no_look_at_the_keys():
    made = pool(4)
    forwarder = Forwarder(made, keep_partitions=True)
    mixed = [(b"%d" % n, value) for n, (_, value) in enumerate(values(100, 200))]
    _, _, found = passed(made, forwarder, batch(0, mixed, LZ4), partition=3)

    assert forwarder.whole_records == 100
    assert list(found) == [3]


def test_partition_that_the_target_lacks_is_placed_by_key():
    made = pool(2)
    forwarder = Forwarder(made, keep_partitions=True)
    mixed = [(b"%d" % n, b"x" * 200) for n in range(100)]
    _, _, found = passed(made, forwarder, batch(0, mixed), partition=3)

    assert set(found) == {0, 1}
    for at, some in found.items():
        assert all(partition_of(row[0], 2) == at for row in rows_of(some))


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (batch(0, values(200, key=b"k"), gap=3), 0),
        (batch(0, values(200, key=b"k"), append_time_ms=77), 0),
        (batch(0, values(200, key=b"k")), 50),
        (batch(0, values(10, key=b"k")), 0),
    ],
    ids=["compacted", "append time", "begun", "small"],
)
def test_batch_that_brokers_would_refuse_is_unpacked(data, start):
    made = pool()
    forwarder = Forwarder(made)
    _, futures, found = passed(made, forwarder, data, start)

    assert forwarder.whole_records == 0
    assert len(futures) == len(rows_of(found[0])) == forwarder.records > 0
    for one in found[0]:
        assert HEADER.unpack_from(one)[5] & 8 == 0, "no append time"


def test_whole_batch_comes_behind_what_was_open():
    made = pool()
    forwarder = Forwarder(made)
    rows = values(3, key=b"k") + values(200, key=b"k") + values(3, key=b"k")
    data = batch(0, rows[:3]) + batch(3, rows[3:203], LZ4) + batch(203, rows[203:])
    _, _, found = passed(made, forwarder, data)

    assert [row[1] for row in rows_of(found[0])] == [value for _, value in rows]
    assert forwarder.whole_records == 200


def test_transactional_batches_are_passed_on_and_markers_are_not():
    made = pool()
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    marker = marker_batch(5, 0, True, 0, 0)
    marker[:8] = (200).to_bytes(8, "big")
    data = batch(0, values(200, key=b"k"), transactional=True, **producer) + bytes(marker)
    reader, futures, found = passed(made, Forwarder(made), data)

    assert len(futures) == 200 and reader.position == 201
    fields = HEADER.unpack_from(found[0][0])
    assert fields[5] & 0x10 == 0 and fields[9] == -1, "not transactional, no producer id"


def test_full_memory_stops_before_the_first_record_that_has_no_place():
    made = pool(buffer_bytes=20_000)
    forwarder = Forwarder(made)
    reader = RecordReader("t", 0, 0)
    reader.load(batch(0, [(None, b"x" * 900)] * 15 + [(b"k", b"y" * 900)] * 15))
    first = forwarder.forward(reader, "t")
    assert forwarder.is_full and 0 < len(first) < 30
    assert reader.position == len(first)
    assert len(forwarder.forward(reader, "t")) == 0

    taken = len(first)
    with ProduceLink(made).start() as link:
        while taken < 30:
            link.respond(link.receive())
            forwarder.wait_for_room(5.0)
            taken += len(forwarder.forward(reader, "t"))
        while made.unended:
            link.respond(link.receive())
            made.flush(0.1)
    assert made.counts()["acknowledged"] == 30


def test_whole_batch_that_has_no_place_is_passed_on_later():
    made = pool(buffer_bytes=30_000)
    forwarder = Forwarder(made)
    reader = RecordReader("t", 0, 0)
    one = values(200, key=b"k")
    reader.load(batch(0, one) + batch(200, one))
    assert len(forwarder.forward(reader, "t")) == 200
    assert forwarder.is_full and reader.position == 200
    with ProduceLink(made).start() as link:
        link.respond(link.receive())
        made.flush(5.0)
        assert len(forwarder.forward(reader, "t")) == 200
        link.respond(link.receive())
        made.flush(5.0)
    assert forwarder.whole_records == 400 and not forwarder.is_full


def test_record_that_is_too_large_fails_alone():
    made = pool(record_bytes_max=1000)
    forwarder = Forwarder(made, keep_partitions=False)
    data = batch(0, [(b"a", b"1"), (b"b", b"x" * 2000), (b"c", b"3")])
    reader, futures, found = passed(made, forwarder, data)

    assert [row[1] for row in rows_of(found[0])] == [b"1", b"3"]
    errors = futures.exceptions()
    assert list(errors) == [1] and isinstance(errors[1], RecordTooLarge)
    assert reader.position == 3


def test_damaged_batch_stops_where_it_is():
    made = pool()
    forwarder = Forwarder(made)
    data = bytearray(batch(0, values(3)) + batch(3, values(3)))
    data[-1] ^= 1
    reader, futures, _ = passed(made, forwarder, bytes(data))

    assert len(futures) == 3 and reader.position == 3
    assert reader.error is not None and reader.error[0] == 3
    assert len(forwarder.forward(reader, "t")) == 0


def test_unknown_topic_held_forwarder_and_closed_producer():
    made = pool()
    forwarder = Forwarder(made)
    reader = RecordReader("other", 0, 0)
    reader.load(batch(0, values(3)))
    assert len(forwarder.forward(reader, "other")) == 0
    assert forwarder.missing == "other"
    made.set_topic("t", [], [])
    assert len(forwarder.forward(reader, "t")) == 0
    assert forwarder.missing == "t" and reader.position == 0
    made.set_topic("t", [7], [0])

    forwarder.held = True
    assert len(forwarder.forward(reader, "t")) == 0
    assert forwarder.is_full and forwarder.missing is None
    forwarder.held = False
    made.close(ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        forwarder.forward(reader, "t")
    assert reader.position == 0


def test_wait_for_room_ends():
    made = pool()
    made.append("t", None, b"v", None, None, None)
    before = time.monotonic()
    Forwarder(made).wait_for_room(0.05)
    assert time.monotonic() - before < 2.0
