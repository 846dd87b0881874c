"""Records in what a fetch returned: all formats, and no aborted transactions."""

from __future__ import annotations

import pytest

from kbroker.batch_errors import CorruptBatchError
from kbroker.client.batches.fetch import RecordSet
from kbroker.client.batches.topic_reader import records_of

pytestmark = pytest.mark.unit

KEY = ("t", 0)
# WIRE: one message of format 1 at offset 7: size, checksum, magic, attributes, time, key, value.
BODY = b"\1\0" + (1234).to_bytes(8, "big") + b"\0\0\0\1k" + b"\0\0\0\2vv"


def old_message(body: bytes = BODY, damage: int = 0) -> bytes:
    import zlib

    checked = (zlib.crc32(body) ^ damage).to_bytes(4, "big") + body
    return (7).to_bytes(8, "big") + len(checked).to_bytes(4, "big") + checked


def fetched(data: bytes) -> RecordSet:
    return RecordSet(memoryview(data), [], 7, 8, 8, 8, 0)


def test_message_of_an_old_format_is_a_record():
    (record,) = records_of(KEY, fetched(old_message()))

    assert record == ("t", 0, 7, 1234, b"k", b"vv", ())


def test_damaged_message_is_an_error():
    with pytest.raises(CorruptBatchError):
        list(records_of(KEY, fetched(old_message(damage=1))))


def test_message_that_is_cut_short_is_left_for_the_next_fetch():
    whole = old_message()

    assert list(records_of(KEY, fetched(b""))) == []
    for end in range(1, len(whole)):
        assert len(list(records_of(KEY, fetched(whole + whole[:end])))) == 1
