"""Messages of formats 0 and 1 as objects, against the reference in plain Python."""

from __future__ import annotations

import mmap
import random
import socket
import struct

import pytest
from support.storage.message_sets import (
    OldMessage,
    message_bytes,
    messages_in,
    set_bytes,
    wrapper_bytes,
)

from kbroker._ext.legacy import old_messages
from kbroker._ext.legacy.old_messages import encode_message_set, read_messages
from kbroker.legacy import InvalidMessage, Message, MessageAndOffset, MessageSet
from kbroker.record.compression import GZIP, LZ4, SNAPPY, ZSTD

pytestmark = pytest.mark.unit

CODECS = (0, GZIP, SNAPPY, LZ4)
ROWS = ((b"k", b"v"), (None, b"v2"), (b"gone", None), (b"", b""), (None, None), (b"K" * 300, b"V"))


def rows_of(found) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.message.key, one.message.payload) for one in found]


def messages(rows=ROWS) -> list[Message]:
    return [Message(value, key) for key, value in rows]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_encoded_is_what_the_reference_reads(codec):
    data = encode_message_set(messages(), codec)

    found = [(m.offset, m.timestamp, m.key, m.value) for m in messages_in(data)]
    assert found == [(n, -1, key, value) for n, (key, value) in enumerate(ROWS)]


