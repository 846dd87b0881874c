"""Python's view of the primitive types of ``wire.pxd``, one call per value.

Hot code cimports the inline functions; nothing here is called per record or per request.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

_STATUS_TEXT = {
    READ_TRUNCATED: "the value runs past the end of the data",
    READ_OVERLONG: "the variable-length integer does not fit its type",
    READ_BAD_LENGTH: "negative or impossible length",
}


class WireFormatError(ValueError):
    """Bytes that are no value of the type asked for. ``status`` is the ReadStatus number."""

    def __init__(self, status: int) -> None:
        super().__init__(_STATUS_TEXT[status])
        self.status = status


cdef Reader reader_at(bytes data, Py_ssize_t position) except *:
    # The caller keeps `data` alive while it uses the reader.
    if position < 0 or position > len(data):
        raise IndexError(f"position {position} is outside {len(data)} bytes")
    return make_reader(<const uint8_t*>PyBytes_AS_STRING(data) + position, len(data) - position)


cdef object slice_or_none(const uint8_t* p, int32_t n):
    return None if n < 0 else PyBytes_FromStringAndSize(<const char*>p, n)


cdef bytes encoded_uvarlong(uint64_t value):
    cdef uint8_t[10] buffer
    cdef uint8_t* end = store_uvarlong(buffer, value)
    return PyBytes_FromStringAndSize(<const char*>buffer, end - buffer)


def encode_uvarint(uint32_t value) -> bytes:
    return encoded_uvarlong(value)


def encode_varint(int32_t value) -> bytes:
    return encoded_uvarlong(zigzag32(value))


def encode_varlong(int64_t value) -> bytes:
    return encoded_uvarlong(zigzag64(value))


def decode_uvarint(bytes data not None, Py_ssize_t position=0) -> tuple[int, int]:
    """(value, position after it). Raises WireFormatError."""
    cdef uint32_t value = 0
    cdef Reader r = reader_at(data, position)
    cdef Py_ssize_t before = bytes_left(&r)
    cdef ReadStatus status = read_uvarint(&r, &value)
    if status != READ_OK:
        raise WireFormatError(status)
    return value, position + before - bytes_left(&r)


def decode_varint(bytes data not None, Py_ssize_t position=0) -> tuple[int, int]:
    """(value, position after it). Raises WireFormatError."""
    cdef int32_t value = 0
    cdef Reader r = reader_at(data, position)
    cdef Py_ssize_t before = bytes_left(&r)
    cdef ReadStatus status = read_varint(&r, &value)
    if status != READ_OK:
        raise WireFormatError(status)
    return value, position + before - bytes_left(&r)


def decode_varlong(bytes data not None, Py_ssize_t position=0) -> tuple[int, int]:
    """(value, position after it). Raises WireFormatError."""
    cdef int64_t value = 0
    cdef Reader r = reader_at(data, position)
    cdef Py_ssize_t before = bytes_left(&r)
    cdef ReadStatus status = read_varlong(&r, &value)
    if status != READ_OK:
        raise WireFormatError(status)
    return value, position + before - bytes_left(&r)


def decode_sized(
    str kind, bytes data not None, Py_ssize_t position=0
) -> tuple[bytes | None, int]:
    """(bytes or None for null, position after them) of one string or bytes field.

    kind: "string", "bytes", "compact_string" or "compact_bytes". Raises WireFormatError.
    """
    cdef:
        const uint8_t* p = NULL
        int32_t n = -1
        Reader r = reader_at(data, position)
        Py_ssize_t before = bytes_left(&r)
        ReadStatus status
    if kind == "string":
        status = read_string(&r, &p, &n)
    elif kind == "bytes":
        status = read_bytes(&r, &p, &n)
    elif kind == "compact_string":
        status = read_compact_string(&r, &p, &n)
    elif kind == "compact_bytes":
        status = read_compact_bytes(&r, &p, &n)
    else:
        raise ValueError(f"no such kind of field: {kind!r}")
    if status != READ_OK:
        raise WireFormatError(status)
    return slice_or_none(p, n), position + before - bytes_left(&r)


def encode_sized(str kind, bytes value, Py_ssize_t room=1 << 20) -> bytes:
    """One string or bytes field, None for null. Raises OverflowError past ``room`` bytes."""
    cdef:
        const uint8_t* p = NULL
        int32_t n = -1
        bytearray out = bytearray(room)
        Writer w = make_writer(<uint8_t*>PyByteArray_AS_STRING(out), room)
        WriteStatus status
    if value is not None:
        n = <int32_t>len(value)
        p = <const uint8_t*>PyBytes_AS_STRING(value)
    if kind == "string":
        status = write_string(&w, p, n)
    elif kind == "bytes":
        status = write_bytes(&w, p, n)
    elif kind == "compact_string":
        status = write_compact_string(&w, p, n)
    elif kind == "compact_bytes":
        status = write_compact_bytes(&w, p, n)
    else:
        raise ValueError(f"no such kind of field: {kind!r}")
    if status != WRITE_OK:
        raise OverflowError(f"{kind} of {n} bytes does not fit")
    return bytes(out[: room - room_left(&w)])


def skip_tags(bytes data not None, Py_ssize_t position=0) -> int:
    """Position after the tagged-field section at ``position``. Raises WireFormatError."""
    cdef Reader r = reader_at(data, position)
    cdef Py_ssize_t before = bytes_left(&r)
    cdef ReadStatus status = skip_tagged_fields(&r)
    if status != READ_OK:
        raise WireFormatError(status)
    return position + before - bytes_left(&r)


def decode_array_count(
    bytes data not None, Py_ssize_t element_bytes_min, bint compact=False
) -> tuple[int, int]:
    """(count or -1 for null, position after it). Raises WireFormatError."""
    cdef int32_t count = 0
    cdef Reader r = reader_at(data, 0)
    cdef Py_ssize_t before = bytes_left(&r)
    cdef ReadStatus status
    if compact:
        status = read_compact_array_count(&r, element_bytes_min, &count)
    else:
        status = read_array_count(&r, element_bytes_min, &count)
    if status != READ_OK:
        raise WireFormatError(status)
    return count, before - bytes_left(&r)
