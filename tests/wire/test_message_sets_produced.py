"""Message sets of formats 0 and 1 become batches of format 2: bytes from clients, and bytes that
nobody should send.
"""

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.storage.message_sets import (
    CODECS,
    LOG_APPEND_TIME,
    OldMessage,
    message_bytes,
    set_bytes,
    with_lz4_checksum,
    wrapper_bytes,
)

from kbroker._ext.record.legacy_records import MessageSetRejected, crc32_of, to_batch
from kbroker.record.batch import RecordBatch
from kbroker.record.compression import GZIP, compress

pytestmark = pytest.mark.wire

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 2, 10, 32
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD = 76, 87

# Format 0: offset 0, 17 bytes, checksum, magic 0, no attributes, key null, value "abc".
GOLDEN_0 = bytes.fromhex("0000000000000000 00000011 43dc3faf 00 00 ffffffff 00000003 616263")
# Format 1: offset 5, 23 bytes, checksum, magic 1, no attributes, time 1, key "k", value null.
GOLDEN_1 = bytes.fromhex(
    "0000000000000005 00000017 192d9713 01 00 0000000000000001 00000001 6b ffffffff"
)

MESSAGES = st.lists(
    st.builds(
        OldMessage,
        offset=st.just(0),
        timestamp=st.integers(-1, 1 << 42),
        key=st.none() | st.binary(max_size=40),
        value=st.none() | st.binary(max_size=300),
        attributes=st.just(0),
    ),
    min_size=1,
    max_size=40,
)


def numbered(messages):
    return [message._replace(offset=index) for index, message in enumerate(messages)]


def records_of(batch):
    return [tuple(record) for record in RecordBatch(bytes(batch)).records()]


def expected_of(magic, messages):
    return [(m.offset, m.timestamp if magic == 1 else -1, m.key, m.value, ()) for m in messages]


def rejection(data, **limits):
    with pytest.raises(MessageSetRejected) as raised:
        to_batch(data, **limits)
    code, text, index = raised.value.args
    assert text
    return code, index


def test_golden_format_0_message_becomes_a_record():
    assert message_bytes(0, OldMessage(0, -1, None, b"abc")) == GOLDEN_0
    assert records_of(to_batch(GOLDEN_0)) == [(0, -1, None, b"abc", ())]


def test_golden_format_1_message_becomes_a_record():
    assert message_bytes(1, OldMessage(5, 1, b"k", None)) == GOLDEN_1
    assert records_of(to_batch(GOLDEN_1)) == [(0, 1, b"k", None, ())]


@given(st.binary(max_size=100))
def test_crc32_agrees_with_zlib(data):
    assert crc32_of(data) == zlib.crc32(data)


def test_crc32_agrees_with_zlib_at_every_length_and_place():
    """Blocks of 64 and 16 bytes and the rest have separate code paths."""
    data = random.Random(7).randbytes(1100)
    for length in range(1000):
        for start in (0, 1, 15):
            piece = data[start : start + length]
            assert crc32_of(piece) == zlib.crc32(piece), (start, length)
    for piece in (bytes(4099), b"\xff" * 4099):
        assert crc32_of(piece) == zlib.crc32(piece)


