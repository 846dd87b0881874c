"""Logs with messages of formats 0 and 1, as from an earlier broker, and the content of a log in any
format.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from support.storage.log_store import LogStore
from support.storage.message_sets import LOG_APPEND_TIME, OldMessage, messages_in

from kbroker.record.batch import iterate_batches
from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.log.partition_log import PartitionLog

MAGIC_AT = 16


class Entry(NamedTuple):
    """A batch, a message, or a wrapper, with its records. append_time: of a wrapper."""

    magic: int
    codec: int
    append_time: bool
    data: bytes
    records: list[OldMessage]


def adopted(store: LogStore, segments: dict[int, bytes], *, clean: bool = True) -> None:
    """Let the store find partition 0 of topic ``t`` with these files, by base offset."""
    store.stop(clean=True)
    path = store.path()
    path.mkdir(exist_ok=True)
    write_partition_metadata(str(path), bytes(range(16)))
    for base, data in segments.items():
        (path / f"{base:020}.log").write_bytes(data)
        (path / f"{base:020}.index").write_bytes(b"")
        (path / f"{base:020}.timeindex").write_bytes(b"")
    store.start(clean=clean)


def entries(data: bytes) -> list[Entry]:
    """Everything in the bytes of a log file; an AssertionError for damage."""
    found = []
    position = 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        entry = data[position : position + size]
        assert len(entry) == size
        found.append(_entry(entry))
        position += size
    return found


def _entry(data: bytes) -> Entry:
    if data[MAGIC_AT] < 2:
        attributes = data[MAGIC_AT + 1]
        append_time = bool(attributes & LOG_APPEND_TIME)
        return Entry(data[MAGIC_AT], attributes & 7, append_time, data, messages_in(data))
    (batch,) = iterate_batches(data)
    batch.check()
    records = [
        OldMessage(record.offset, record.timestamp, record.key, record.value)
        for record in batch.records()
    ]
    return Entry(2, batch.codec, batch.is_append_time, data, [] if batch.is_control else records)


def stored_entries(log: PartitionLog) -> list[Entry]:
    """Everything in the files of a log, oldest first, with increasing offsets."""
    found: list[Entry] = []
    for segment in log.segments:
        found += entries(Path(segment.path(".log")).read_bytes()[: segment.size])
    offsets = [record.offset for entry in found for record in entry.records]
    assert offsets == sorted(set(offsets))
    return found


def stored_messages(log: PartitionLog) -> list[OldMessage]:
    return [
        record._replace(attributes=0) for entry in stored_entries(log) for record in entry.records
    ]
