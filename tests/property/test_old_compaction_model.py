"""Random logs with messages of formats 0, 1 and batches of format 2, compacted repeatedly, compared
with a list.

Whatever the formats and codecs: after a pass each key of the clean section has its last message
alone, under its own offset, with its own bytes and time, in the format and codec it had; what is
dropped was superseded, or a tombstone whose time had passed. A restart finds the same. A failure
prints its seed.
"""

from __future__ import annotations

import os
import random
import zlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.running.grids import some_of
from support.storage.compaction import CONFIG as COMPACTED
from support.storage.compaction import Compaction, cleanable_end
from support.storage.log_store import NOW_MS, LogStore, append
from support.storage.message_sets import CODECS, OldMessage, message_bytes, set_bytes, wrapper_bytes
from support.storage.old_logs import adopted, entries, stored_entries

from kbroker._ext.base.offset_map import OffsetMap
from kbroker._ext.log.batch_cleaner import BatchCleaner
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, compress
from kbroker.storage.cleaning.cleaned_transactions import CleanedTransactions
from kbroker.storage.cleaning.cleaner_policy import RELATIVE_OFFSET_MAX
from kbroker.storage.log.log_lookup import list_offsets

pytestmark = pytest.mark.property

RETENTION_MS = 10_000
CONFIG = {**COMPACTED, "segment.bytes": 4000}


