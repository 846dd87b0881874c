"""Pure-Python twins of ``wire``, ``crc32c``, ``record_batch`` and ``codec_frames`` (``_ext``).

The oracle of the parity tests: same names, same results, and the same verdict for every hostile
input. Written to be read; a hundred times slower.
"""

import struct
from dataclasses import dataclass

from kbroker.batch_errors import (
    BatchStatus,
    CorruptBatchError,
    DecompressedTooLargeError,
    DecompressionError,
)
from kbroker.batch_summary import (
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchSummary,
)

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[bytes, bytes | None], ...]
DecodedRecord = tuple[int, int, bytes | None, bytes | None, Headers]

READ_TRUNCATED, READ_OVERLONG, READ_BAD_LENGTH = 1, 2, 3

LENGTH_END = 12
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35
RECORD_BYTES_MIN = 7
_NO_WALK = (-1, -1, -1, 0, 0)


class WireFormatError(ValueError):
    """Twin of ``kbroker._ext.base.wire.WireFormatError``."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


# ---- variable-length integers --------------------------------------------------------------------


def _encode_unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode_unsigned(data: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while shift < bits:
        if position >= end:
            raise WireFormatError(READ_TRUNCATED)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        # The last byte has room for bits - shift bits only, and no sign that more follows.
        if bits - shift < 7 and byte >> (bits - shift):
            raise WireFormatError(READ_OVERLONG)
        if byte < 0x80:
            return value, position
        shift += 7
    raise WireFormatError(READ_OVERLONG)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _unzigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def _require_bits(value: int, low: int, high: int) -> int:
    if not low <= value < high:
        raise OverflowError(f"{value} is out of range")
    return value


def encode_uvarint(value: int) -> bytes:
    return _encode_unsigned(_require_bits(value, 0, 1 << 32))


def encode_varint(value: int) -> bytes:
    return _encode_unsigned(_zigzag(_require_bits(value, -(1 << 31), 1 << 31)))


def encode_varlong(value: int) -> bytes:
    return _encode_unsigned(_zigzag(_require_bits(value, -(1 << 63), 1 << 63)))


def decode_uvarint(data: Buffer, position: int = 0) -> tuple[int, int]:
    return _decode_unsigned(data, position, len(data), 32)


def decode_varint(data: Buffer, position: int = 0, end: int | None = None) -> tuple[int, int]:
    raw, position = _decode_unsigned(data, position, len(data) if end is None else end, 32)
    return _unzigzag(raw), position


def decode_varlong(data: Buffer, position: int = 0, end: int | None = None) -> tuple[int, int]:
    raw, position = _decode_unsigned(data, position, len(data) if end is None else end, 64)
    return _unzigzag(raw), position


# ---- checksum ------------------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: Buffer, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data):
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ---- header --------------------------------------------------------------------------------------


def _corrupt(status: BatchStatus, bad_index: int = -1) -> CorruptBatchError:
    return CorruptBatchError(status, bad_index)


def read_header(data: Buffer, offset: int = 0) -> BatchSummary:
    header = memoryview(data)[offset : offset + HEADER_BYTES]
    if offset < 0 or offset > len(data):
        raise IndexError(f"offset {offset} is outside {len(data)} bytes")
    if len(header) <= MAGIC_AT:
        raise _corrupt(BatchStatus.TRUNCATED)
    if header[MAGIC_AT] != 2:
        raise _corrupt(BatchStatus.BAD_MAGIC)
    if struct.unpack_from(">i", header, 8)[0] < HEADER_BYTES - LENGTH_END:
        raise _corrupt(BatchStatus.BAD_LENGTH)
    if len(header) < HEADER_BYTES:
        raise _corrupt(BatchStatus.TRUNCATED)
    return BatchSummary._make((*HEADER.unpack(header), *_NO_WALK))


def _check_produced_header(header: BatchSummary, size: int) -> None:
    if size > header.size:
        raise _corrupt(BatchStatus.TRAILING_BYTES)
    if header.base_offset != 0:
        raise _corrupt(BatchStatus.BAD_BASE_OFFSET)
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise _corrupt(BatchStatus.BAD_RECORD_COUNT)
    if header.codec > 4:
        raise _corrupt(BatchStatus.UNKNOWN_CODEC)
    if header.attributes & CONTROL:
        raise _corrupt(BatchStatus.CONTROL_FROM_CLIENT)
    if header.attributes & LOG_APPEND_TIME:
        raise _corrupt(BatchStatus.BAD_TIMESTAMP)
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _corrupt(BatchStatus.BAD_SEQUENCE)


# ---- records -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """A place in one record; every read raises WireFormatError rather than pass ``end``."""

    data: memoryview
    position: int
    end: int

    def varint(self) -> int:
        value, self.position = decode_varint(self.data, self.position, self.end)
        return value

    def varlong(self) -> int:
        value, self.position = decode_varlong(self.data, self.position, self.end)
        return value

    def sized(self, length_min: int = -1) -> bytes | None:
        length = self.varint()
        if length < length_min or length > self.end - self.position:
            raise WireFormatError(READ_BAD_LENGTH)
        if length < 0:
            return None
        self.position += length
        return bytes(self.data[self.position - length : self.position])

    def headers(self) -> Headers:
        count = self.varint()
        if count < 0 or count > self.end - self.position:
            raise WireFormatError(READ_BAD_LENGTH)
        return tuple((self.sized(0) or b"", self.sized()) for _ in range(count))


def _read_record(
    records: memoryview,
    position: int,
    index: int,
    previous_delta: int,
    header: BatchSummary,
    stored: bool,
) -> tuple[DecodedRecord, int]:
    """The record at ``position``, and the position after it.

    Raises WireFormatError, or CorruptBatchError where the verdict has a name of its own.
    """
    cursor = _Cursor(records, position, len(records))
    length = cursor.varint()
    if length < RECORD_BYTES_MIN - 1 or length > cursor.end - cursor.position:
        raise WireFormatError(READ_BAD_LENGTH)
    cursor.end = cursor.position + length
    cursor.position += 1
    timestamp = header.first_timestamp + cursor.varlong()
    delta = cursor.varint()
    record = (delta, timestamp, cursor.sized(), cursor.sized(), cursor.headers())
    if cursor.position != cursor.end:
        raise WireFormatError(READ_BAD_LENGTH)
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise _corrupt(BatchStatus.BAD_TIMESTAMP, index)
    in_order = previous_delta < delta <= header.last_offset_delta if stored else delta == index
    if not in_order:
        raise _corrupt(BatchStatus.BAD_OFFSET_DELTA, index)
    return record, cursor.end


def _walk(data: Buffer, header: BatchSummary, stored: bool) -> list[DecodedRecord]:
    records = memoryview(data)
    found: list[DecodedRecord] = []
    position = 0
    delta = -1
    if header.record_count < 0 or header.record_count > len(records) // RECORD_BYTES_MIN:
        raise _corrupt(BatchStatus.BAD_RECORD_COUNT)
    for index in range(header.record_count):
        try:
            record, position = _read_record(records, position, index, delta, header, stored)
        except WireFormatError:
            raise _corrupt(BatchStatus.BAD_RECORD, index) from None
        delta = record[0]
        found.append(record)
    if position != len(records):
        raise _corrupt(BatchStatus.TRAILING_BYTES, header.record_count)
    return found


def _walked(header: BatchSummary, found: list[DecodedRecord], size: int) -> BatchSummary:
    timestamps = [timestamp for _, timestamp, *_ in found]
    newest = max(timestamps, default=-1)
    return header._replace(
        walked_max_timestamp=newest,
        walked_max_timestamp_offset_delta=found[timestamps.index(newest)][0] if found else -1,
        walked_min_timestamp=min((t for t in timestamps if t != -1), default=-1),
        keyless_count=sum(key is None for _, _, key, _, _ in found),
        uncompressed_bytes=size,
    )


def check_batch(data: Buffer, decompressed_max: int, *, stored: bool = False) -> BatchSummary:
    from kbroker.record.compression import decompress

    header = read_header(data)
    view = memoryview(data)
    if len(view) < header.size:
        raise _corrupt(BatchStatus.TRUNCATED)
    if crc32c(view[CRC_FROM : header.size]) != header.crc:
        raise _corrupt(BatchStatus.BAD_CRC)
    if not stored:
        _check_produced_header(header, len(view))
    elif header.last_offset_delta < 0 or header.record_count < 0:
        raise _corrupt(BatchStatus.BAD_RECORD_COUNT)
    records: Buffer = view[HEADER_BYTES : header.size]
    if header.codec and (len(records) or header.record_count):
        if header.codec > 4:
            raise _corrupt(BatchStatus.UNKNOWN_CODEC)
        try:
            records = decompress(header.codec, records, decompressed_max)
        except DecompressedTooLargeError:
            raise _corrupt(BatchStatus.TOO_LARGE_DECOMPRESSED) from None
        except DecompressionError:
            raise _corrupt(BatchStatus.DECOMPRESS_FAILED) from None
    return _walked(header, _walk(records, header, stored), len(records))


def decode_records(
    records: Buffer, count: int, last_offset_delta: int, first_timestamp: int
) -> list[DecodedRecord]:
    header = BatchSummary(
        *(0, 0, 0, 2, 0, 0, last_offset_delta, first_timestamp, 0, -1, -1, -1, count), *_NO_WALK
    )
    return _walk(records, header, True)


def _encode_sized(field: bytes | None) -> bytes:
    return encode_varint(-1) if field is None else encode_varint(len(field)) + field


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytes:
    parts = [b"\x00", encode_varlong(timestamp_delta), encode_varint(offset_delta)]
    parts += (_encode_sized(key), _encode_sized(value), encode_varint(len(headers)))
    for header_key, header_value in headers:
        if header_key is None:
            raise TypeError("a header key must not be null")
        parts += (_encode_sized(header_key), _encode_sized(header_value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


# ---- stamping ------------------------------------------------------------------------------------


def _require_header(data: bytearray) -> None:
    if len(data) < HEADER_BYTES:
        raise _corrupt(BatchStatus.TRUNCATED)


def stamp_for_append(data: bytearray, base_offset: int, leader_epoch: int) -> None:
    _require_header(data)
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, LENGTH_END, leader_epoch)


def stamp_log_append_time(data: bytearray, now_ms: int) -> None:
    _require_header(data)
    data[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
    stamp_max_timestamp(data, now_ms)


def stamp_max_timestamp(data: bytearray, max_timestamp: int) -> None:
    _require_header(data)
    struct.pack_into(">q", data, MAX_TIMESTAMP_AT, max_timestamp)
    struct.pack_into(">I", data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))


# ---- frames of zstd and lz4 ----------------------------------------------------------------------


class _Bytes:
    """Little-endian reads of a frame; ValueError past the end."""

    def __init__(self, data: Buffer, position: int) -> None:
        if position < 0 or position > len(data):
            raise IndexError(f"start {position} is outside {len(data)} bytes")
        self.data = memoryview(data)
        self.position = position

    def take(self, n: int) -> int:
        self.skip(n)
        return int.from_bytes(self.data[self.position - n : self.position], "little")

    def skip(self, n: int) -> None:
        if n > len(self.data) - self.position:
            raise ValueError("cut short")
        self.position += n


def scan_zstd_frame(data: Buffer, start: int = 0) -> tuple[int, int, int]:
    source = _Bytes(data, start)
    magic, flags = source.take(4), source.take(1)
    single_segment = bool(flags & 0x20)
    if magic != 0xFD2FB528 or flags & 0x08:
        raise ValueError("malformed frame")
    source.skip((0 if single_segment else 1) + (0, 1, 2, 4)[flags & 3])
    field_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
    content = source.take(field_bytes) + (256 if field_bytes == 2 else 0)
    if content >> 63:
        raise ValueError("malformed frame")
    bound = 0
    last = False
    while not last:
        block = source.take(3)
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3 or size > 128 * 1024:
            raise ValueError("malformed frame")
        bound += 128 * 1024 if kind == 2 else size
        source.skip(1 if kind == 1 else size)
    source.skip(4 if flags & 0x04 else 0)
    return source.position, content if field_bytes else -1, bound


def decode_lz4_frame(data: Buffer, decode_block: int) -> bytes | None:
    """None: there is no direct way in Python, the caller uses the library's frame decoder."""
    return None


def scan_lz4_frame(data: Buffer, start: int = 0) -> tuple[int, int, int]:
    source = _Bytes(data, start)
    magic, flags, descriptor = source.take(4), source.take(1), source.take(1)
    independent_v1_no_dictionary = flags & 0xE3 == 0x60
    if magic != 0x184D2204 or not independent_v1_no_dictionary:
        raise ValueError("malformed frame")
    if descriptor & 0x8F or descriptor >> 4 < 4:
        raise ValueError("malformed frame")
    block_bytes_max = 1 << (8 + 2 * (descriptor >> 4))
    content = source.take(8 if flags & 0x08 else 0)
    source.skip(1)
    if content >> 63:
        raise ValueError("malformed frame")
    bound = 0
    while size := (block := source.take(4)) & 0x7FFFFFFF:
        if size > block_bytes_max:
            raise ValueError("malformed frame")
        bound += size if block >> 31 else block_bytes_max
        source.skip(size + (4 if flags & 0x10 else 0))
    source.skip(4 if flags & 0x04 else 0)
    return source.position, content if flags & 0x08 else -1, bound
