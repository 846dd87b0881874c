"""Decodes records of format 2 to Python objects, and encodes them one by one.

For tools, coordinators and lookups; produce and fetch never create objects for records. Oracle:
``tests/support/storage/record_oracle.py``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kbroker._ext.base.wire cimport store_uvarlong, varint_size, varlong_size, zigzag32, zigzag64
from kbroker._ext.record.record_batch cimport (
    BATCH_OK,
    BatchInfo,
    BatchStatus,
    Varint,
    raise_corrupt,
    unzigzag,
    varint_at,
    walk_stored_records,
)


cdef object bytes_or_none(const uint8_t* p, int64_t n):
    return None if n < 0 else PyBytes_FromStringAndSize(<const char*>p, <Py_ssize_t>n)


cdef object headers_at(const uint8_t* p, const uint8_t* end, int64_t count):
    # Only called for walked bytes, so every varint is complete and every length fits.
    cdef:
        Varint v
        int64_t n
        list found = []
    for _ in range(count):
        v = varint_at(p, end, False)
        n = unzigzag(v.raw)
        key = PyBytes_FromStringAndSize(<const char*>v.next, <Py_ssize_t>n)
        v = varint_at(v.next + n, end, False)
        n = unzigzag(v.raw)
        found.append((key, bytes_or_none(v.next, n)))
        p = v.next + (n if n > 0 else 0)
    return tuple(found)


def decode_records(records, int32_t count, int32_t last_offset_delta, int64_t first_timestamp):
    """Decode uncompressed records to a list of (offset delta, timestamp, key, value, headers).

    Copies every key and value. Walks the bytes first, with the rules for stored batches. Raises
    CorruptBatchError.
    """
    cdef:
        Py_buffer view
        BatchInfo info
        BatchStatus status
        Varint v
        int64_t n, offset_delta, timestamp
        const uint8_t* p
        const uint8_t* end
        const uint8_t* record_end
        int32_t bad_index = -1
        list found = []
    memset(&info, 0, sizeof(BatchInfo))
    info.record_count = count
    info.last_offset_delta = last_offset_delta
    info.first_timestamp = first_timestamp
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        end = p + view.len
        status = walk_stored_records(p, view.len, &info, &bad_index)
        if status != BATCH_OK:
            raise_corrupt(status, bad_index)
        # SAFETY: the walk above has proved that every length below stays within its record.
        for _ in range(count):
            v = varint_at(p, end, False)
            record_end = v.next + unzigzag(v.raw)
            v = varint_at(v.next + 1, record_end, True)
            timestamp = first_timestamp + unzigzag(v.raw)
            v = varint_at(v.next, record_end, False)
            offset_delta = unzigzag(v.raw)
            v = varint_at(v.next, record_end, False)
            n = unzigzag(v.raw)
            key = bytes_or_none(v.next, n)
            v = varint_at(v.next + (n if n > 0 else 0), record_end, False)
            n = unzigzag(v.raw)
            value = bytes_or_none(v.next, n)
            v = varint_at(v.next + (n if n > 0 else 0), record_end, False)
            n = unzigzag(v.raw)
            headers = headers_at(v.next, record_end, n) if n > 0 else ()
            found.append((offset_delta, timestamp, key, value, headers))
            p = record_end
    finally:
        PyBuffer_Release(&view)
    return found


cdef Py_ssize_t sized_bytes(bytes field) except -1:
    # Encoded size of a key or value including its length; None is null.
    if field is None:
        return 1
    if PyBytes_GET_SIZE(field) > INT32_MAX:
        raise OverflowError(f"{PyBytes_GET_SIZE(field)} bytes do not fit in a record")
    return varint_size(<int32_t>PyBytes_GET_SIZE(field)) + PyBytes_GET_SIZE(field)


cdef uint8_t* store_sized(uint8_t* p, bytes field) noexcept:
    # Unchecked: p has room for sized_bytes(field) bytes. Returns the byte after.
    cdef Py_ssize_t n
    if field is None:
        return store_uvarlong(p, zigzag32(-1))
    n = PyBytes_GET_SIZE(field)
    p = store_uvarlong(p, zigzag32(<int32_t>n))
    memcpy(p, PyBytes_AS_STRING(field), <size_t>n)
    return p + n


def encode_record(
    int32_t offset_delta, int64_t timestamp_delta, bytes key, bytes value, tuple headers not None
) -> bytes:
    """Encode one record as it is in a batch, including its length; None is null.

    headers: ((key, value or None), ...).
    """
    cdef:
        Py_ssize_t size
        bytes record
        bytes header_key, header_value
        uint8_t* p
    size = 1 + varlong_size(timestamp_delta) + varint_size(offset_delta)
    size += sized_bytes(key) + sized_bytes(value) + varint_size(<int32_t>len(headers))
    for header_key, header_value in headers:
        if header_key is None:
            raise TypeError("the key of a header cannot be null")
        size += sized_bytes(header_key) + sized_bytes(header_value)
    if size > INT32_MAX:
        raise OverflowError(f"{size} bytes do not fit in a record")
    record = PyBytes_FromStringAndSize(NULL, size + varint_size(<int32_t>size))
    p = store_uvarlong(<uint8_t*>PyBytes_AS_STRING(record), zigzag32(<int32_t>size))
    p[0] = 0
    p = store_uvarlong(p + 1, zigzag64(timestamp_delta))
    p = store_uvarlong(p, zigzag32(offset_delta))
    p = store_sized(p, key)
    p = store_sized(p, value)
    p = store_uvarlong(p, zigzag32(<int32_t>len(headers)))
    for header_key, header_value in headers:
        p = store_sized(p, header_key)
        p = store_sized(p, header_value)
    return record
