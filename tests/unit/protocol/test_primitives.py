"""Unsigned varints and tagged fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.primitives import (
    DecodeError,
    EncodeError,
    encode_uvarint,
    read_uvarint,
    skip_tagged_fields,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (0xFFFFFFFF, "ffffffff0f"),
    ],
)
def test_uvarint_bytes(value, encoded):
    assert encode_uvarint(value) == bytes.fromhex(encoded)
    assert read_uvarint(b"x" + bytes.fromhex(encoded) + b"y", 1) == (value, 1 + len(encoded) // 2)


@given(st.integers(0, 0xFFFFFFFF))
def test_uvarint_round_trips(value):
    encoded = encode_uvarint(value)

    assert read_uvarint(encoded, 0) == (value, len(encoded))
    assert read_uvarint(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_uvarint_out_of_range_is_rejected(value):
    with pytest.raises(EncodeError):
        encode_uvarint(value)


def test_skipping_tagged_fields_stops_after_the_last():
    data = b"\x00\x02ab" + b"\x81\x01\x00" + b"rest"

    assert skip_tagged_fields(data, 0, 2, len(data)) == 7


def test_tagged_field_that_exceeds_the_message_is_rejected():
    with pytest.raises(DecodeError, match="5 bytes"):
        skip_tagged_fields(b"\x00\x05abcd", 0, 1, 6)
