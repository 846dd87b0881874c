"""Reads ``__cluster_metadata-0`` of a KRaft cluster: its newest snapshot, then the log after it.

Read only. The log is small (Kafka writes a snapshot and deletes what lies below it), so files are
read whole. A batch that is cut short at the very end of the log was never acknowledged.
"""

from __future__ import annotations

import os
import re

from kbroker._ext.log.log_scan import scan_segment
from kbroker.adopt.batch_files import COPY_AGAIN, batches_of
from kbroker.adopt.errors import Refusal
from kbroker.adopt.logs import check_producer_snapshots
from kbroker.adopt.metadata_image import MetadataImage
from kbroker.adopt.record_codec import decode_record
from kbroker.batch_errors import CorruptBatchError, DecompressionError
from kbroker.protocol.codec import DecodeError
from kbroker.record.batch import RecordBatch
from kbroker.record.control import control_type
from kbroker.storage.formats import LOG_SUFFIX, base_offset_of, segment_name

DIRECTORY = "__cluster_metadata-0"
# A snapshot has the state of the log below an offset: <20 digits offset>-<10 digits epoch>.
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
SNAPSHOT_HEADER, SNAPSHOT_FOOTER = 3, 4


def read_metadata(directory: str, *, was_clean: bool) -> MetadataImage:
    """The image that results from the metadata log. Raises Refusal, OSError.

    was_clean: Kafka was stopped cleanly, so that no batch can be cut short.
    """
    snapshots, bases = _list(directory)
    image = MetadataImage()
    start = 0
    if snapshots:
        start, path = snapshots[-1]
        _read_snapshot(path, image)
    elif bases and bases[0] > 0:
        raise Refusal(
            f"{directory}: the log begins at offset {bases[0]}, and the snapshot of the offsets "
            f"before it (*.checkpoint) is missing; {COPY_AGAIN}"
        )
    if not snapshots and not bases:
        raise Refusal(f"{directory} contains neither a snapshot nor a log; {COPY_AGAIN}")
    if bases and bases[0] > start:
        raise Refusal(
            f"{directory}: the newest snapshot ends at offset {start}, but the log begins at "
            f"{bases[0]}; {COPY_AGAIN}"
        )
    image.end_offset = start
    for base in bases:
        path = os.path.join(directory, segment_name(base, LOG_SUFFIX))
        is_last = base == bases[-1]
        if is_last or bases[bases.index(base) + 1] > start:
            if base > image.end_offset:
                raise Refusal(
                    f"{path}: offsets from {image.end_offset} on are missing; {COPY_AGAIN}"
                )
            _read_segment(path, image, start, is_last and not was_clean)
    if image.end_offset == 0:
        path = os.path.join(directory, segment_name(0, LOG_SUFFIX))
        raise Refusal(
            f"{path} is empty, although every log begins with a leader change; {COPY_AGAIN}"
        )
    if was_clean:
        check_producer_snapshots(directory, image.end_offset, f"{directory}: the log", COPY_AGAIN)
    return image


def end_offset(directory: str) -> int:
    """The offset at which the metadata log ends, without reading the records. Raises OSError."""
    snapshots, bases = _list(directory)
    end = snapshots[-1][0] if snapshots else 0
    if not bases:
        return end
    fd = os.open(os.path.join(directory, segment_name(bases[-1], LOG_SUFFIX)), os.O_RDONLY)
    try:
        scan = scan_segment(fd, bases[-1], os.fstat(fd).st_size, verify=False)
    finally:
        os.close(fd)
    return max(end, scan.next_offset)


def _list(directory: str) -> tuple[list[tuple[int, str]], list[int]]:
    """Snapshots as (end offset, path), and base offsets of segments, both rising."""
    snapshots, bases = [], []
    for name in os.listdir(directory):
        match = _SNAPSHOT.fullmatch(name)
        if match is not None:
            snapshots.append((int(match[1]), os.path.join(directory, name)))
        elif name.endswith(LOG_SUFFIX):
            base = base_offset_of(name)
            if base is not None:
                bases.append(base)
    return sorted(snapshots), sorted(bases)


def _read_snapshot(path: str, image: MetadataImage) -> None:
    last: int | None = None
    for batch in batches_of(path, partial_tail=False):
        last = _apply(batch, path, image, 0)
    if last != SNAPSHOT_FOOTER:
        raise Refusal(f"{path}: the end of the snapshot is missing; {COPY_AGAIN}")


def _read_segment(path: str, image: MetadataImage, start: int, partial_tail: bool) -> None:
    for batch in batches_of(path, partial_tail=partial_tail):
        if batch.last_offset < start:
            continue
        _apply(batch, path, image, start)
        image.end_offset = batch.next_offset


def _apply(batch: RecordBatch, path: str, image: MetadataImage, start: int) -> int | None:
    """Take a batch's records; the type of its control record if it has one."""
    try:
        if batch.is_control:
            return control_type(batch.records()[0].key)
        for record in batch:
            if record.offset >= start:
                image.apply(decode_record(record.value or b""))
    except (DecodeError, CorruptBatchError, DecompressionError) as error:
        raise Refusal(
            f"{path}: cannot read the batch at offset {batch.base_offset} ({error}); {COPY_AGAIN}"
        ) from error
    return None
