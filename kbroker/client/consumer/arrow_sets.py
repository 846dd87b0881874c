"""What a consumer has fetched as Arrow record batches. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kbroker._ext.arrow.arrow_reader import ArrowReader
from kbroker._ext.record.record_cursor import RecordsDamaged
from kbroker.client.batches.arrow import BYTES_MAX, DECOMPRESSED_MAX, columns_of
from kbroker.client.consumer.partitions import FetchedSet, ReadPartition
from kbroker.client.errors import UnreadableRecord

_OFFSET_MAX = (1 << 63) - 1


class _PartReader:
    """A partition's reader, with the columns that it makes."""

    def __init__(self, part: ReadPartition, columns: tuple[str, ...], check_crcs: bool) -> None:
        assert part.position is not None
        self.columns = columns
        self.next_offset = part.position
        self.reader = ArrowReader(
            *part.key,
            part.position,
            _OFFSET_MAX,
            columns,
            bytes_max=BYTES_MAX,
            decompressed_max=DECOMPRESSED_MAX,
            check_crcs=check_crcs,
        )

    def unload(self) -> None:
        self.reader.unload()


def read(
    fetched: FetchedSet, columns: Iterable[str] | None, check_crcs: bool
) -> tuple[list[pa.RecordBatch], UnreadableRecord | None]:
    """The records of a set from the position on, which moves behind them, and what is wrong with
    the next one, if something is.
    """
    part = fetched.part
    assert part.position is not None
    names = columns_of(columns, False)
    made = part.reader
    if (
        not isinstance(made, _PartReader)
        or made.columns != names
        or made.next_offset != part.position
    ):
        part.drop_reader()
        made = _PartReader(part, names, check_crcs)
        part.reader = made
    reader = made.reader
    out: list[pa.RecordBatch] = []
    error = None
    reader.load(fetched.records, fetched.aborted)
    try:
        while (batch := reader.read()) is not None:
            out.append(pa.record_batch(batch))
    except RecordsDamaged as damaged:
        offset, why = damaged.args
        at = max(part.position, reader.row_offset + 1, offset)
        error = UnreadableRecord(*part.key, at, at + 1, why)
    if reader.leader_epoch >= 0 or fetched.next_offset > part.position:
        part.epoch = reader.leader_epoch
    last = reader.finish()
    if last is not None:
        out.append(pa.record_batch(last))
    if error is not None:
        part.position = error.offset
        part.drop_reader()
    else:
        part.position = max(part.position, fetched.next_offset)
        made.next_offset = part.position
        reader.unload()
    return out, error
