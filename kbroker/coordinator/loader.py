"""Reads the log of an internal partition into a machine: at start, and after a crash.

What this broker writes there is batches of format 2. A Kafka whose log.message.format.version is
below 0.11 has written messages of format 0 or 1, which are read as well.

Damage costs no more than the damaged batch or record: it is named in one ERROR line, and loading
continues after it. The caller runs ``load`` one step at a time, so that a long log does not block
its process.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kbroker.batch_errors import BatchStatus, CorruptBatchError
from kbroker.batch_summary import HEADER_BYTES, LENGTH_AT, LENGTH_END, MAGIC, MAGIC_AT
from kbroker.coordinator.machine import Machine
from kbroker.coordinator.records.codec import UnknownRecordError
from kbroker.descriptors import opening
from kbroker.protocol.codec import DecodeError
from kbroker.record.batch import DECOMPRESSED_MAX, Record, RecordBatch
from kbroker.record.control import ABORT, COMMIT
from kbroker.record.legacy import MESSAGE_BYTES_MIN, LegacyMessage, read_message
from kbroker.storage.formats import LOG_SUFFIX, segment_name
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.protocol.message import Message
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

# Minimum read size, whatever the config: below this, system calls would dominate a load.
CHUNK_BYTES_MIN = 4096
# BOUND: a chunk grows to this for a larger batch; a length above it is damage.
CHUNK_BYTES_MAX = 128 << 20
# Where behind damage a batch or message may begin: offsets and sizes are not that large. A message
# of format 0 or 1 has at most a codec and a timestamp type in its attributes.
_CANDIDATE = re.compile(rb"(?s)(?=\x00\x00.{6}[\x00-\x07].{7}(?:\x02|[\x00\x01][\x00-\x0f]))")
_LENGTH = struct.Struct(">i")
_CONTROL = struct.Struct(">hh")


class Loader:
    """Loads one partition. records: replayed so far; skipped: damaged places."""

    def __init__(self, machine: Machine, source: PartitionLog, chunk_bytes: int) -> None:
        """chunk_bytes: read at a time."""
        self._machine = machine
        self._chunk_bytes = min(max(chunk_bytes, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        self._log = source
        self.records = 0
        self.skipped = 0
        self._next_offset = source.log_start_offset

    def load(self) -> Iterator[None]:
        """Replay everything up to the end of the log, even if it grows in the meantime.

        Raises OSError when a segment cannot be read.
        """
        base = self._log.segments.holding(self._next_offset).base_offset
        while True:
            yield from self._load_segment(base)
            behind = [s.base_offset for s in self._log.segments if s.base_offset > base]
            if not behind:
                return
            base = min(behind)

    def _size_of(self, base_offset: Offset) -> int:
        """The bytes of a segment that are part of the log now."""
        return next((s.size for s in self._log.segments if s.base_offset == base_offset), 0)

    def _load_segment(self, base_offset: Offset) -> Iterator[None]:
        name = segment_name(base_offset, LOG_SUFFIX)
        path = os.path.join(self._log.path, name)
        with opening(path):
            file = open(path, "rb", buffering=0)
        with file:
            position, want = 0, self._chunk_bytes
            while (left := self._size_of(base_offset) - position) > 0:
                data = os.pread(file.fileno(), min(want, left), position)
                if not data:
                    self._report(name, position, f"the file ends {left} bytes too early")
                    return
                taken = self._take(data, name, position)
                if taken > 0:
                    position += taken
                    want = self._chunk_bytes
                elif len(data) == left or want >= CHUNK_BYTES_MAX:
                    self._report(name, position, f"the last {left} bytes are not a batch")
                    return
                else:
                    want *= 4
                yield

    def _take(self, data: bytes, name: str, at: int) -> int:
        """Replay the whole batches of a chunk; returns the number of bytes processed."""
        position = 0
        while True:
            position, count, next_offset = self._machine.replay_chunk(data, position)
            self.records += count
            self._next_offset = max(self._next_offset, Offset(next_offset))
            left = len(data) - position
            if left < MESSAGE_BYTES_MIN:
                return position
            size = _LENGTH.unpack_from(data, position + LENGTH_AT)[0] + LENGTH_END
            is_batch = data[position + MAGIC_AT] == MAGIC
            size_min = HEADER_BYTES if is_batch else MESSAGE_BYTES_MIN
            if size_min <= size <= CHUNK_BYTES_MAX and data[position + MAGIC_AT] <= MAGIC:
                if size > left:
                    return position
                take = self._take_batch if is_batch else self._take_message
                take(data, position, f"{name}:{at + position}")
                position += size
                continue
            next_batch = self._resume(data, position + 1)
            if next_batch < 0:
                return position
            self._report(name, at + position, f"{next_batch - position} bytes are not a batch")
            position = next_batch

    def _take_batch(self, data: bytes, position: int, where: str) -> None:
        try:
            batch = RecordBatch(data, position)
            batch.check()
            records = batch.records()
        except ValueError as error:
            self._skip(where, error)
            return
        self._next_offset = max(self._next_offset, Offset(batch.next_offset))
        header = batch.header
        if batch.is_control:
            for record in records:
                self._replay_marker(record, header.producer_id, header.producer_epoch)
        else:
            self._replay(records, header.producer_id if batch.is_transactional else -1)

    def _take_message(self, data: bytes, position: int, where: str) -> None:
        try:
            message = _sound_message(data, position)
            messages = message.messages(DECOMPRESSED_MAX)
        except ValueError as error:
            self._skip(where, error)
            return
        self._next_offset = max(self._next_offset, Offset(message.offset + 1))
        self._replay(messages, -1)

    def _skip(self, where: str, error: ValueError) -> None:
        self.skipped += 1
        logger.error("%s: skipping the batch at %s, after offset %d: %s",
                     self._log.name, where, self._next_offset - 1, error)  # fmt: skip

    def _resume(self, data: bytes, position: int) -> int:
        """The position of the next whole and valid batch or message; -1 if there is none in this
        chunk.
        """
        for candidate in _CANDIDATE.finditer(data, position):
            position = candidate.start()
            try:
                if data[position + MAGIC_AT] == MAGIC:
                    offset = RecordBatch(data, position).check().base_offset
                else:
                    offset = _sound_message(data, position).offset
            except CorruptBatchError:
                continue  # it only looks like one
            if offset >= self._next_offset:
                return position
        return -1

    def _replay(self, records: Iterable[Record | LegacyMessage], producer_id: int) -> None:
        for record in records:
            self.records += 1
            try:
                key, value = self._machine.records.decode(record.key, record.value)
            except UnknownRecordError as error:
                logger.warning("%s: skipping the record at offset %d, from a newer broker: %s",
                               self._log.name, record.offset, error)  # fmt: skip
            except (DecodeError, ValueError) as error:
                self.skipped += 1
                logger.error("%s: skipping the damaged record at offset %d: %s",
                             self._log.name, record.offset, error)  # fmt: skip
            else:
                self._replay_one(Offset(record.offset), producer_id, key, value)

    def _replay_one(self, offset: Offset, producer_id: int, key: Message, value: Any) -> None:
        try:
            self._machine.replay(offset, producer_id, key, value)
        except MemoryError:
            raise
        except Exception:
            # An error here would occur in every load: it must not lose the rest of the log.
            self.skipped += 1
            logger.exception("%s: skipping the record at offset %d, which cannot be replayed",
                             self._log.name, offset)  # fmt: skip

    def _replay_marker(self, record: Record, producer_id: int, epoch: int) -> None:
        if record.key is None or len(record.key) < _CONTROL.size:
            return
        _, kind = _CONTROL.unpack_from(record.key)
        if kind in (ABORT, COMMIT):
            offset = Offset(record.offset)
            self._machine.replay_marker(offset, producer_id, epoch, kind == COMMIT)

    def _report(self, name: str, position: int, reason: str) -> None:
        self.skipped += 1
        logger.error("%s: skipping damage at %s:%d, after offset %d: %s",
                     self._log.name, name, position, self._next_offset - 1, reason)  # fmt: skip


def _sound_message(data: bytes, position: int) -> LegacyMessage:
    """The message there, with the right checksum. Raises CorruptBatchError."""
    message = read_message(data, position)
    if not message.valid:
        raise CorruptBatchError(BatchStatus.BAD_CRC)
    return message
