"""Shows the content of the files of a log directory, each kind with its own rows.

Nothing is changed, and no index or log is held in memory as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kbroker._ext.log.offset_index import LOOK_ONLY, CorruptIndexError, OffsetIndex, TimeIndex
from kbroker._ext.log.producer_state import CorruptSnapshotError, ProducerEntry, ProducerState
from kbroker.logtool.dump_log import DumpOptions, dump_log
from kbroker.logtool.output import DAMAGE, Output
from kbroker.logtool.targets import all_files, kind_of_file
from kbroker.storage.checkpoint import CorruptCheckpointError, parse_checkpoint, parse_epochs
from kbroker.storage.dirs.partition_metadata import (
    CorruptMetadataError,
    read_partition_metadata,
)
from kbroker.storage.formats import LARGEST, base_offset_of
from kbroker.storage.repair.txn_recovery import parse_sums
from kbroker.storage.segments.txn_index import ENTRY_BYTES, raw_entries
from kbroker.uuids import uuid_text


def dump(paths: list[str], options: DumpOptions, out: Output) -> None:
    """Show every file in ``paths``. Raises UsageError."""
    for path in paths:
        for file in all_files(path):
            dump_file(file, options, out)


def dump_file(path: str, options: DumpOptions, out: Output) -> None:
    """Show one file of a known kind; damage becomes a finding."""
    kind = kind_of_file(path)
    assert kind is not None, path
    out.file(path)
    try:
        if kind == "log":
            dump_log(path, options, out)
        else:
            _DUMPERS[kind](path, out)
    except (
        CorruptIndexError,
        CorruptSnapshotError,
        CorruptCheckpointError,
        CorruptMetadataError,
    ) as error:
        out.finding(path, DAMAGE, str(error).removeprefix(f"{path}: "))
    except OSError as error:
        out.finding(path, DAMAGE, f"cannot be read: {error.strerror}")


def _base_offset(path: str) -> int:
    return base_offset_of(os.path.basename(path)) or 0


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _dump_index(path: str, out: Output) -> None:
    index = OffsetIndex(path, _base_offset(path), LOOK_ONLY)
    for at in range(index.entry_count):
        offset, position = index.entry(at)
        out.row(path, "index", {"offset": offset, "position": position})
    index.verify((1 << 31) - 1)


def _dump_time_index(path: str, out: Output) -> None:
    index = TimeIndex(path, _base_offset(path), LOOK_ONLY)
    for at in range(index.entry_count):
        timestamp, offset = index.entry(at)
        out.row(path, "timeindex", {"timestamp": timestamp, "offset": offset})
    index.verify(LARGEST)


def _dump_txn_index(path: str, out: Output) -> None:
    data = _read(path)
    for version, entry in raw_entries(data):
        out.row(
            path,
            "txnindex",
            {
                "version": version,
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            },
        )
    if len(data) % ENTRY_BYTES:
        out.finding(path, DAMAGE, f"{len(data)} bytes are not a whole number of entries")


def _dump_snapshot(path: str, out: Output) -> None:
    for entry in ProducerState.from_snapshot(_read(path), _base_offset(path)).entries.values():
        out.row(path, "producer", _producer_row(entry))


def _producer_row(entry: ProducerEntry) -> dict[str, int | None]:
    open_since = entry.current_txn_first_offset
    row: dict[str, int | None] = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": None if open_since < 0 else open_since,
        "lastTimestamp": entry.last_timestamp,
    }
    for first_sequence, last_sequence, first_offset, last_offset, time in entry.recent_batches:
        row |= {
            "firstSequence": first_sequence,
            "lastSequence": last_sequence,
            "lastOffset": last_offset,
            "offsetDelta": last_offset - first_offset,
            "timestamp": time,
        }
    return row


def _dump_checkpoint(path: str, out: Output) -> None:
    for (topic, partition), offset in parse_checkpoint(_read(path), path).items():
        out.row(path, "checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _dump_epochs(path: str, out: Output) -> None:
    for epoch, start_offset in parse_epochs(_read(path), path):
        out.row(path, "epoch", {"leaderEpoch": epoch, "startOffset": start_offset})


def _dump_sums(path: str, out: Output) -> None:
    try:
        sums = parse_sums(_read(path))
    except ValueError as error:
        out.finding(path, DAMAGE, str(error))
        return
    for base_offset, (size, checksum) in sums.items():
        out.row(path, "txnsum", {"baseOffset": base_offset, "size": size, "crc": checksum})


def _dump_metadata(path: str, out: Output) -> None:
    topic_id = read_partition_metadata(os.path.dirname(path))
    if topic_id is not None:
        out.row(path, "metadata", {"version": 0, "topicId": uuid_text(topic_id)})


_DUMPERS: dict[str, Callable[[str, Output], None]] = {
    "index": _dump_index,
    "timeindex": _dump_time_index,
    "txnindex": _dump_txn_index,
    "snapshot": _dump_snapshot,
    "checkpoint": _dump_checkpoint,
    "epochs": _dump_epochs,
    "txnsums": _dump_sums,
    "metadata": _dump_metadata,
}