class Model:
    """A log from another broker, its original content, and the end of its compacted part."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.written: dict[int, OldMessage] = {}
        self.forms: dict[int, tuple[int, int]] = {}  # offset -> format, codec
        self.now_ms = NOW_MS
        self.clean_end = 0
        self.store = LogStore(path)
        segments = self.segments()
        adopted(self.store, segments, clean=self.random.random() < 0.5)
        for base in segments:
            self.touch(base)
            self.now_ms += self.random.choice([10, 1000, RETENTION_MS])
        self.log = self.store.open(**CONFIG)
        assert self.log.log_end_offset == len(self.written)

    def segments(self) -> dict[int, bytes]:
        made: dict[int, bytes] = {}
        offset = 0
        for _ in range(self.random.randint(2, 6)):
            base, data = offset, b""
            for _ in range(self.random.randint(1, 12)):
                entry, offset = self.entry(offset)
                data += entry
            made[base] = data
        return made

    def entry(self, offset: int) -> tuple[bytes, int]:
        draw = self.random
        magic = draw.choice([0, 1, 1, 2])
        codec = draw.choice([0, *CODECS.values(), *([4] if magic == 2 else [])])
        rows = [self.message(magic, offset + n) for n in range(draw.randint(1, 5))]
        for row in rows:
            self.written[row.offset] = row
            self.forms[row.offset] = magic, codec
        if magic == 2:
            data = bytearray(in_batch(rows, codec))
            data[:8] = offset.to_bytes(8, "big")
        else:
            data = wrapper_bytes(magic, codec, rows) if codec else set_bytes(magic, rows)
        return bytes(data), offset + len(rows)

    def message(self, magic: int, offset: int) -> OldMessage:
        draw = self.random
        size = draw.choice([0, 1, 30, 400])
        return OldMessage(
            offset,
            self.now_ms - draw.randint(0, 1000) if magic else -1,
            b"key-%d" % draw.randint(0, 14),
            None if draw.random() < 0.25 else bytes([draw.randrange(256)]) * size,
        )

    def touch(self, base: int) -> None:
        path = self.store.path(f"{base:020}.log")
        os.utime(path, ns=(self.now_ms * 1_000_000,) * 2)

    def grow(self) -> None:
        row = self.message(2, self.log.log_end_offset)
        assert append(self.log, in_batch([row], 0), self.now_ms) == row.offset
        self.written[row.offset] = row
        self.forms[row.offset] = 2, 0
        base = self.log.segments[-1].base_offset
        assert self.log.roll(self.now_ms) is None
        self.log.publish()
        self.touch(base)

    def compact(self) -> None:
        self.now_ms += self.random.choice([10, 1000, RETENTION_MS])
        self.grow()
        pass_ = Compaction(
            self.log,
            first_dirty=self.clean_end,
            now_ms=self.now_ms,
            segment_bytes=self.random.choice([1, 2000, 100_000]),
            map_bytes=self.random.choice([24 * 12, 1 << 16]),
            read_bytes=self.random.choice([1, 1 << 16]),
            delete_retention_ms=RETENTION_MS,
        )
        if self.random.random() < 0.3:
            pass_.crash(self.random)
            self.log = self.store.restart(clean=False, **CONFIG)
        else:
            first, before = self.clean_end, self.stored()
            pass_.run()
            assert pass_.end > first
            self.clean_end = pass_.end
            self.check_compact(before)
        self.check()

    # ---- what must be true ----

    def stored(self) -> dict[int, OldMessage]:
        found = {}
        for entry in stored_entries(self.log):
            for row in entry.records:
                found[row.offset] = row._replace(attributes=0)
                assert self.forms[row.offset] == (entry.magic, entry.codec)
                assert found[row.offset] == self.written[row.offset]
        return found

    def last_of_keys(self, end: int) -> dict[bytes | None, int]:
        return {self.written[o].key: o for o in sorted(self.written) if o < end}

    def check(self) -> None:
        found = self.stored()
        for offset in self.last_of_keys(RELATIVE_OFFSET_MAX).values():
            assert offset in found or self.written[offset].value is None, offset

    def check_compact(self, before: dict[int, OldMessage]) -> None:
        found = self.stored()
        last = self.last_of_keys(self.clean_end)
        for offset, row in found.items():
            assert offset >= self.clean_end or last[row.key] == offset, offset
        # Keys in a pass's map count even if the map was full before the batch was complete.
        last = self.last_of_keys(RELATIVE_OFFSET_MAX)
        for offset in before.keys() - found.keys():
            superseded = offset != last[self.written[offset].key]
            assert superseded or self.written[offset].value is None, offset

    def finish(self) -> None:
        while self.clean_end < cleanable_end(self.log):
            self.compact()
        found = self.stored()
        self.log = self.store.restart(clean=self.random.random() < 0.5, **CONFIG)
        assert self.stored() == found
        assert self.log.log_end_offset == len(self.written)
        for offset, row in found.items():
            if self.forms[offset][0]:
                response = list_offsets(self.log, row.timestamp)
                expected = min(o for o, r in found.items() if r.timestamp >= row.timestamp)
                assert response["offset"] == expected


def in_batch(rows: list[OldMessage], codec: int) -> bytes:
    builder = BatchBuilder(codec)
    for row in rows:
        builder.append(row.value, row.key, row.timestamp)
    return bytes(builder.build())


@pytest.mark.parametrize("seed", some_of(range(40), range(12)))
def test_old_formats_compacted_at_random_equal_the_list(tmp_path, seed):
    model = Model(tmp_path, seed)
    try:
        for _ in range(6):
            model.compact()
        model.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        model.store.stop(clean=False)


def test_seeds_reach_what_they_are_for(tmp_path):
    """Wrappers that lose some messages and not others, and removed tombstones."""
    cut = tombstones = 0
    for seed in range(8):
        model = Model(tmp_path / str(seed), seed)
        for _ in range(6):
            model.compact()
        found = model.stored()
        for entry in stored_entries(model.log):
            offsets = [row.offset for row in entry.records]
            if entry.magic < 2 and entry.codec and offsets:
                cut += offsets[-1] - offsets[0] + 1 > len(offsets)
        last = model.last_of_keys(model.clean_end)
        tombstones += sum(o not in found and model.forms[o][0] < 2 for o in last.values())
        model.store.stop(clean=False)
    assert cut
    assert tombstones


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_around_anything_is_compacted_or_named(tmp_path, magic):
    """Its own checksum is valid, its content is not: nothing after its bytes is read, and the
    result can be read.
    """
    draw = random.Random(magic)
    outcomes = {"compacted": 0, "named": 0}
    with (tmp_path / "out").open("w+b", buffering=0) as out:
        for _ in range(3000):
            packed = compress(GZIP, damaged_set(draw, magic))
            data = message_bytes(magic, OldMessage(2, -1, None, packed, GZIP))
            found = OffsetMap(1 << 12, 0.9)
            cleaner = BatchCleaner(
                found, CleanedTransactions(()), nullcontext(), now_ms=NOW_MS,
                delete_retention_ms=RETENTION_MS, decompressed_max=1 << 20,
            )  # fmt: skip
            try:
                assert cleaner.index_batches(data, 0) == len(data)
                assert cleaner.clean_batches(data) == len(data)
            except ValueError:
                outcomes["named"] += 1
                continue
            size = cleaner.write_output(out.fileno(), 0)
            outcomes["compacted"] += 1
            for entry in entries(os.pread(out.fileno(), size, 0)):
                assert [row.offset for row in entry.records][-1] <= 2
    assert min(outcomes.values()) > 200, outcomes


def damaged_set(draw: random.Random, magic: int) -> bytes:
    """Three messages with a few wrong bytes; often with a valid checksum."""
    rows = [
        OldMessage(n, -1, b"k%d" % draw.randrange(2), b"v" * draw.randrange(9)) for n in range(3)
    ]
    data = bytearray(set_bytes(magic, rows))
    for _ in range(draw.randint(0, 2)):
        at = draw.choice([draw.randrange(len(data)), 7, 8, 11, 16, 17])
        data[at] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    if draw.random() < 0.2:
        del data[draw.randrange(len(data)) :]
    if draw.random() < 0.5 and len(data) > 30:
        checksum = zlib.crc32(data[16 : 12 + int.from_bytes(data[8:12], "big")])
        data[12:16] = checksum.to_bytes(4, "big")
    return bytes(data)
