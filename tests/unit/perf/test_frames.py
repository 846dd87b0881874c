"""The benchmarks' own bytes: a batch that both brokers accept, frames and valid responses."""

import struct
import zlib

import pytest

from perf import frames

pytestmark = pytest.mark.unit


def test_crc32c_of_check_string_is_the_published_value():
    assert frames.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (16384, b"\x80\x80\x01")]
)
def test_unsigned_varint_is_seven_bits_low_first(value, encoded):
    assert frames.unsigned_varint(value) == encoded


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\0"), (-1, b"\x01"), (1, b"\x02"), (64, b"\x80\x01")]
)
def test_zigzag_varint_alternates_signs(value, encoded):
    assert frames.zigzag_varint(value) == encoded


@pytest.mark.parametrize("count", [1, 150])
def test_record_batch_is_read_back_by_kafka_python(count):
    default_records = pytest.importorskip("kafka.record.default_records")
    values = frames.random_values(count, 100, seed=7)

    batch = default_records.DefaultRecordBatch(frames.record_batch(values, timestamp_ms=1000))

    assert batch.validate_crc()
    assert [record.value for record in batch] == values


@pytest.mark.parametrize("size", [1, 15, 16, 100, 1024])
def test_text_values_are_of_the_size_asked_for_and_all_different(size):
    values = frames.text_values(20, size, seed=1)

    assert {len(value) for value in values} == {size}
    assert size == 1 or len(set(values)) == 20


def test_text_values_shrink_and_random_ones_hardly_do():
    text = b"".join(frames.text_values(50, 1024, seed=1))
    letters = b"".join(frames.random_values(50, 1024, seed=1))

    assert len(zlib.compress(text)) < len(text) / 2
    assert len(zlib.compress(letters)) > len(letters) / 2


def test_random_values_of_one_seed_are_the_same():
    assert frames.random_values(3, 8, seed=1) == frames.random_values(3, 8, seed=1)
    assert frames.random_values(3, 8, seed=1) != frames.random_values(3, 8, seed=2)


@pytest.mark.parametrize("version", [3, 8, 9])
def test_produce_frame_begins_with_length_key_version_and_correlation_id(version):
    frame = frames.produce_frame(version, "t", 2, b"BATCH", acks=1)

    size, key, found_version, correlation_id = struct.unpack_from(">ihhi", frame)

    assert (size, key, found_version, correlation_id) == (len(frame) - 4, 0, version, 0)
    assert b"BATCH" in frame


def test_produce_frame_of_a_version_with_topic_ids_is_refused():
    with pytest.raises(ValueError, match="Produce version 13"):
        frames.produce_frame(13, "t", 0, b"", acks=1)


def test_produce_response_prefix_ends_before_the_error_code():
    assert frames.produce_response_prefix(7, "ab", 3) == b"\0\0\0\x01\0\x02ab\0\0\0\x01\0\0\0\x03"
    assert frames.produce_response_prefix(9, "ab", 3) == b"\0\x02\x03ab\x02\0\0\0\x03"


def metadata_response(topic_error=0, partition_error=0):
    brokers = struct.pack(">iih", 1, 5, 4) + b"host" + struct.pack(">ih", 9092, -1)
    head = struct.pack(">ii", 0, 0) + brokers + struct.pack(">hi", -1, 5)
    topic = struct.pack(">ihh", 1, topic_error, 1) + b"t" + struct.pack(">b", 0)
    partition = struct.pack(">ihii", 1, partition_error, 0, 5) + struct.pack(">iiii", 1, 5, 1, 5)
    return head + topic + partition


def test_parse_metadata_finds_the_address_of_each_leader():
    found = frames.parse_metadata(metadata_response())

    assert found.error_code == 0
    assert found.leaders == {0: ("host", 9092)}


def test_parse_metadata_of_a_partition_in_error_has_no_leader():
    found = frames.parse_metadata(metadata_response(partition_error=5))

    assert found.leaders == {0: None}


def test_parse_metadata_of_every_truncation_raises():
    whole = metadata_response()

    for size in range(len(whole)):
        with pytest.raises((struct.error, ValueError)):
            frames.parse_metadata(whole[:size])
