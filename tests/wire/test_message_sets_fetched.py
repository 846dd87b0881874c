"""Batches of format 2 become message sets of formats 0 and 1."""

import os
import random
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.storage.message_sets import CODECS, LOG_APPEND_TIME, messages_in

from kbroker._ext.record.down_convert import to_message_set
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, LZ4, ZSTD, compress
from kbroker.record.control import marker_batch

pytestmark = pytest.mark.wire

CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE = 2, 76
TIME = 1_700_000_000_000

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=200),
        st.integers(-1, 1 << 42),
        st.integers(0, 3),  # offsets left out before it
    ),
    min_size=1,
    max_size=20,
)


def convert(data, **wish):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return to_message_set(file.fileno(), len(data), **wish)


def messages(data, **wish):
    """The messages in the set, as (offset, timestamp, key, value)."""
    error, found, _ = convert(data, **wish)
    assert error == 0
    return [tuple(message)[:4] for message in messages_in(found)]


def batch(base=0, count=3, codec=0, *, size=20, **header):
    builder = BatchBuilder(codec, base_offset=base, **header)
    for n in range(count):
        value = b"%d " % (base + n)
        builder.append(value * size, b"key", TIME + n, [("header", b"dropped")])
    return builder.build()


# A record with key "k", value "abc", time 1 and offset 7, in format 0 and in format 1.
GOLDEN_0 = bytes.fromhex("0000000000000007 00000012 9391e657 00 00 00000001 6b 00000003 616263")
GOLDEN_1 = bytes.fromhex(
    "0000000000000007 0000001a 20bd9335 01 00 0000000000000001 00000001 6b 00000003 616263"
)


def test_golden_record_in_both_formats():
    builder = BatchBuilder(base_offset=7)
    builder.append(b"abc", b"k", 1)
    assert convert(builder.build(), magic=0) == (0, GOLDEN_0, 8)
    assert convert(builder.build(), magic=1) == (0, GOLDEN_1, 8)


@given(RECORDS, st.sampled_from([0, 1]), st.sampled_from(sorted(CODECS)), st.integers(0, 12))
def test_batch_becomes_messages_with_the_same_offsets(records, magic, codec, start):
    builder = BatchBuilder(CODECS[codec], base_offset=5)
    expected, offset = [], 5
    for key, value, timestamp, gap in records:
        offset += gap
        builder.append(value, key, timestamp, offset_delta=offset - 5)
        expected.append((offset, timestamp if magic else -1, key, value))
        offset += 1

    found = messages(builder.build(), magic=magic, from_offset=start)

    assert found == [message for message in expected if message[0] >= start]


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("magic", [0, 1])
def test_each_batch_keeps_its_codec(magic, codec):
    data = batch(0, 4, CODECS[codec]) + batch(4, 4)
    error, found, next_offset = convert(data, magic=magic)
    assert (error, next_offset) == (0, 8)
    assert found[17] == CODECS[codec]  # the attributes of the first entry
    assert [message.offset for message in messages_in(found)] == list(range(8))


def test_log_append_time_is_shown_in_format_1():
    for codec in (0, GZIP):
        data = batch(0, 3, codec, append_time_ms=TIME + 99)
        _, found, _ = convert(data, magic=1)
        assert found[17] == LOG_APPEND_TIME | codec
        assert {message.timestamp for message in messages_in(found)} == {TIME + 99}
        _, found, _ = convert(data, magic=0)
        assert found[17] == codec


def test_control_and_empty_batches_are_left_out():
    marker = bytearray(marker_batch(9, 0, True, 0, TIME))
    marker[:8] = (3).to_bytes(8, "big")
    data = batch(0, 3) + bytes(marker) + batch(4, 2)
    assert [found[0] for found in messages(data, magic=1)] == [0, 1, 2, 4, 5]
    assert convert(bytes(marker), magic=1, from_offset=3) == (0, b"", 4)


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_is_rejected_unless_something_comes_before_it(magic):
    data = batch(0, 3, ZSTD)
    assert convert(data, magic=magic)[:2] == (UNSUPPORTED_COMPRESSION_TYPE, b"")
    both = batch(0, 3) + batch(3, 3, ZSTD)
    assert [found[0] for found in messages(both, magic=magic)] == [0, 1, 2]
    assert convert(both, magic=magic, from_offset=3)[0] == UNSUPPORTED_COMPRESSION_TYPE


