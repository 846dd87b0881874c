"""The effect of compaction on messages of formats 0 and 1, written by another broker."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from support.storage.compaction import DAY_MS, compact
from support.storage.log_store import NOW_MS, LogStore, append, batch
from support.storage.message_sets import (
    CODECS,
    LOG_APPEND_TIME,
    OldMessage,
    message_bytes,
    set_bytes,
    wrapper_bytes,
)
from support.storage.old_logs import adopted, stored_entries, stored_messages

from kbroker._ext.record.down_convert import to_message_set
from kbroker.record.compression import GZIP, compress
from kbroker.storage.cleaning.cleaner import UncleanableError
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.unit

CONFIG = {"cleanup.policy": ("compact",), "index.interval.bytes": 150}


def messages(magic: int, first: int, *pairs: tuple[bytes | None, bytes | None]) -> list[OldMessage]:
    return [
        OldMessage(first + n, NOW_MS - 10 * (first + n) if magic else -1, key, value)
        for n, (key, value) in enumerate(pairs)
    ]


def stored(magic: int, codec: int, rows: list[OldMessage]) -> bytes:
    return wrapper_bytes(magic, codec, rows) if codec else set_bytes(magic, rows)


def open_log(tmp_path: Path, *segments: tuple[int, bytes], end: int) -> PartitionLog:
    """The segments, followed by an empty active one."""
    store = LogStore(tmp_path)
    adopted(store, {**dict(segments), end: b""})
    return store.open(**CONFIG)


def made_at(log: PartitionLog, base: int, now_ms: int) -> None:
    path = next(s.path(".log") for s in log.segments if s.base_offset == base)
    os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_that_are_kept_are_as_they_were(tmp_path, magic, codec):
    first = messages(magic, 70, (b"a", b"1"), (b"b", b"2" * 90), (b"c", b"3"), (b"a", b"4"))
    second = messages(magic, 74, (b"c", b"5"), (b"d", b"6"))
    data = stored(magic, codec, first) + stored(magic, codec, second)
    log = open_log(tmp_path, (70, data), end=76)

    stats = compact(log, first_dirty=70, now_ms=NOW_MS).stats

    assert stored_messages(log) == [first[1], first[3], *second]
    assert (stats.messages_read, stats.messages_kept) == (6, 4)
    found = stored_entries(log)
    assert {(entry.magic, entry.codec) for entry in found} == {(magic, codec)}
    assert len(found) == (2 if codec else 4)
    assert found[-1].data == data[-len(found[-1].data) :]  # nothing of it went


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_ends_with_the_last_message_that_is_kept(tmp_path, magic):
    rows = messages(magic, 0, (b"a", b"1"), (b"b", b"2"), (b"b", b"3"), (b"a", b"4"))
    later = messages(magic, 4, (b"a", b"5"))
    log = open_log(tmp_path, (0, wrapper_bytes(magic, GZIP, rows) + set_bytes(magic, later)), end=5)

    compact(log, now_ms=NOW_MS)

    wrapper, last = stored_entries(log)
    assert wrapper.records == [rows[2]]
    assert struct.unpack_from(">q", wrapper.data) == (2,)
    assert last.records == later
    if magic:
        assert struct.unpack_from(">q", wrapper.data, 18) == (rows[2].timestamp,)


def test_wrapper_of_append_time_keeps_its_time(tmp_path):
    rows = messages(1, 0, (b"a", b"1"), (b"a", b"2"))
    packed = compress(GZIP, set_bytes(1, rows))
    wrapper = OldMessage(1, NOW_MS + 5, None, packed, GZIP | LOG_APPEND_TIME)
    log = open_log(tmp_path, (0, message_bytes(1, wrapper)), end=2)

    compact(log, now_ms=NOW_MS)

    (found,) = stored_entries(log)
    assert found.append_time
    assert found.records == [rows[1]._replace(timestamp=NOW_MS + 5)]


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_without_a_message_left_goes(tmp_path, magic):
    rows = messages(magic, 0, (b"a", b"1"), (b"b", b"2"))
    later = messages(magic, 2, (b"a", b"3"), (b"b", b"4"))
    data = wrapper_bytes(magic, GZIP, rows) + wrapper_bytes(magic, GZIP, later)
    log = open_log(tmp_path, (0, data), end=4)

    compact(log, now_ms=NOW_MS)

    assert [entry.records for entry in stored_entries(log)] == [later]


def test_formats_of_one_log_are_compacted_together(tmp_path):
    """A topic whose format was raised twice: the keys are the same."""
    oldest = messages(0, 0, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    older = messages(1, 3, (b"a", b"4"), (b"d", b"5"))
    new = bytearray(batch([b"6"], key=b"b"))
    new[:8] = (5).to_bytes(8, "big")
    data = set_bytes(0, oldest) + wrapper_bytes(1, GZIP, older) + bytes(new)
    log = open_log(tmp_path, (0, data), end=6)
    append(log, batch([b"7"], key=b"d"))
    log.roll(NOW_MS)
    log.publish()

    compact(log, now_ms=NOW_MS)

    assert [(m.offset, m.key, m.value) for m in stored_messages(log)] == [
        (2, b"c", b"3"),
        (3, b"a", b"4"),
        (5, b"b", b"6"),
        (6, b"d", b"7"),
    ]


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize(
    ("tombstone_at", "clean_at", "goes"),
    [
        (NOW_MS - 3 * DAY_MS, NOW_MS - DAY_MS - 1, True),
        (NOW_MS - 3 * DAY_MS, NOW_MS - 2 * DAY_MS - 1, False),
        (NOW_MS - 1000, NOW_MS + 9 * DAY_MS, False),  # a clock that was wrong for a while
    ],
)
def test_tombstone_stays_for_delete_retention_below_the_clean_end(
    tmp_path, codec, tombstone_at, clean_at, goes
):
    """These formats have no delete horizon; as in Kafka, the age of segments is used instead."""
    rows = messages(1, 0, (b"a", b"1"), (b"a", None))
    later = messages(1, 2, (b"b", b"1"))
    log = open_log(tmp_path, (0, stored(1, codec, rows)), (2, set_bytes(1, later)), end=3)
    made_at(log, 0, tombstone_at)
    made_at(log, 2, clean_at)

    end = compact(log, now_ms=NOW_MS, segment_bytes=1).end
    assert stored_messages(log) == [rows[1], *later]  # it was not in the clean section yet

    append(log, batch([b"2"], key=b"c"))
    log.roll(NOW_MS)
    log.publish()
    compact(log, first_dirty=end, now_ms=NOW_MS, segment_bytes=1)

    assert (rows[1] in stored_messages(log)) is not goes


def test_keyless_messages_are_dropped_and_counted(tmp_path):
    rows = messages(0, 0, (None, b"1"), (b"a", b"2"), (None, b"3"))
    log = open_log(tmp_path, (0, set_bytes(0, rows[:1]) + wrapper_bytes(0, GZIP, rows[1:])), end=3)

    assert compact(log, now_ms=NOW_MS).stats.keyless == 2
    assert stored_messages(log) == [rows[1]]


def test_map_that_is_too_small_is_filled_in_several_passes(tmp_path):
    rows = messages(1, 0, *[(b"k%d" % (n % 20), b"%d" % n) for n in range(40)])
    data = b"".join(stored(1, GZIP * (n % 8 // 4), rows[n : n + 4]) for n in range(0, 40, 4))
    log = open_log(tmp_path, (0, data), end=40)
    ends = [0]
    while ends[-1] < 40:
        ends.append(compact(log, first_dirty=ends[-1], now_ms=NOW_MS, map_bytes=24 * 9).end)

    assert len(ends) > 4
    assert stored_messages(log) == rows[20:]


def test_messages_larger_and_smaller_than_what_is_read_at_a_time(tmp_path):
    """The smallest entry is shorter than the header of a batch."""
    rows = messages(0, 0, *[(b"", b"")] * 300, (b"b", b"v" * 50_000), (b"", b""))
    log = open_log(tmp_path, (0, set_bytes(0, rows)), end=302)

    compact(log, now_ms=NOW_MS, read_bytes=10)

    assert stored_messages(log) == rows[300:]


@pytest.mark.parametrize("codec", [0, GZIP])
@pytest.mark.parametrize("asked", [0, 1])
def test_readers_of_old_formats_read_what_is_left(tmp_path, codec, asked):
    rows = messages(1, 0, *[(b"%d" % (n % 3), b"%d" % n) for n in range(9)])
    data = stored(1, codec, rows[:4]) + stored(1, codec, rows[4:8]) + stored(1, codec, rows[8:])
    log = open_log(tmp_path, (0, data), end=9)
    compact(log, now_ms=NOW_MS)
    path = Path(log.segments[0].path(".log"))

    with path.open("rb") as file:
        error, found, after = to_message_set(file.fileno(), path.stat().st_size, magic=asked)

    assert (error, after) == (0, 9)
    (tmp_path / "read").mkdir()
    expected = [row if asked else row._replace(timestamp=-1) for row in rows[6:]]
    reader = open_log(tmp_path / "read", (0, found), end=9)
    assert stored_messages(reader) == expected
    by_time = list_offsets(log, rows[7].timestamp)
    assert (by_time["offset"], by_time["timestamp"]) == (6, rows[6].timestamp)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


PAIR = ((b"a", b"1"), (b"a", b"2"))
INNER = messages(0, 0, *PAIR)
DAMAGED = {
    "checksum": (flipped(set_bytes(0, INNER), 22), "checksum of the message at offset 0"),
    "cut short": (set_bytes(0, INNER)[:-3], "no complete batch at position 28"),
    "nested": (
        wrapper_bytes(0, GZIP, [INNER[0], OldMessage(1, -1, None, b"x", GZIP)]),
        "messages in the wrapper at offset 1",
    ),
    "offsets fall": (
        wrapper_bytes(0, GZIP, [INNER[1], INNER[0], INNER[1]]),
        "messages in the wrapper at offset 1",
    ),
    "other end": (
        message_bytes(0, OldMessage(9, -1, None, compress(GZIP, set_bytes(0, INNER)), GZIP)),
        "messages in the wrapper at offset 9",
    ),
    "negative": (
        message_bytes(
            1, OldMessage(0, NOW_MS, None, compress(GZIP, set_bytes(1, messages(1, 0, *PAIR))), 1)
        ),
        "messages in the wrapper at offset 0",
    ),
    "not compressed": (
        message_bytes(0, OldMessage(1, -1, None, b"no gzip", GZIP)),
        "offset 1: a compressed message cannot be decompressed",
    ),
    "bomb": (
        wrapper_bytes(0, GZIP, [OldMessage(1, -1, b"a", b"1" * 5000)]),
        "offset 1: the messages decompress to more than 1000 bytes",
    ),
    "empty": (
        message_bytes(0, OldMessage(1, -1, None, compress(GZIP, b""), GZIP)),
        "messages in the wrapper at offset 1",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_message_is_named_and_nothing_is_changed(tmp_path, kind):
    data, words = DAMAGED[kind]
    log = open_log(tmp_path, (0, set_bytes(0, INNER)), end=20)
    path = Path(log.segments[0].path(".log"))
    path.write_bytes(data)
    log.segments[0].size = len(data)

    with pytest.raises(UncleanableError, match=rf"\.log: .*{words}"):
        compact(log, now_ms=NOW_MS, decompressed_bytes_max=1000)

    assert path.read_bytes() == data
    assert not [name for name in os.listdir(log.path) if name.endswith((".cleaned", ".swap"))]
