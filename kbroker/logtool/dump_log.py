"""Shows the batches and records of a log file, one batch in memory at a time."""

from __future__ import annotations

import os
from typing import Any

from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.log.log_scan import DAMAGED, find_batch, scan_segment
from kbroker.batch_errors import CorruptBatchError, DecompressionError
from kbroker.batch_summary import CRC_FROM, MAGIC_AT
from kbroker.coordinator.records.codec import RecordTypes
from kbroker.logtool.output import DAMAGE, NOTE, Output, Row
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Struct
from kbroker.record.batch import DECOMPRESSED_MAX, Record, RecordBatch
from kbroker.record.compression import CODEC_NAMES
from kbroker.record.control import TYPE_NAMES, control_type, parse_marker
from kbroker.record.legacy import LegacyMessage, read_message
from kbroker.storage.formats import base_offset_of
from kbroker.uuids import uuid_text

_SEQUENCES = 1 << 31
_INDENT = "| "


class DumpOptions:
    """records: show every record, not only batches. decoder: of an internal topic's records."""

    __slots__ = ("data", "decoder", "records")

    def __init__(
        self, *, records: bool = False, data: bool = False, decoder: RecordTypes | None = None
    ) -> None:
        self.data = data or decoder is not None
        self.records = records or self.data
        self.decoder = decoder


def dump_log(path: str, options: DumpOptions, out: Output) -> None:
    """Show a log file up to the first bytes that are not a batch. Raises OSError."""
    base_offset = base_offset_of(os.path.basename(path)) or 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        position = 0
        while position < size:
            try:
                batch = find_batch(fd, position, size)
            except ValueError as error:
                _report_end(fd, path, base_offset, position, size, str(error), out)
                return
            if batch is None:
                return
            data = os.pread(fd, batch.size, position)
            if len(data) < batch.size:
                out.finding(
                    path, DAMAGE, f"position {position}: the file was truncated in the meantime"
                )
                return
            _dump_entry(data, position, path, options, out)
            position += batch.size
    finally:
        os.close(fd)


def _report_end(
    fd: int, path: str, base_offset: int, position: int, size: int, problem: str, out: Output
) -> None:
    """Report the rest: damage, or preallocated space that has not been written yet."""
    tail = scan_segment(fd, base_offset, size, position=position, verify=False)
    if tail.stop == DAMAGED:
        text = f"{problem}; the last {size - position} bytes are not shown"
        out.finding(path, DAMAGE, text)
    else:
        out.finding(path, NOTE, f"nothing but zeros from position {position}")


def _dump_entry(data: bytes, position: int, path: str, options: DumpOptions, out: Output) -> None:
    magic = data[MAGIC_AT]
    try:
        if magic == 2:
            batch = RecordBatch(data)
            row = batch_row(batch, position)
            out.row(path, "batch", row)
            if options.records:
                _dump_records(batch, path, options, out)
        else:
            message = read_message(data)
            row = message_row(message, position)
            out.row(path, "message", row)
            if options.records:
                for inner in message.messages(DECOMPRESSED_MAX):
                    shown = legacy_record_row(inner)
                    if options.data:
                        shown.update(_content(inner.key, inner.value, options))
                    out.row(path, "record", shown, _INDENT)
    except (CorruptBatchError, DecompressionError) as error:
        out.finding(path, DAMAGE, f"position {position}: {error}")
        return
    if not row["isvalid"]:
        out.finding(path, DAMAGE, f"position {position}: the checksum does not match")


def batch_row(batch: RecordBatch, position: int) -> Row:
    """The fields of a batch of format 2 under the names of Kafka's dump tool."""
    header = batch.header
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": _sequence(header.base_sequence, header.last_offset_delta),
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": position,
        _time_name(batch.is_append_time): batch.max_timestamp,
        "size": batch.size,
        "magic": header.magic,
        "compresscodec": _codec_name(batch.codec),
        "crc": header.crc,
        "isvalid": crc32c(batch.data[CRC_FROM:]) == header.crc,
    }


def message_row(message: LegacyMessage, position: int) -> Row:
    """The fields of a message of format 0 or 1, under the same names."""
    return {
        "offset": message.offset,
        "position": position,
        _message_time_name(message): message.timestamp,
        "size": message.size,
        "magic": message.magic,
        "compresscodec": _codec_name(message.codec),
        "crc": message.crc,
        "isvalid": message.valid,
    }


def _dump_records(batch: RecordBatch, path: str, options: DumpOptions, out: Output) -> None:
    for record in batch.records():
        row = record_row(batch, record)
        if options.data and not batch.is_control:
            if record.headers:
                row["headers"] = [{"key": key, "value": value} for key, value in record.headers]
            row.update(_content(record.key, record.value, options))
        out.row(path, "record", row, _INDENT)


def record_row(batch: RecordBatch, record: Record) -> Row:
    """What the dump tool shows of a record beside its key and value."""
    row: Row = {
        "offset": record.offset,
        _time_name(batch.is_append_time): record.timestamp,
        "keySize": _size(record.key),
        "valueSize": _size(record.value),
        "sequence": _sequence(batch.header.base_sequence, record.offset - batch.base_offset),
        "headerKeys": [key for key, _value in record.headers],
    }
    return row | _control_fields(record) if batch.is_control else row


def _control_fields(record: Record) -> Row:
    marker = parse_marker(record.key, record.value)
    if marker is None:
        kind = control_type(record.key)
        name = dict(enumerate(TYPE_NAMES)).get(-1 if kind is None else kind, "UNKNOWN")
        return {"controlType": f"{name}({kind})"}
    return {
        "endTxnMarker": "COMMIT" if marker.commit else "ABORT",
        "coordinatorEpoch": marker.coordinator_epoch,
    }


def legacy_record_row(message: LegacyMessage) -> Row:
    """The same of a message of format 0 or 1."""
    return {
        "offset": message.offset,
        _message_time_name(message): message.timestamp,
        "keySize": _size(message.key),
        "valueSize": _size(message.value),
        "isValid": message.valid,
        "crc": message.crc,
    }


def _content(key: bytes | None, value: bytes | None, options: DumpOptions) -> Row:
    if options.decoder is None:
        return {"key": key, "payload": value}
    try:
        decoded_key, decoded_value = options.decoder.decode(key, value)
    except (DecodeError, ValueError) as error:
        return {"key": key, "payload": value, "undecodable": str(error)}
    return {
        "key": {"type": type(decoded_key).__name__, **fields_of(decoded_key)},
        "payload": None if decoded_value is None else fields_of(decoded_value),
    }


def fields_of(struct: Struct) -> dict[str, Any]:
    """A decoded message as plain values."""
    values = {name: _plain(getattr(struct, name)) for name in type(struct).__slots__}
    if isinstance(topic_id := values.get("topic_id"), bytes):
        values["topic_id"] = uuid_text(topic_id)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return fields_of(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value if isinstance(value, int | float | str | None) else str(value)


def _time_name(is_append_time: bool) -> str:
    return "LogAppendTime" if is_append_time else "CreateTime"


def _message_time_name(message: LegacyMessage) -> str:
    return _time_name(message.is_append_time) if message.magic else "NoTimestampType"


def _codec_name(codec: int) -> str:
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"unknown({codec})"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _sequence(base_sequence: int, delta: int) -> int:
    """Sequence numbers continue at 0 after the largest; -1: the batch has none."""
    return -1 if base_sequence < 0 else (base_sequence + delta) % _SEQUENCES