def test_uncompressed_set_has_the_bytes_of_the_reference():
    """WIRE: offset, size, CRC-32 of what follows, format, attributes, key, value."""
    expected = set_bytes(0, [OldMessage(n, -1, *row) for n, row in enumerate(ROWS)])

    assert encode_message_set(messages()) == expected


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_set_is_one_message_with_the_last_offset(codec):
    data = encode_message_set(messages(), codec)

    (wrapper,) = MessageSet(data).shallow()
    assert (wrapper.offset, wrapper.message.compression_codec) == (len(ROWS) - 1, codec)
    assert wrapper.message.key is None
    assert rows_of(MessageSet(data)) == [(n, *row) for n, row in enumerate(ROWS)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_both_formats_are_read(magic, codec):
    written = [OldMessage(40 + n, 1000 + n if magic else -1, *row) for n, row in enumerate(ROWS)]
    data = wrapper_bytes(magic, codec, written) if codec else set_bytes(magic, written)

    found = list(MessageSet(data))

    assert rows_of(found) == [(m.offset, m.key, m.value) for m in written]
    assert [one.message.timestamp for one in found] == [m.timestamp for m in written]


def test_other_codecs_are_an_error():
    with pytest.raises(ValueError, match="no codec 4"):
        encode_message_set(messages(), ZSTD)


def test_every_cut_leaves_the_messages_before_it():
    data = encode_message_set(messages())
    ends = [0]
    for row in ROWS:
        ends.append(ends[-1] + len(message_bytes(0, OldMessage(0, -1, *row))))

    for size in range(len(data) + 1):
        whole = sum(end <= size for end in ends[1:])
        cut = MessageSet(data[:size])
        assert (len(cut), cut.valid_bytes) == (whole, ends[whole])


def test_message_with_a_wrong_checksum_is_there_but_cannot_be_read():
    """As in 0.8, iterating goes on; but the bytes of a damaged message are never handed out."""
    data = bytearray(encode_message_set(messages()))
    data[26] ^= 1  # the key of the first message

    first, *others = MessageSet(data)

    assert not first.message.is_valid
    for read in (lambda: first.message.key, lambda: first.message.payload):
        with pytest.raises(InvalidMessage, match="checksum"):
            read()
    assert first != first
    assert rows_of(others) == [(n, *row) for n, row in enumerate(ROWS)][1:]


@pytest.mark.parametrize("size", [-1, 0, 13, 0x7FFFFFFF])
def test_impossible_size_is_an_error_and_a_large_one_is_incomplete(size):
    data = struct.pack(">qi", 3, size) + bytes(40)

    if size > 13:
        assert list(MessageSet(data)) == []
    else:
        with pytest.raises(InvalidMessage, match="offset 3"):
            list(MessageSet(data))


def test_batch_of_format_2_is_named():
    entry = bytearray(message_bytes(0, OldMessage(9, -1, b"k", b"v")))
    entry[16] = 2
    with pytest.raises(InvalidMessage, match="offset 9 is of a format above 1"):
        list(MessageSet(bytes(entry)))


def test_flipped_bits_raise_nothing_but_the_error_for_them():
    chosen = random.Random(8)
    for codec in CODECS:
        data = encode_message_set(messages(), codec)
        for _ in range(300):
            damaged = bytearray(data)
            damaged[chosen.randrange(len(damaged))] ^= 1 << chosen.randrange(8)
            try:
                found = list(MessageSet(damaged))
            except InvalidMessage:
                continue
            assert sum(one.message.is_valid for one in found) < len(ROWS) or found[0].offset >= 0


def test_wrapper_in_a_wrapper_is_an_error():
    inner = encode_message_set(messages(), GZIP)
    from kbroker.record.compression import compress

    outer = message_bytes(0, OldMessage(5, -1, None, compress(GZIP, inner), GZIP))
    with pytest.raises(InvalidMessage, match="offset 5"):
        list(MessageSet(outer))


def test_bomb_is_an_error():
    with pytest.raises(InvalidMessage, match="more than 1000 bytes"):
        read_messages(encode_message_set([Message(bytes(5000))], GZIP), decompressed_max=1000)


def test_entries_are_read_piece_by_piece(monkeypatch):
    data = encode_message_set(messages())
    found, position = read_messages(data, 0, 2)
    rest, end = read_messages(data, position)

    assert (len(found), len(rest), end) == (2, len(ROWS) - 2, len(data))
    monkeypatch.setattr("kbroker.legacy.message_set._ENTRIES", 1)
    assert len(MessageSet(data)) == len(ROWS)
    with pytest.raises(IndexError):
        read_messages(data, -1)
    assert read_messages(data, len(data) + 9) == ([], len(data) + 9)


def test_set_over_a_mapped_file_is_written_to_a_socket(tmp_path):
    data = encode_message_set(messages())
    path = tmp_path / "0.log"
    path.write_bytes(data)
    ours, theirs = socket.socketpair()
    with open(path, "rb") as file, ours, theirs:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found = MessageSet(mapped)
            assert rows_of(found) == [(n, *row) for n, row in enumerate(ROWS)]
            assert found.write_to(ours) == len(data)
            assert found.write_to(ours, 4, 6) == 6
        assert theirs.recv(1 << 16, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == data + data[4:10]


def test_messages_have_what_those_of_0_8_have():
    message = Message(b"payload", b"key")

    assert (message.has_key, message.is_null, message.is_valid) == (True, False, True)
    assert message.size == len(message_bytes(0, OldMessage(0, -1, b"key", b"payload"))) - 12
    (read,) = MessageSet(encode_message_set([message]))
    assert read.message.checksum == message.checksum
    assert read == MessageAndOffset(message, 0)
    assert hash(read.message) == hash(message)
    message_again, offset = read
    assert (message_again, offset, read.next_offset) == (message, 0, 1)
    assert Message(None).is_null
    assert repr(message) == "Message(payload=b'payload', key=b'key')"
    assert Message(b"x") != Message(b"y")
    assert Message(b"x") != b"x"


def test_sets_are_made_of_messages_and_bytes():
    made = MessageSet.of([b"a", Message(b"b", b"k")], "gzip")

    assert rows_of(made) == [(0, None, b"a"), (1, b"k", b"b")]
    assert made.size_in_bytes == len(made.data) == made.valid_bytes
    assert made == MessageSet(bytes(made.data))
    assert encode_message_set([], GZIP) == b""
    assert old_messages.OldMessage is Message
