"""Messages of Kafka 0.7, by bytes that are written out from its documentation."""

from __future__ import annotations

import struct
import zlib

import pytest

from kbroker.client.legacy import InvalidMessage
from kbroker.client.legacy.format_07 import encode_07, read_07, read_07_log
from kbroker.record.compression import GZIP, LZ4, SNAPPY, compress

pytestmark = pytest.mark.unit

# CRC-32 of "123456789", as everyone has it.
DIGITS, CRC = b"123456789", b"\xcb\xf4\x39\x26"
# N bytes, the length before them: magic 0 has 1 + 4 + n, magic 1 one more for its attributes.
MAGIC_0 = b"\0\0\0\x0e" + b"\0" + CRC + DIGITS
MAGIC_1 = b"\0\0\0\x0f" + b"\1\0" + CRC + DIGITS


def test_bytes_are_those_of_the_documentation():
    assert encode_07([DIGITS], magic=0) == MAGIC_0
    assert encode_07([DIGITS]) == MAGIC_1


def test_offsets_are_positions():
    found = list(read_07(MAGIC_0 + MAGIC_1 + MAGIC_0[:-1], 1000))

    assert found == [(1000, 1018, DIGITS, 0, 0), (1018, 1037, DIGITS, 1, 0)]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
def test_compressed_messages_have_the_offset_of_what_contains_them(codec):
    data = encode_07([b"a", b"b"], codec=codec)

    assert (data[4], data[5]) == (1, codec)
    found = list(read_07(MAGIC_1 + data))[1:]
    assert [one.payload for one in found] == [b"a", b"b"]
    assert {one[:2] for one in found} == {(19, 19 + len(data))}


def entry(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def with_codec(codec: int, payload: bytes) -> bytes:
    return entry(bytes((1, codec)) + struct.pack(">I", zlib.crc32(payload)) + payload)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (MAGIC_1[:-1] + b"0", "does not match its checksum"),
        (b"\0\0\0\0" + MAGIC_1, "of 0 bytes"),
        (b"\xff\xff\xff\xff" + MAGIC_1, "of -1 bytes"),
        (entry(b"\2" + MAGIC_1[5:]), "no message of 0.7"),
        (entry(b"\0\0\0\0"), "no message of 0.7"),
        (with_codec(3, b"x"), "unknown codec 3"),
        (with_codec(GZIP, b"x"), "gzip"),
        (with_codec(GZIP, compress(GZIP, encode_07([b"x"], codec=GZIP))), "in compressed ones"),
    ],
)
def test_damage_is_an_error(data, words):
    with pytest.raises(InvalidMessage, match=words):
        list(read_07(data))


def test_every_cut_ends_before_the_message():
    data = MAGIC_0 + MAGIC_1
    for size in range(len(data)):
        assert len(list(read_07(data[:size]))) == (size >= len(MAGIC_0))


def test_codecs_that_0_7_does_not_have_are_refused():
    for wrong in ({"codec": LZ4}, {"codec": GZIP, "magic": 0}):
        with pytest.raises(ValueError, match="no codec"):
            encode_07([b"x"], **wrong)


def test_files_of_a_partition_are_read_by_their_first_offsets(tmp_path):
    (tmp_path / "00000000000.kafka").write_bytes(MAGIC_1 + MAGIC_0)
    (tmp_path / "00000000037.kafka").write_bytes(encode_07([b"x"]))
    (tmp_path / "00000000048.kafka").write_bytes(b"")
    (tmp_path / "other.log").write_bytes(b"?")

    found = list(read_07_log(tmp_path))

    assert [(one.offset, one.payload) for one in found] == [(0, DIGITS), (19, DIGITS), (37, b"x")]
