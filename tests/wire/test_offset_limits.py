"""Batches whose offsets would end beyond 2^63. The checksum does not cover the base offset, so that
such a batch is otherwise sound.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.clients.produce_link import pool
from support.storage.log_store import NOW_MS, batch
from support.storage.message_sets import OldMessage, message_bytes

from kbroker._ext.base.offset_map import OffsetMap
from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_reader import RecordReader
from kbroker._ext.legacy.old_messages import read_messages
from kbroker._ext.log.batch_cleaner import BatchCleaner
from kbroker._ext.log.log_scan import DAMAGED, END, find_batch, scan_segment
from kbroker._ext.record.down_convert import to_message_set
from kbroker._ext.record.keyed_records import latest_records
from kbroker.legacy import InvalidMessage
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, compress
from kbroker.storage.cleaning.cleaned_transactions import CleanedTransactions

pytestmark = pytest.mark.wire

OFFSET_MAX = 2**63 - 1
CORRUPT_MESSAGE = 2
# Base offsets of a batch of two records: the offset behind the last one is OFFSET_MAX, or beyond.
LAST, BEYOND = OFFSET_MAX - 2, [OFFSET_MAX - 1, OFFSET_MAX]


def at(base: int) -> bytes:
    """A batch of two records."""
    data = bytearray(batch([b"one", b"two"]))
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def opened(folder: Path, data: bytes) -> int:
    path = folder / "log"
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("base", BEYOND)
def test_scan_and_search_stop_at_such_a_batch(tmp_path: Path, base: int) -> None:
    data = at(base)
    fd = opened(tmp_path, data)
    try:
        scan = scan_segment(fd, 0, len(data))
        with pytest.raises(ValueError, match="contradicts itself"):
            find_batch(fd, 0, len(data), offset=0)
    finally:
        os.close(fd)

    assert (scan.stop, scan.end_position, scan.next_offset) == (DAMAGED, 0, 0)
    assert scan.problem == "the batch header contradicts itself"


def test_scan_takes_the_last_offsets_that_there_are(tmp_path: Path) -> None:
    data = at(LAST)
    fd = opened(tmp_path, data)
    try:
        scan = scan_segment(fd, LAST, len(data))
        found = find_batch(fd, 0, len(data), offset=LAST + 1)
    finally:
        os.close(fd)

    assert (scan.stop, scan.end_position, scan.next_offset) == (END, len(data), OFFSET_MAX)
    assert found is not None and found.last_offset == LAST + 1


@pytest.mark.parametrize("base", BEYOND)
def test_such_a_batch_is_not_loaded(base: int) -> None:
    good = at(LAST)

    assert latest_records(good + at(base), 0, 1)[:3] == (len(good), 2, OFFSET_MAX)


def cleaner() -> BatchCleaner:
    return BatchCleaner(
        OffsetMap(1 << 12, 0.9),
        CleanedTransactions([]),
        threading.Lock(),
        now_ms=NOW_MS,
        delete_retention_ms=0,
        decompressed_max=1 << 20,
    )


@pytest.mark.parametrize("base", BEYOND)
def test_such_a_batch_is_not_compacted(base: int) -> None:
    with pytest.raises(ValueError, match="contradicts itself"):
        cleaner().index_batches(memoryview(at(base)), 0)
    with pytest.raises(ValueError, match="contradicts itself"):
        cleaner().clean_batches(memoryview(at(base)))


@pytest.mark.parametrize(
    "data",
    [*map(at, BEYOND), message_bytes(1, OldMessage(OFFSET_MAX, NOW_MS, b"k", b"v"))],
    ids=["batch", "batch at the end", "message"],
)
def test_such_a_batch_is_not_converted_for_old_clients(tmp_path: Path, data: bytes) -> None:
    fd = opened(tmp_path, data)
    try:
        error, converted, _ = to_message_set(fd, len(data), magic=0)
    finally:
        os.close(fd)

    assert (error, converted) == (CORRUPT_MESSAGE, b"")


# Offsets of the messages in a wrapper, relative to its first one, and the wrapper's own.
WRAPPED = {
    "a negative one": ([-(2**63), 0], 5),
    "the last is negative": ([0, -1], 5),
    "a larger one before the last": ([OFFSET_MAX, 0], 5),
    "the last is beyond the wrapper": ([0, OFFSET_MAX], 5),
}


def wrapped(offsets: list[int], own: int) -> bytes:
    inner = [message_bytes(1, OldMessage(offset, NOW_MS, b"k", b"v")) for offset in offsets]
    packed = compress(GZIP, b"".join(inner))
    return message_bytes(1, OldMessage(own, NOW_MS, None, packed, GZIP))


@pytest.mark.parametrize(("offsets", "own"), WRAPPED.values(), ids=WRAPPED)
def test_wrapper_whose_offsets_contradict_it_is_damaged(
    tmp_path: Path, offsets: list[int], own: int
) -> None:
    data = wrapped(offsets, own)
    fd = opened(tmp_path, data)
    try:
        error, converted, _ = to_message_set(fd, len(data), magic=0)
    finally:
        os.close(fd)
    with pytest.raises(InvalidMessage, match="the message at offset 5 is damaged"):
        read_messages(data)
    with pytest.raises(ValueError, match="do not add up"):
        cleaner().clean_batches(memoryview(data))

    assert (error, converted) == (CORRUPT_MESSAGE, b"")


def test_wrapper_with_a_negative_offset_is_not_compacted() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        cleaner().clean_batches(memoryview(wrapped([0, 7], -(2**63))))


def test_batch_with_the_largest_offset_delta_is_forwarded_record_by_record() -> None:
    """As compaction leaves it: the offsets behind the last record are gone."""
    builder = BatchBuilder(0, base_offset=5)
    builder.append(b"v" * 100, b"k", NOW_MS)
    forwarder = Forwarder(pool(batch_bytes=100))
    reader = RecordReader("t", 0, 0)
    reader.load(builder.build(last_offset_delta=2**31 - 1))

    futures = forwarder.forward(reader, "t")

    assert (len(futures), forwarder.whole_records) == (1, 0)
    assert reader.position == 5 + 2**31
