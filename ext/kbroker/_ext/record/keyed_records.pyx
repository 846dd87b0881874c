"""Finds the last records of each key of a compacted topic, in bulk, when the topic is loaded.

Only the last records of a key matter; the others are checked and skipped.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.base.wire cimport Reader, make_reader, read_raw, read_varint, read_varlong, skip
from kbroker._ext.record.plain_batch cimport read_plain_batch
from kbroker._ext.record.record_batch cimport BATCH_HEADER_BYTES, BATCH_LENGTH_END, BatchInfo


# Add the records of a batch; False, with some of them added, if one has no key.
cdef bint add_records(dict found, int keep, const uint8_t* p, const BatchInfo* info) except *:
    cdef:
        Reader r = make_reader(p, info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES)
        Reader record
        int32_t length = 0, delta = 0, key_size = 0, value_size = 0
        int64_t timestamp_delta = 0
        int32_t i
        const uint8_t* data = NULL
        bytes key
        object value
        list rows
    # SAFETY: read_plain_batch has checked every length, so no read here can fail; they are
    # bounds-checked anyway.
    for i in range(info.record_count):
        read_varint(&r, &length)
        record = make_reader(r.pos, length)
        skip(&r, length)
        skip(&record, 1)
        read_varlong(&record, &timestamp_delta)
        read_varint(&record, &delta)
        read_varint(&record, &key_size)
        if key_size < 0:
            return False
        read_raw(&record, key_size, &data)
        key = PyBytes_FromStringAndSize(<const char*>data, key_size)
        value = None
        read_varint(&record, &value_size)
        if value_size >= 0:
            read_raw(&record, value_size, &data)
            value = PyBytes_FromStringAndSize(<const char*>data, value_size)
        rows = <list>found.get(key)
        if rows is None:
            found[key] = [(info.base_offset + delta, value)]
            continue
        if len(rows) == keep:
            del rows[0]
        rows.append((info.base_offset + delta, value))
    return True


def latest_records(bytes data not None, Py_ssize_t position, int keep) -> tuple:
    """Read complete batches of ``data``, which come from a log, in order, from ``position`` on.

    Returns (position of the first batch not read, records read, offset after the last batch read or
    -1, {key: the last ``keep`` of its (offset, value), in order}). Stops at a batch that is
    incomplete, damaged or compressed, at a marker, and at one with a record without a key.
    """
    cdef:
        const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        Py_ssize_t size = PyBytes_GET_SIZE(data)
        Py_ssize_t batch_size
        BatchInfo info
        int64_t taken = 0
        int64_t next_offset = -1
        dict found = {}
    if position < 0 or position > size:
        raise IndexError(f"position {position} is outside {size} bytes")
    if keep < 1:
        raise ValueError(f"cannot keep {keep} records per key")
    while position < size:
        batch_size = read_plain_batch(start + position, size - position, &info)
        if batch_size == 0 or not add_records(found, keep, start + position + BATCH_HEADER_BYTES, &info):
            break
        taken += info.record_count
        next_offset = info.base_offset + info.last_offset_delta + 1
        position += batch_size
    return position, taken, next_offset, found
