"""Golden and hostile bytes for the primitive types of ``kbroker._ext.base.wire``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._ext.base import wire

pytestmark = pytest.mark.wire

TRUNCATED, OVERLONG, BAD_LENGTH = 1, 2, 3


def status_of(decode, *args) -> int:
    with pytest.raises(wire.WireFormatError) as caught:
        decode(*args)
    return caught.value.status


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (300, "d804"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_varint_boundary_values_have_these_bytes(value, encoded):
    assert wire.encode_varint(value).hex() == encoded
    assert wire.decode_varint(bytes.fromhex(encoded)) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
        (2**32, "8080808020"),
    ],
)
def test_varlong_boundary_values_have_these_bytes(value, encoded):
    assert wire.encode_varlong(value).hex() == encoded
    assert wire.decode_varlong(bytes.fromhex(encoded)) == (value, len(encoded) // 2)


@pytest.mark.parametrize("encoded", ["", "80", "ffffffff", "80808080"])
def test_uvarint_cut_short_is_truncated(encoded):
    assert status_of(wire.decode_uvarint, bytes.fromhex(encoded)) == TRUNCATED


@pytest.mark.parametrize("encoded", ["ffffffff10", "808080808000", "ffffffffff"])
def test_uvarint_beyond_32_bits_is_overlong(encoded):
    assert status_of(wire.decode_uvarint, bytes.fromhex(encoded)) == OVERLONG


@pytest.mark.parametrize("encoded", ["ffffffffffffffffff02", "80808080808080808080", "ff" * 11])
def test_varlong_beyond_64_bits_is_overlong(encoded):
    assert status_of(wire.decode_varlong, bytes.fromhex(encoded)) == OVERLONG


def test_uvarint_padded_with_zeros_is_accepted():
    assert wire.decode_uvarint(b"\x81\x80\x80\x80\x00") == (1, 5)


@pytest.mark.parametrize(
    ("kind", "value", "encoded"),
    [
        ("string", None, "ffff"),
        ("string", b"", "0000"),
        ("string", b"ab", "00026162"),
        ("bytes", None, "ffffffff"),
        ("bytes", b"ab", "000000026162"),
        ("compact_string", None, "00"),
        ("compact_string", b"", "01"),
        ("compact_string", b"ab", "036162"),
        ("compact_bytes", None, "00"),
        ("compact_bytes", b"x" * 127, "8001" + "78" * 127),
    ],
)
def test_sized_field_has_these_bytes_and_every_truncation_is_typed(kind, value, encoded):
    data = bytes.fromhex(encoded)

    assert wire.encode_sized(kind, value) == data
    assert wire.decode_sized(kind, data + b"rest") == (value, len(data))
    for cut in range(len(data)):
        assert status_of(wire.decode_sized, kind, data[:cut]) == TRUNCATED


@pytest.mark.parametrize(
    ("kind", "encoded", "status"),
    [
        ("string", "fffe", BAD_LENGTH),
        ("string", "8000", BAD_LENGTH),
        ("string", "7fff61", TRUNCATED),
        ("bytes", "80000000", BAD_LENGTH),
        ("bytes", "7fffffff61", TRUNCATED),
        ("compact_string", "818002", BAD_LENGTH),
        ("compact_bytes", "8180808008", BAD_LENGTH),
        ("compact_bytes", "8080808008", TRUNCATED),
        ("compact_bytes", "ffffffff1f", OVERLONG),
    ],
)
def test_sized_field_with_impossible_length_is_typed(kind, encoded, status):
    assert status_of(wire.decode_sized, kind, bytes.fromhex(encoded)) == status


def test_write_without_room_leaves_a_typed_error():
    assert wire.encode_sized("compact_bytes", b"abc", 4) == b"\x04abc"
    with pytest.raises(OverflowError):
        wire.encode_sized("compact_bytes", b"abc", 3)
    with pytest.raises(OverflowError):
        wire.encode_sized("string", b"x" * 32768)


def test_array_count_is_bounded_by_the_bytes_that_follow():
    assert wire.decode_array_count(b"\x00\x00\x00\x02" + b"ab", 1) == (2, 4)
    assert wire.decode_array_count(b"\x03ab", 1, True) == (2, 1)
    assert wire.decode_array_count(b"\xff\xff\xff\xff", 1) == (-1, 4)
    assert wire.decode_array_count(b"\x00", 1, True) == (-1, 1)
    assert status_of(wire.decode_array_count, b"\x00\x00\x00\x03" + b"ab", 1) == TRUNCATED
    assert status_of(wire.decode_array_count, b"\x7f\xff\xff\xff" + b"ab", 8) == TRUNCATED
    assert status_of(wire.decode_array_count, b"\x04ab", 1, True) == TRUNCATED
    assert status_of(wire.decode_array_count, b"\xff\xff\xff\xfe", 1) == BAD_LENGTH


def test_tagged_fields_are_skipped_whole():
    section = bytes.fromhex("020003616263810100")

    assert wire.skip_tags(b"\x00rest") == 1
    assert wire.skip_tags(section + b"rest") == len(section)
    for cut in range(len(section)):
        assert status_of(wire.skip_tags, section[:cut]) == TRUNCATED
    assert status_of(wire.skip_tags, b"\xff\xff\xff\xff\x0f\x00\x00") == TRUNCATED


@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_typed_error(data):
    for decode in (wire.decode_uvarint, wire.decode_varint, wire.decode_varlong, wire.skip_tags):
        try:
            found = decode(data)
        except wire.WireFormatError as err:
            assert err.status in (TRUNCATED, OVERLONG, BAD_LENGTH)
        else:
            end = found if isinstance(found, int) else found[1]
            assert 0 < end <= len(data)