@given(MESSAGES, st.sampled_from([0, 1]), st.sampled_from(sorted(CODECS)))
def test_message_set_becomes_one_sound_batch_in_order(messages, magic, codec):
    messages = numbered(messages)
    if codec == "none":
        data = set_bytes(magic, messages)
    else:
        data = wrapper_bytes(magic, CODECS[codec], messages)

    batch = RecordBatch(bytes(to_batch(data)))

    summary = batch.check()
    assert [tuple(r) for r in batch.records()] == expected_of(magic, messages)
    assert summary.attributes == CODECS[codec]
    stamps = [m.timestamp if magic == 1 else -1 for m in messages]
    assert (summary.first_timestamp, summary.max_timestamp) == (stamps[0], max(stamps))
    assert (summary.producer_id, summary.producer_epoch, summary.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("broken", [True, False])
def test_lz4_of_format_0_is_read_with_either_header_checksum(broken):
    messages = numbered([OldMessage(0, -1, b"k", b"v" * 100)] * 5)
    data = wrapper_bytes(0, CODECS["lz4"], messages, broken_lz4=broken)
    assert records_of(to_batch(data)) == expected_of(0, messages)


def test_lz4_of_format_1_needs_the_right_header_checksum():
    data = wrapper_bytes(1, CODECS["lz4"], [OldMessage(0, 1, b"k", b"v")], broken_lz4=True)
    assert rejection(data) == (CORRUPT_MESSAGE, -1)


def test_offsets_of_the_client_are_ignored():
    messages = [OldMessage(0, -1, b"k", b"%d" % n) for n in range(3)]
    assert [r[0] for r in records_of(to_batch(set_bytes(0, messages)))] == [0, 1, 2]
    assert [r[0] for r in records_of(to_batch(wrapper_bytes(0, GZIP, messages)))] == [0, 1, 2]


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (0, 1, 1), (5, 4)])
def test_offsets_that_do_not_rise_in_a_wrapper_of_format_1_are_rejected(offsets):
    messages = [OldMessage(offset, 1, b"k", b"v") for offset in offsets]
    at = next(n for n, o in enumerate(offsets) if o <= (offsets[n - 1] if n else -1))
    assert rejection(wrapper_bytes(1, GZIP, messages)) == (INVALID_RECORD, at)
    assert len(records_of(to_batch(wrapper_bytes(0, GZIP, messages)))) == len(offsets)


def test_messages_of_both_formats_in_one_set_are_taken():
    data = message_bytes(0, OldMessage(0, -1, b"a", b"1")) + message_bytes(
        1, OldMessage(1, 77, b"b", b"2")
    )
    assert [r[1:4] for r in records_of(to_batch(data))] == [(-1, b"a", b"1"), (77, b"b", b"2")]


@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_byte_and_every_cut_is_rejected_as_corrupt(magic):
    data = set_bytes(magic, numbered([OldMessage(0, 5, b"key", b"value")] * 2))
    for position in range(8, len(data)):
        if len(data) // 2 <= position < len(data) // 2 + 8:
            continue  # the second offset
        damaged = bytearray(data)
        damaged[position] ^= 0x20
        assert rejection(damaged)[0] in (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE)
    for size in range(len(data)):
        if size != len(data) // 2:
            assert rejection(data[:size]) == (CORRUPT_MESSAGE, -1)


def with_crc(entry):
    return entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]


def test_lengths_that_do_not_add_up_are_rejected_despite_the_checksum():
    data = message_bytes(0, OldMessage(0, -1, b"key", b"value"))
    for position, value in ((18, -2), (18, 4), (18, 1 << 30), (25, -1), (25, 6), (25, -7)):
        damaged = bytearray(data)
        struct.pack_into(">i", damaged, position, value)
        assert rejection(with_crc(bytes(damaged))) == (CORRUPT_MESSAGE, -1)


def test_wrapper_in_a_wrapper_is_rejected():
    nested = wrapper_bytes(1, GZIP, [OldMessage(0, 1, b"k", b"v")])
    data = message_bytes(1, OldMessage(0, 1, None, compress(GZIP, nested), GZIP))
    assert rejection(data) == (INVALID_RECORD, 0)


def test_wrapper_among_other_messages_is_rejected():
    plain = message_bytes(0, OldMessage(0, -1, b"k", b"v"))
    wrapper = wrapper_bytes(0, GZIP, [OldMessage(0, -1, b"k", b"v")])
    for data in (plain + wrapper, wrapper + plain, wrapper + wrapper):
        assert rejection(data) == (INVALID_RECORD, -1)


def test_inner_message_of_another_format_is_rejected():
    inner = message_bytes(0, OldMessage(0, -1, b"k", b"v"))
    data = message_bytes(1, OldMessage(0, 1, None, compress(GZIP, inner), GZIP))
    assert rejection(data) == (INVALID_RECORD, 0)


