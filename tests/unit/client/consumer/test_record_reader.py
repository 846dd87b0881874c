"""Record sets become records and columns; what is damaged stops a reader where it is."""

from __future__ import annotations

import gc
import pickle
import random

import pytest

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker._ext.client.record_reader import RecordReader
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import CODEC_NAMES
from kbroker.record.control import marker_batch

pytestmark = pytest.mark.unit

HEADERS = (("a", b"1"), ("b", None), ("a", b""))


def batch(base: int, count: int, codec: int = 0, **settings) -> bytes:
    builder = BatchBuilder(codec, base_offset=base, leader_epoch=7, **settings)
    for n in range(base, base + count):
        builder.append(b"v%d" % n, b"k%d" % n if n % 2 else None, 1000 + n, HEADERS)
    return builder.build()


def reader(data: bytes, start: int = 0, aborted=(), **settings) -> RecordReader:
    made = RecordReader("t", 3, start, **settings)
    made.load(data, aborted)
    return made


def all_of(made: RecordReader, limit: int = 1000) -> list[ConsumerRecord]:
    out: list[ConsumerRecord] = []
    while made.read(out, limit):
        pass
    return out


@pytest.mark.parametrize("codec", range(len(CODEC_NAMES)))
def test_records_have_all_fields(codec):
    made = reader(batch(10, 5, codec) + batch(15, 5, codec), 12)

    found = all_of(made, 3)

    assert [one.offset for one in found] == list(range(12, 20))
    first, second = found[:2]
    assert (first.topic, first.partition, first.value, first.key) == ("t", 3, b"v12", None)
    assert (second.key, second.timestamp, second.timestamp_type) == (b"k13", 1013, 0)
    assert (first.serialized_key_size, first.serialized_value_size) == (-1, 3)
    assert first.headers == HEADERS
    assert first.leader_epoch == 7
    assert made.position == 20


def test_position_is_behind_what_was_returned_and_what_is_no_record():
    gap = BatchBuilder(base_offset=0)
    gap.append(b"x")
    made = reader(gap.build(last_offset_delta=9) + batch(10, 4))
    out: list[ConsumerRecord] = []

    assert made.read(out, 1) == 1
    assert made.position == 10
    assert made.read(out, 2) == 2
    assert made.position == 12
    assert made.read(out, 9) == 2
    assert made.position == 14
    assert made.read(out, 9) == 0


def test_aborted_and_control_batches_are_left_out():
    data = batch(0, 2, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    data += batch(2, 2, transactional=True, producer_id=6, producer_epoch=0, base_sequence=0)
    marker = marker_batch(5, 0, False, 0, 0)
    marker[:8] = (4).to_bytes(8, "big")
    data += bytes(marker)
    data += batch(5, 1, transactional=True, producer_id=5, producer_epoch=0, base_sequence=2)

    made = reader(data, 0, [(5, 0)])
    assert [one.offset for one in all_of(made)] == [2, 3, 5]
    assert made.position == 6
    assert [one.offset for one in all_of(reader(data, 0))] == [0, 1, 2, 3, 5]


def test_columns_are_those_of_the_records():
    data = batch(0, 50, 3) + batch(50, 50)
    records = all_of(reader(data))
    made = reader(data)

    columns = made.read_columns(70)

    assert len(columns) == 70
    assert columns.values == [one.value for one in records[:70]]
    assert columns.keys == [one.key for one in records[:70]]
    assert list(columns.offsets) == [one.offset for one in records[:70]]
    assert list(columns.timestamps) == [one.timestamp for one in records[:70]]
    assert (columns.topic, columns.partition, columns.next_offset) == ("t", 3, 70)
    assert made.read_columns(1000, False).keys == []
    assert made.read_columns(1) is None


@pytest.mark.parametrize("at", [20, 61, 70])
def test_a_damaged_batch_stops_the_reader_behind_the_records_before(at):
    good, bad, after = batch(0, 3), bytearray(batch(3, 4)), batch(7, 2)
    bad[at] ^= 0x40
    made = reader(good + bytes(bad) + after)

    assert [one.offset for one in all_of(made)] == [0, 1, 2]
    offset, next_offset, why, cause = made.error
    assert (offset, made.position, cause) == (3, 3, None)
    assert next_offset > 3
    assert "checksum" in why
    assert made.read([], 5) == 0
    assert made.read_columns(5) is None
    assert [one.offset for one in all_of(reader(after, 7))] == [7, 8]


def test_a_deserializer_that_fails_is_called_again_for_the_same_record():
    calls = []

    def value(topic, data):
        calls.append(data)
        if data == b"v2" and len(calls) < 5:
            raise KeyError("no such schema")
        return (topic, data)

    made = reader(batch(0, 4), value_deserializer=value)
    out: list[ConsumerRecord] = []

    assert made.read(out, 10) == 2
    assert made.error[:2] == (2, 3)
    assert isinstance(made.error[3], KeyError)
    assert made.position == 2
    assert made.read(out, 10) == 0
    assert made.read(out, 10) == 2
    assert made.error is None
    assert [one.value for one in out] == [("t", b"v%d" % n) for n in range(4)]


def test_null_is_not_deserialized():
    made = reader(batch(0, 2), key_deserializer=lambda topic, data: data.decode())
    assert [one.key for one in all_of(made)] == [None, "k1"]


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_without_checksums_is_an_error_or_other_records(seed):
    chosen = random.Random(seed)
    data = batch(0, 6) + batch(6, 6, 3)
    for _ in range(400):
        bad = bytearray(data)
        for _ in range(chosen.randint(1, 3)):
            bad[chosen.randrange(len(bad))] = chosen.randrange(256)
        made = reader(bytes(bad), check_crcs=False, decompressed_max=1 << 20)
        position = 0
        for record in all_of(made, 4):
            assert record.offset >= position
            position = record.offset + 1
            assert len(record.headers) <= len(data)
        assert made.position >= position
        columns = reader(bytes(bad), check_crcs=False, decompressed_max=1 << 20)
        columns.read_columns(100)


def test_records_that_can_be_in_no_cycle_are_not_tracked():
    (record,) = all_of(reader(batch(0, 1)))
    assert not gc.is_tracked(record)
    (record,) = all_of(reader(batch(0, 1), value_deserializer=lambda topic, data: [data]))
    assert gc.is_tracked(record)


def test_a_record_is_a_value():
    (record,) = all_of(reader(batch(5, 1)))

    assert pickle.loads(pickle.dumps(record)) == record
    assert record != ConsumerRecord("t", 3, 5, b"v5")
    assert "offset=5" in repr(record)
    with pytest.raises(AttributeError):
        record.value = b""
