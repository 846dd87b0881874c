"""What a Kafka with an old log.message.format.version has left in an internal topic is loaded.

Kafka 2.7 writes the records of coordinators in the broker's message format: a kbroker that takes
over its directories, or follows its partitions, finds messages of format 0 or 1.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.coordinators.offsets_host import OffsetsHost, OneSegment, make_machine
from support.storage.message_sets import CODECS, OldMessage, set_bytes, wrapper_bytes

from kbroker.coordinator.loader import Loader
from kbroker.coordinator.records.offsets_topic import RECORDS, OffsetCommitKey, OffsetCommitValue
from kbroker.record.builder import BatchBuilder
from kbroker.storage.formats import LOG_SUFFIX, segment_name

pytestmark = pytest.mark.unit


def commits(first: int, count: int, version: int = 1) -> list[OldMessage]:
    """Commits of groups g<offset>, as messages."""
    rows = []
    for offset in range(first, first + count):
        key = OffsetCommitKey(group=f"g{offset}", topic="t", partition=0)
        value = OffsetCommitValue(offset=100 + offset, metadata="m", commit_timestamp=9)
        rows.append(OldMessage(offset, 1, *RECORDS.encode(key, value, version)))
    return rows


def tombstone(offset: int, group: str) -> OldMessage:
    key, _ = RECORDS.encode(OffsetCommitKey(group=group, topic="t", partition=0), None, 1)
    return OldMessage(offset, 1, key, None)


def batch(rows: list[OldMessage]) -> bytes:
    builder = BatchBuilder(base_offset=rows[0].offset)
    for row in rows:
        builder.append(row.value, row.key, 1)
    return builder.build()


def load(data: bytes, directory: Path, chunk_bytes: int = 1 << 20) -> tuple[Any, Loader]:
    (directory / segment_name(0, LOG_SUFFIX)).write_bytes(data)
    source: Any = SimpleNamespace(
        path=str(directory),
        name="__consumer_offsets-0",
        log_start_offset=0,
        segments=OneSegment([SimpleNamespace(base_offset=0, size=len(data))]),
    )
    machine = make_machine(OffsetsHost())
    loader = Loader(machine, source, chunk_bytes)
    for _ in loader.load():
        pass
    return machine.offsets, loader


def groups(first: int, end: int) -> list[str]:
    return sorted(f"g{number}" for number in range(first, end))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_loaded_like_batches(
    tmp_path: Path, magic: int, codec: str
) -> None:
    rows = commits(0, 6)
    old = wrapper_bytes(magic, CODECS[codec], rows) if CODECS[codec] else set_bytes(magic, rows)

    offsets, loader = load(old + batch(commits(6, 3, version=3)), tmp_path)

    assert sorted(offsets.group_ids()) == groups(0, 9)
    assert {held[0] for g in offsets.group_ids() for *_, held in offsets.store.of_group(g)} == {
        *range(100, 109)
    }
    assert (loader.records, loader.skipped) == (9, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_tombstone_of_an_old_format_at_the_end_of_the_log_removes_the_offset(
    tmp_path: Path, magic: int
) -> None:
    """It is shorter than the header of a batch."""
    rows = [*commits(0, 2), tombstone(2, "g0")]

    offsets, loader = load(set_bytes(magic, rows), tmp_path)

    assert sorted(offsets.group_ids()) == ["g1"]
    assert loader.skipped == 0


def test_message_larger_than_a_chunk_is_read_as_a_whole(tmp_path: Path) -> None:
    many = commits(0, 3000)

    offsets, loader = load(wrapper_bytes(1, CODECS["gzip"], many), tmp_path, chunk_bytes=1)

    assert len(list(offsets.group_ids())) == 3000
    assert (loader.records, loader.skipped) == (3000, 0)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("at", [8, 12, 16, 40], ids=["length", "checksum", "magic", "key"])
def test_damaged_message_costs_one_line_and_nothing_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, magic: int, at: int
) -> None:
    before, damaged, after = commits(0, 3), commits(3, 1), commits(4, 3)
    broken = bytearray(set_bytes(magic, damaged))
    broken[at] ^= 0xF0

    with caplog.at_level(logging.ERROR):
        offsets, loader = load(
            set_bytes(magic, before)
            + bytes(broken)
            + set_bytes(magic, after)
            + batch(commits(7, 2, version=3)),
            tmp_path,
        )

    assert sorted(offsets.group_ids()) == [*groups(0, 3), *groups(4, 9)]
    assert loader.skipped == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "__consumer_offsets-0" in line and "after offset 2" in line
