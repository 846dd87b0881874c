"""Batches and records of a log file, as ``kafka-dump-log`` prints them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.coordinator.records.codec import RecordTypes
    from kbroker.record.batch import RecordBatch
    from kbroker.record.legacy import LegacyMessage

# From the key and the value of the record with this offset to what is printed of them, None for
# what is not.
Decoder = Callable[[bytes | None, bytes | None, int], tuple[str | None, str | None]]
# WIRE: offset, size; what every entry of a log begins with. The size is that of what follows.
_ENTRY = struct.Struct(">qi")
_MAGIC_END = 17
_ENTRY_MIN = 14


class LogEntry:
    """A batch of format 2, or a message of format 0 or 1 with what is in it."""

    def __init__(self, data: bytes, position: int) -> None:
        from kbroker.batch_summary import MAGIC_AT
        from kbroker.record.batch import RecordBatch
        from kbroker.record.legacy import read_message

        self.position = position
        self.size = len(data)
        self.batch: RecordBatch | None = None
        self.message: LegacyMessage | None = None
        if data[MAGIC_AT] == 2:
            self.batch = RecordBatch(data)
            self.last_offset = self.batch.last_offset
        else:
            self.message = read_message(data)
            self.last_offset = self.message.offset

    def timestamps(self) -> list[int]:
        """Of its records. Raises CorruptBatchError, DecompressionError."""
        return [record.timestamp for record in self.records()]

    def records(self) -> list[Any]:
        """``Record``s of a batch, ``LegacyMessage``s. Raises as above."""
        from kbroker.record.batch import DECOMPRESSED_MAX

        if self.batch is not None:
            return self.batch.records()
        assert self.message is not None
        return self.message.messages(DECOMPRESSED_MAX)


class LogFile:
    """A log that is read batch by batch. bytes_max: nothing behind that is read."""

    def __init__(self, path: str, bytes_max: int | None = None) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(self._fd).st_size
        self.size = size if bytes_max is None else min(size, bytes_max)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def batch_at(self, position: int) -> LogEntry | None:
        """None: there is no whole one. Raises ValueError for what cannot be one."""
        if position + _MAGIC_END > self.size:
            return None
        _offset, size = _ENTRY.unpack(os.pread(self._fd, _ENTRY.size, position))
        if size < _ENTRY_MIN:
            raise ValueError(
                f"found record size {size} smaller than minimum record overhead ({_ENTRY_MIN}) at "
                f"position {position}"
            )
        if position + _ENTRY.size + size > self.size:
            return None
        return LogEntry(os.pread(self._fd, _ENTRY.size + size, position), position)

    def batches(self, position: int = 0) -> Iterator[LogEntry]:
        """Raises ValueError."""
        while (entry := self.batch_at(position)) is not None:
            yield entry
            position += entry.size

    def first_from(self, position: int, offset: int) -> LogEntry | None:
        """The first at or after a position that reaches to this offset."""
        for entry in self.batches(position):
            if entry.last_offset >= offset:
                return entry
        return None


def dump_batches(
    path: str, bytes_max: int, records: bool, decoder: Decoder | None, metadata: bool
) -> list[str]:
    """Print a log; what is wrong with it, in lines. Raises OSError, ValueError."""
    gaps: list[str] = []
    before: int | None = None
    valid = 0
    with LogFile(path, bytes_max) as log:
        for entry in log.batches():
            print(_batch_line(entry))
            for record in entry.records() if records else ():
                if before is not None and record.offset != before + 1:
                    gaps.append(f"  {before} is followed by {record.offset}")
                before = record.offset
                _print_record(entry, record, decoder, metadata)
            valid = entry.position + entry.size
        if valid < log.size < bytes_max:
            rest = log.size - valid
            print(f"Found {rest} invalid bytes at the end of {os.path.basename(path)}")
    return [f"Non-consecutive offsets in {os.path.abspath(path)}", *gaps] if gaps else []


def _batch_line(entry: LogEntry) -> str:
    from kbroker.logtool.dump_log import batch_row, message_row

    if entry.batch is not None:
        row = batch_row(entry.batch, entry.position)
        horizon = row["deleteHorizonMs"]
        row["deleteHorizonMs"] = (
            "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
        )
    else:
        assert entry.message is not None
        row = message_row(entry.message, entry.position)
    return _line(row)


def _line(row: dict[str, Any]) -> str:
    return " ".join(f"{name}: {_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _print_record(entry: LogEntry, record: Any, decoder: Decoder | None, metadata: bool) -> None:
    from kbroker.logtool.dump_log import legacy_record_row, record_row

    control = entry.batch is not None and entry.batch.is_control
    parts = []
    if metadata:
        row = legacy_record_row(record) if entry.batch is None else record_row(entry.batch, record)
        parts.append(_line(row))
    if decoder is not None and not control:
        key, value = decoder(record.key, record.value, record.offset)
        parts += [] if key is None else [f"key: {key}"]
        parts += [] if value is None else [f"payload: {value}"]
    print("| " + " ".join(parts) if parts else "")


# -- decoders


def decoder(key: str, value: str = "") -> Decoder:
    """By the names of Kafka's decoder classes; or ``offsets`` or ``transactions``, for the records
    of internal topics. Raises KeyError.
    """
    if key == "offsets":
        from kbroker.coordinator.records.offsets_topic import RECORDS

        return _of_coordinator(RECORDS)
    if key == "transactions":
        from kbroker.coordinator.records.transaction_topic import RECORDS as TRANSACTIONS

        return _of_coordinator(TRANSACTIONS)
    read_key, read_value = _decoder_class(key), _decoder_class(value)

    def decode(
        key: bytes | None, value: bytes | None, offset: int
    ) -> tuple[str | None, str | None]:
        return (
            None if key is None else read_key(key),
            None if value is None else read_value(value),
        )

    return decode


def _decoder_class(name: str) -> Callable[[bytes], str]:
    from kbroker.cli.kafka.deserializers import deserializer

    simple = name.rpartition(".")[2]
    if not simple.endswith("Decoder"):
        raise KeyError(name)
    kind = simple.removesuffix("Decoder").replace("Default", "ByteArray")
    read = deserializer(f"{kind}Deserializer")
    if read is None:
        return lambda data: data.decode(errors="replace")
    return lambda data: read(data).decode(errors="replace")


def _of_coordinator(types: RecordTypes) -> Decoder:
    from kbroker.cli.kafka.message_json import compact, decoded, with_members
    from kbroker.coordinator.records.codec import UnknownRecordError
    from kbroker.protocol.codec import DecodeError

    def decode(
        key: bytes | None, value: bytes | None, offset: int
    ) -> tuple[str | None, str | None]:
        if key is None:
            raise ValueError(f"the record at offset {offset} has no key: another topic's decoder?")
        try:
            record = decoded(types, key, value)
        except UnknownRecordError as error:
            return f"Unknown {error} at offset {offset}, skipping.", None
        except (DecodeError, ValueError) as error:
            return f"Error at offset {offset}, skipping. {error}", None
        shown = compact({"type": str(record.number), "data": record.key})
        if record.value is None:
            return shown, "<DELETE>"
        return shown, compact({"version": str(record.version), "data": with_members(record)})

    return decode
