"""Messages of formats 0 and 1 in a log of an older broker, read by clients of Fetch 0 to 3."""

from __future__ import annotations

import os

import pytest
from support.storage.log_store import NOW_MS, batch
from support.storage.message_sets import (
    CODECS,
    OldMessage,
    message_bytes,
    messages_in,
    set_bytes,
    wrapper_bytes,
)

from kbroker._ext.record.down_convert import to_message_set

pytestmark = pytest.mark.wire

CORRUPT_MESSAGE = 2


def messages(magic: int, count: int = 6, first: int = 0) -> list[OldMessage]:
    return [
        OldMessage(
            first + n,
            NOW_MS + n if magic else -1,
            None if n % 3 == 0 else b"key %d" % n,
            None if n % 4 == 3 else b"value %d " % n * 9,
        )
        for n in range(count)
    ]


def fetched(tmp_path, data: bytes, magic: int, **wish):
    path = tmp_path / "log"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return to_message_set(fd, len(data), magic=magic, **wish)
    finally:
        os.close(fd)


def as_format(magic: int, rows: list[OldMessage]) -> list[OldMessage]:
    if magic:
        return [row._replace(attributes=0) for row in rows]
    return [row._replace(timestamp=-1, attributes=0) for row in rows]


def stored(magic: int, codec: str, rows: list[OldMessage]) -> bytes:
    number = CODECS[codec]
    return wrapper_bytes(magic, number, rows) if number else set_bytes(magic, rows)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("kept", "asked"), [(0, 0), (0, 1), (1, 1)])
def test_messages_go_out_as_they_lie(tmp_path, codec, kept, asked):
    data = stored(kept, codec, messages(kept))

    assert fetched(tmp_path, data, asked) == (0, data, 6)


@pytest.mark.parametrize("codec", CODECS)
def test_format_1_becomes_format_0_for_its_readers(tmp_path, codec):
    rows = messages(1, first=70)

    error, data, after = fetched(tmp_path, stored(1, codec, rows), 0, from_offset=70)

    assert (error, after) == (0, 76)
    assert as_format(0, messages_in(data)) == as_format(0, rows)
    assert data[16] == 0


def test_messages_below_the_asked_offset_are_left_out(tmp_path):
    rows = messages(1)

    for kind in ("none", "gzip"):
        _, data, _ = fetched(tmp_path, stored(1, kind, rows), 0, from_offset=4)
        assert as_format(0, messages_in(data)) == as_format(0, rows[4:])


def test_messages_and_batches_of_one_log_follow_each_other(tmp_path):
    """A topic whose format was raised in between."""
    old = messages(0, 3)
    new = bytearray(batch([b"new"], key=None))
    new[:8] = (3).to_bytes(8, "big")

    error, data, after = fetched(tmp_path, set_bytes(0, old) + bytes(new), 0)

    assert (error, after) == (0, 4)
    assert [row.value for row in messages_in(data)] == [row.value for row in old] + [b"new"]


def test_shortest_message_is_not_left_out(tmp_path):
    """It is shorter than the header of a batch, and the last of its log."""
    data = message_bytes(0, OldMessage(0, -1, None, None))

    assert fetched(tmp_path, data, 0) == (0, data, 1)


def test_hard_limit_cuts_the_last_message(tmp_path):
    data = set_bytes(1, messages(1))

    error, cut, _ = fetched(tmp_path, data, 1, bytes_max=100, hard=True, bytes_enough=100)

    assert (error, cut) == (0, data[:100])


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_every_flipped_byte_is_corrupt_or_goes_unseen(tmp_path, asked, codec):
    """The offset alone is outside the checksum."""
    data = bytearray(stored(1, codec, messages(1, 2)))
    second = 12 + int.from_bytes(data[8:12], "big")
    for at in range(8, len(data)):
        if second <= at < second + 8:
            continue
        data[at] ^= 0x41
        error, found, _ = fetched(tmp_path, bytes(data), asked)
        data[at] ^= 0x41
        assert error == CORRUPT_MESSAGE or len(found) < len(data), at


def test_every_truncation_ends_with_the_last_whole_message(tmp_path):
    whole = [message_bytes(1, row) for row in messages(1, 3)]
    data = b"".join(whole)
    for size in range(len(data)):
        error, found, _ = fetched(tmp_path, data[:size], 1)
        assert error == 0
        assert data.startswith(found)
        assert len(found) in (0, len(whole[0]), len(whole[0]) + len(whole[1]))