def test_batch_that_the_range_cuts_is_left_out():
    data = batch(0, 3) + batch(3, 3)
    for cut in (1, 30, len(data) // 2 - 1):
        error, found, next_offset = convert(data[:-cut], magic=0)
        assert (error, next_offset, len(messages_in(found))) == (0, 3, 3)


def test_hard_limit_cuts_the_last_message():
    data = batch(0, 3) + batch(3, 3)
    _, whole, _ = convert(data, magic=0)
    for limit in range(0, len(whole) + 5, 7):
        error, found, _ = convert(data, magic=0, hard=True, bytes_max=limit)
        assert (error, found) == (0, whole[:limit])


def test_hard_limit_below_a_wrapper_gives_plain_messages():
    values = random.Random(1).randbytes(3000)
    builder = BatchBuilder(LZ4)
    for n in range(30):
        builder.append(values[n * 100 : n * 100 + 100], b"k", TIME)
    error, found, _ = convert(builder.build(), magic=1, hard=True, bytes_max=1500)
    assert (error, len(found)) == (0, 1500)
    assert [m.offset for m in messages_in(found)] == list(range(1500 // 135))


def test_soft_limit_keeps_batches_whole():
    data = batch(0, 3) + batch(3, 3)
    _, whole, _ = convert(data, magic=1)
    half = len(whole) // 2
    for limit, expected in ((0, 3), (half, 3), (len(whole) - 1, 3), (len(whole), 6)):
        found = messages(data, magic=1, bytes_max=limit)
        assert len(found) == expected
    assert messages(data, magic=1, bytes_max=half - 1, at_least_one=False) == []
    assert len(messages(data, magic=1, bytes_max=half, at_least_one=False)) == 3
    assert len(messages(data, magic=1, bytes_enough=1)) == 3


@pytest.mark.parametrize("position", [0, 8, 16, 17, 22, 30, 57, 61, 90, -1])
def test_damaged_batch_is_not_given_a_checksum_of_its_own(position):
    data = bytearray(batch(0, 3))
    data[position] ^= 0x40
    error, found, _ = convert(bytes(data), magic=1)
    if position == 0:
        assert error == 0  # the base offset is outside the checksum
    elif position == 8:
        assert (error, found) == (0, b"")  # longer than the range
    else:
        assert (error, found) == (CORRUPT_MESSAGE, b"")


@pytest.mark.parametrize("codec", [0, GZIP, LZ4])
def test_records_that_do_not_add_up_are_corrupt(codec):
    """With a valid checksum, as in a log from elsewhere."""
    from kbroker._ext.base.crc32c import crc32c

    chance = random.Random(3)
    sound = batch(0, 5, size=3)
    for _ in range(500):
        records = bytearray(sound[61:])
        for _ in range(chance.randrange(1, 3)):
            records[chance.randrange(len(records))] = chance.randrange(256)
        data = bytearray(sound[:61]) + compress(codec, bytes(records))
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        data[22] = codec
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        error, found, _ = convert(bytes(data), magic=1)
        assert error in (0, CORRUPT_MESSAGE)
        if error == 0:
            messages_in(found)


def test_large_batches_are_read_whole():
    values = os.urandom(400_000)
    builder = BatchBuilder(base_offset=1)
    builder.append(values, None, TIME)
    data = batch(0, 1) + builder.build() + batch(2, 1)
    found = messages(data, magic=1)
    assert [entry[0] for entry in found] == [0, 1, 2]
    assert found[1][3] == values
