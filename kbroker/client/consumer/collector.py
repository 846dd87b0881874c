"""Turns what was fetched into what ``poll`` returns, and moves positions by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_futures import RecordFutures
from kbroker._ext.client.record_reader import RecordColumns, RecordReader
from kbroker.client.batches.record_arrays import arrays_of
from kbroker.client.consumer.fetcher import Fetcher
from kbroker.client.consumer.partitions import FetchedSet, ReadPartition
from kbroker.client.errors import DeserializationFailed, UnreadableRecord
from kbroker.client.settings.client_settings import ClientSettings

Deserializer = Callable[[str, bytes], Any]
# BOUND: bytes of the records of one batch, decompressed.
DECOMPRESSED_MAX = 1 << 30
# Bytes of one call's columns: the next ones are written where these were, which is in a cache.
_COLUMN_BYTES = 512 << 10
# The next response is asked for when so much was passed on.
_FORWARDED_BYTES = 1 << 20


# What a call returns, and its limits: records, columns or Arrow.
Kind = tuple[Any, ...]


class _Before(NamedTuple):
    """Where a partition was before a call, in this version of its position."""

    position: int
    epoch: int
    version: int


class _Kept:
    """What a call has returned to nobody. rows: where the partitions were before, and are now."""

    def __init__(
        self, kind: Kind, rows_of_poll: list[Any], rows: dict[ReadPartition, _Before]
    ) -> None:
        self.kind = kind
        self.found = rows_of_poll
        self.rows = rows
        self.after = {part: (part.position, part.epoch) for part in rows}

    def is_current(self, part: ReadPartition) -> bool:
        """Whether its records may be returned now."""
        row = self.rows[part]
        return part.version == row.version and part.position == row.position and part.may_return


class FetchCollector:
    """Reads sets in the order of their arrival.

    Raises UnreadableRecord, DeserializationFailed, and what ``FetchedSets.fault`` has, but after
    the records before have been returned. INVARIANT: what is read and not returned is not behind a
    position.
    """

    def __init__(self, settings: ClientSettings, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._check_crcs: bool = settings["check.crcs"]
        self._key = deserializer_of(settings["key.deserializer"])
        self._value = deserializer_of(settings["value.deserializer"])
        self.is_blocked = False  # `forward` has left records, as the producer does not take them
        self._before: dict[ReadPartition, _Before] = {}  # the last call
        self._kind: Kind = ()
        self._kept: _Kept | None = None

    # -- calls whose records do not arrive

    def begin(self, kind: Kind) -> list[Any]:
        """A call of this kind begins: what the call before has returned has reached the program.
        Returns what was kept for it.
        """
        self._before = {}
        self._kind = kind
        kept = self._kept
        if kept is None:
            return []
        self._kept = None
        parts = self._fetcher.parts
        if kept.kind == kind and all(
            kept.is_current(part) and parts.get(part.key) is part for part in kept.rows
        ):
            for part, row in kept.rows.items():
                self._before[part] = row
                part.position, part.epoch = kept.after[part]
            return kept.found
        self._move_back(kept.rows)
        return []

    def undo(self) -> None:
        """The last call has ended by an error other than ClientError: nothing was read."""
        before, self._before = self._before, {}
        self._move_back(before)

    def keep(self, collected: list[Any]) -> None:
        """What the last call has returned has not reached the program: it is kept for the next one
        of its kind, and until then no position is behind it.
        """
        before, self._before = self._before, {}
        if not collected:
            return
        rows = {part: row for part, row in before.items() if part.version == row.version}
        self._kept = _Kept(self._kind, collected, rows)
        for part, row in rows.items():
            part.position, part.epoch = row.position, row.epoch

    def _move_back(self, rows: Mapping[ReadPartition, _Before]) -> None:
        for part, row in rows.items():
            if part.version == row.version and part.position is not None:
                validating = part.validating
                part.move(row.position, row.epoch)
                part.validating = validating
        self._fetcher.changed = True

    # -- records

    def records(self, limit: int) -> list[ConsumerRecord]:
        """At most ``limit`` records."""
        out: list[ConsumerRecord] = []
        while limit > 0:
            fetched = self._next(out)
            if fetched is None:
                break
            part = fetched.part
            reader = self._reader(fetched)
            count = reader.read(out, limit)
            limit -= count
            _advance(part, reader)
            if limit > 0 and not self._ended(fetched, reader, out):
                break
        self._fetcher.counts["fetched_records"] += len(out)
        return out

    def columns(self, limit: int, keys: bool, arrays: bool) -> list[RecordColumns]:
        """At most ``limit`` records, those of a partition together. arrays: also as such."""
        out: list[RecordColumns] = []
        room = _COLUMN_BYTES
        while limit > 0 and room > 0:
            fetched = self._next(out)
            if fetched is None:
                break
            part = fetched.part
            reader = self._reader(fetched)
            read = reader.read_arrays if arrays else reader.read_columns
            columns = read(limit, keys, room)
            _advance(part, reader)
            if columns is not None:
                if arrays:
                    columns.arrays = arrays_of(columns)
                out.append(columns)
                limit -= len(columns)
                room -= columns.size_bytes
                self._fetcher.counts["fetched_records"] += len(columns)
            elif not self._ended(fetched, reader, out):
                break
        return out

    # -- to another producer

    def forward(self, to: Callable[[str, int], Forwarder]) -> list[RecordFutures]:
        """About a response's worth, or what a producer takes."""
        out: list[RecordFutures] = []
        self.is_blocked = False
        room = _FORWARDED_BYTES
        while room > 0:
            fetched = self._next(out)
            if fetched is None:
                break
            part = fetched.part
            reader = self._reader(fetched)
            forwarder = to(*part.key)
            before = forwarder.bytes
            futures = forwarder.forward(reader, part.key[0])
            _advance(part, reader)
            room -= forwarder.bytes - before
            if len(futures):
                out.append(futures)
                self._fetcher.counts["fetched_records"] += len(futures)
            self.is_blocked = forwarder.is_full or forwarder.missing is not None
            if self.is_blocked or not self._ended(fetched, reader, out):
                break
        return out

    def _next(self, out: list[Any]) -> FetchedSet | None:
        sets = self._fetcher.sets
        if sets.faults and not out:
            fault = sets.fault()
            if fault is not None:
                raise fault
        fetched = sets.take()
        if fetched is not None:
            part = fetched.part
            if part not in self._before:
                assert part.position is not None
                self._before[part] = _Before(part.position, part.epoch, part.version)
        return fetched

    def _reader(self, fetched: FetchedSet) -> RecordReader:
        part = fetched.part
        reader = part.reader
        if fetched.loaded and isinstance(reader, RecordReader):
            return reader
        if not isinstance(reader, RecordReader) or reader.position != part.position:
            part.drop_reader()
            assert part.position is not None
            reader = RecordReader(
                *part.key,
                part.position,
                check_crcs=self._check_crcs,
                key_deserializer=self._key,
                value_deserializer=self._value,
                decompressed_max=DECOMPRESSED_MAX,
            )
            part.reader = reader
        reader.load(fetched.records, fetched.aborted)
        fetched.loaded = True
        return reader

    def _ended(self, fetched: FetchedSet, reader: RecordReader, out: list[Any]) -> bool:
        """The set has no further record that can be read. False: what comes next is an error,
        which is raised if there is nothing to return.
        """
        if reader.error is None and fetched.fault is None:
            part = fetched.part
            assert part.position is not None
            part.position = max(part.position, fetched.next_offset)
            self._fetcher.sets.done_with(fetched)
            return True
        if out:
            return False
        error = fetched.fault if reader.error is None else _unreadable(fetched.part, reader.error)
        assert error is not None
        self._fetcher.sets.stop(fetched, error)
        raise error

    # -- Arrow

    def arrow(self, limit: int, columns: Iterable[str] | None) -> list[Any]:
        """At least one batch, if there is any record, and about ``limit`` rows."""
        from kbroker.client.consumer import arrow_sets

        out: list[Any] = []
        rows = 0
        while rows < limit:
            fetched = self._next(out)
            if fetched is None:
                break
            batches, error = arrow_sets.read(fetched, columns, self._check_crcs)
            out += batches
            rows += sum(len(batch) for batch in batches)
            fault = error or fetched.fault
            if fault is not None:
                if out:
                    break
                self._fetcher.sets.stop(fetched, fault)
                raise fault
            self._fetcher.sets.done_with(fetched)
        self._fetcher.counts["fetched_records"] += rows
        return out


def _advance(part: ReadPartition, reader: RecordReader) -> None:
    epoch, position = reader.leader_epoch, reader.position
    if epoch >= 0 or position != part.position:
        part.epoch = epoch
    part.position = position


def _unreadable(
    part: ReadPartition, error: tuple[int, int, str, Exception | None]
) -> UnreadableRecord:
    offset, after, why, cause = error
    if cause is not None:
        failed = DeserializationFailed(*part.key, offset, after, why)
        failed.__cause__ = cause
        return failed
    if part.high_watermark is not None:
        after = max(offset + 1, min(after, part.high_watermark))
    return UnreadableRecord(*part.key, offset, after, why)


def deserializer_of(given: Any) -> Deserializer | None:
    """``(topic, bytes) -> anything`` from a callable or an object with ``deserialize``."""
    if given is None:
        return None
    deserialize = getattr(given, "deserialize", None)
    if deserialize is not None:
        return deserialize  # type: ignore[no-any-return]
    return lambda topic, data: given(data)
