"""The compiled record code compared with its twin in Python, on generated input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.storage import record_oracle

from kbroker._ext.base import crc32c as crc32c_ext
from kbroker._ext.base import wire
from kbroker._ext.record import codec_frames, record_batch, record_codec
from kbroker.batch_errors import CorruptBatchError
from kbroker.batch_summary import HEADER, HEADER_BYTES
from kbroker.record import compression
from kbroker.record.batch import Record, RecordBatch, iterate_batches
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.property

LIMIT = 1 << 16
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
FIELD = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.binary(max_size=5), FIELD), max_size=3).map(tuple)
TIMESTAMP = st.integers(-1, 2**62) | st.integers(1_700_000_000_000, 1_700_000_001_000)
RECORDS = st.lists(st.tuples(FIELD, FIELD, TIMESTAMP, HEADERS), min_size=1, max_size=8)
CODEC = st.integers(0, 4)


def outcome(function, *args, **options):
    """The result of a call, or the typed error it raised."""
    try:
        return function(*args, **options)
    except (CorruptBatchError, wire.WireFormatError, record_oracle.WireFormatError) as err:
        return "refused", err.status, getattr(err, "bad_index", None)
    except ValueError as err:
        return "refused", str(err)


def assert_same_verdicts(batch: bytes) -> None:
    for stored in (False, True):
        compiled = outcome(record_batch.check_batch, batch, LIMIT, stored=stored)
        assert compiled == outcome(record_oracle.check_batch, batch, LIMIT, stored=stored)


def built(records, codec: int, **options) -> bytes:
    builder = BatchBuilder(codec, **options)
    for key, value, timestamp, headers in records:
        builder.append(value, key, timestamp, headers)
    return builder.build()


def sealed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c_ext.crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return bytes(batch)


@given(I32)
def test_varint_round_trips_and_matches_twin(value):
    encoded = record_oracle.encode_varint(value)

    assert wire.encode_varint(value) == encoded
    assert (
        wire.decode_varint(encoded) == record_oracle.decode_varint(encoded) == (value, len(encoded))
    )


@given(I64)
def test_varlong_round_trips_and_matches_twin(value):
    encoded = record_oracle.encode_varlong(value)

    assert wire.encode_varlong(value) == encoded
    assert (
        wire.decode_varlong(encoded)
        == record_oracle.decode_varlong(encoded)
        == (value, len(encoded))
    )


@given(st.lists(st.sampled_from([0, 1, 0x0F, 0x10, 0x7F, 0x80, 0x81, 0xFF]), max_size=12))
def test_variable_length_integers_of_any_bytes_match_the_twin(values):
    data = bytes(values)

    for name in ("decode_uvarint", "decode_varint", "decode_varlong"):
        assert outcome(getattr(wire, name), data) == outcome(getattr(record_oracle, name), data)


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_crc32c_matches_twin(data, crc):
    assert crc32c_ext.crc32c(data, crc) == record_oracle.crc32c(data, crc)


@given(I32, I64, FIELD, FIELD, HEADERS)
def test_encoded_record_matches_twin(offset_delta, timestamp_delta, key, value, headers):
    arguments = (offset_delta, timestamp_delta, key, value, headers)

    assert record_codec.encode_record(*arguments) == record_oracle.encode_record(*arguments)


@given(RECORDS, CODEC, st.integers(0, 2**62))
def test_batch_gives_back_its_records(records, codec, base_offset):
    data = built(records, codec, base_offset=base_offset)

    assert RecordBatch(data).records() == [
        Record(base_offset + i, timestamp, key, value, headers)
        for i, (key, value, timestamp, headers) in enumerate(records)
    ]
    assert_same_verdicts(data)
    header = record_batch.read_header(data)
    assert header == record_oracle.read_header(data)
    content = compression.decompress(codec, data[HEADER_BYTES:], LIMIT)
    arguments = (content, header.record_count, header.last_offset_delta, header.first_timestamp)
    assert record_codec.decode_records(*arguments) == record_oracle.decode_records(*arguments)


@given(RECORDS, CODEC, st.data())
def test_damaged_batch_under_a_right_checksum_gets_the_same_verdict(records, codec, data):
    batch = bytearray(built(records, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(21, len(batch) - 1))
        batch[position] = data.draw(
            st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        )

    assert_same_verdicts(sealed(batch))
    assert_same_verdicts(bytes(batch))


@given(st.binary(max_size=60), st.integers(-1, 4), st.integers(-1, 6), I64)
def test_any_bytes_as_records_get_the_same_verdict(records, count, last_offset_delta, timestamp):
    arguments = (records, count, last_offset_delta, timestamp)

    assert outcome(record_codec.decode_records, *arguments) == outcome(
        record_oracle.decode_records, *arguments
    )
    fields = (0, HEADER_BYTES - 12 + len(records), -1, 2, 0, 0, last_offset_delta, timestamp, 0)
    header = HEADER.pack(*fields, -1, -1, -1, count)
    assert_same_verdicts(sealed(bytearray(header + records)))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_as_header_get_the_same_verdict(data, offset):
    offset = min(offset, len(data))

    assert outcome(record_batch.read_header, data, offset) == outcome(
        record_oracle.read_header, data, offset
    )
    assert_same_verdicts(data)


@given(st.binary(max_size=300), st.data())
def test_frame_scans_match_the_twin(content, data):
    for codec, name in ((compression.ZSTD, "scan_zstd_frame"), (compression.LZ4, "scan_lz4_frame")):
        frame = bytearray(compression.compress(codec, content * 5))
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(frame)))
        for damaged in (frame, frame[:cut], frame + b"x"):
            compiled = outcome(getattr(codec_frames, name), damaged)
            assert compiled == outcome(getattr(record_oracle, name), damaged)


@given(st.lists(RECORDS, max_size=3), CODEC, st.integers(0, 400))
def test_iterate_batches_ends_at_a_cut_tail(batches, codec, cut):
    whole = [built(records, codec) for records in batches]
    data = b"".join(whole)
    cut = min(cut, len(data))

    found = [batch.size for batch in iterate_batches(data[: len(data) - cut], partial_tail=True)]

    kept = 0
    while kept < len(whole) and sum(map(len, whole[: kept + 1])) <= len(data) - cut:
        kept += 1
    assert found == [len(batch) for batch in whole[:kept]]