def test_corrupt_inner_message_is_rejected():
    inner = bytearray(set_bytes(0, numbered([OldMessage(0, -1, b"k", b"v")] * 2)))
    inner[-1] ^= 1
    data = message_bytes(0, OldMessage(1, -1, None, compress(GZIP, inner), GZIP))
    assert rejection(data) == (CORRUPT_MESSAGE, -1)
    cut = message_bytes(0, OldMessage(1, -1, None, compress(GZIP, inner[:-1]), GZIP))
    assert rejection(cut) == (CORRUPT_MESSAGE, -1)


@pytest.mark.parametrize("value", [None, b"", compress(GZIP, b"")])
def test_wrapper_without_messages_is_rejected(value):
    data = message_bytes(0, OldMessage(0, -1, None, value, GZIP))
    assert rejection(data)[0] in (INVALID_RECORD, CORRUPT_MESSAGE)


@pytest.mark.parametrize("codec", [4, 5, 6, 7])
def test_codec_that_the_old_formats_lack_is_rejected(codec):
    data = message_bytes(1, OldMessage(0, 1, None, b"x" * 20, codec))
    assert rejection(data) == (UNSUPPORTED_COMPRESSION_TYPE, -1)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_bomb_is_rejected_within_the_budget(codec):
    inner = message_bytes(0, OldMessage(0, -1, None, bytes(8 << 20)))
    packed = compress(CODECS[codec], inner)
    data = message_bytes(0, OldMessage(0, -1, None, packed, CODECS[codec]))
    assert rejection(data, decompressed_max=1 << 20) == (MESSAGE_TOO_LARGE, -1)


def test_message_larger_than_the_topic_takes_is_rejected():
    data = set_bytes(
        0, numbered([OldMessage(0, -1, None, b"v"), OldMessage(0, -1, None, b"v" * 9)])
    )
    assert rejection(data, message_bytes_max=34) == (MESSAGE_TOO_LARGE, -1)
    assert to_batch(data, message_bytes_max=35)


def test_producer_may_not_set_log_append_time():
    data = message_bytes(1, OldMessage(0, 1, b"k", b"v", LOG_APPEND_TIME))
    assert rejection(data) == (INVALID_TIMESTAMP, 0)


def test_timestamps_too_far_apart_are_rejected():
    messages = numbered([OldMessage(0, -(1 << 63), b"k", b"v"), OldMessage(0, 1, b"k", b"v")])
    assert rejection(set_bytes(1, messages)) == (INVALID_TIMESTAMP, 1)


def test_set_is_compressed_as_the_topic_asks():
    messages = numbered([OldMessage(0, -1, b"k", b"v" * 50)] * 20)
    for codec in range(5):
        batch = to_batch(wrapper_bytes(0, GZIP, messages), codec=codec)
        assert RecordBatch(bytes(batch)).check().attributes == codec
        assert records_of(batch) == expected_of(0, messages)


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected_or_taken_but_never_more(data):
    try:
        batch = to_batch(data)
    except MessageSetRejected:
        return
    RecordBatch(bytes(batch)).check()


def test_mutated_sets_never_make_an_unsound_batch():
    chance = random.Random(5)
    messages = numbered([OldMessage(0, 5, b"key", b"value" * 9)] * 4)
    seeds = [set_bytes(0, messages), set_bytes(1, messages)]
    seeds += [wrapper_bytes(magic, codec, messages) for magic in (0, 1) for codec in (1, 2, 3)]
    for _ in range(3000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        mutated = bytes(data)
        try:
            batch = to_batch(with_crc(mutated) if len(mutated) >= 26 else mutated)
        except MessageSetRejected:
            continue
        RecordBatch(bytes(batch)).check()


def test_lz4_checksum_twin_knows_the_described_one():
    frame = compress(CODECS["lz4"], b"abc" * 100)
    assert with_lz4_checksum(frame, broken=False) == frame
    assert with_lz4_checksum(frame, broken=True) != frame
