"""Writes the batch of a coordinator's operation: not compressed, with one timestamp for all records;
and reads it when the coordinator is loaded.

Twin: ``kbroker.record.builder.BatchBuilder``, which also compresses.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.wire cimport (
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_uvarlong,
    uvarlong_size,
    zigzag32,
)
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CRC_AT,
    BATCH_CRC_FROM,
    BATCH_FIRST_TIMESTAMP_AT,
    BATCH_HEADER_BYTES,
    BATCH_LAST_OFFSET_DELTA_AT,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_MAX_TIMESTAMP_AT,
    BATCH_OK,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    BATCH_RECORD_COUNT_AT,
    CODEC_NONE,
    BatchInfo,
    check_crc,
    offsets_fit,
    read_batch_header,
    walk_stored_records,
)


cdef Py_ssize_t read_plain_batch(const uint8_t* start, Py_ssize_t size, BatchInfo* info) noexcept:
    cdef int32_t bad_index = -1
    cdef Py_ssize_t batch_size
    if read_batch_header(start, size, info) != BATCH_OK:
        return 0
    if info.attributes & ATTRIBUTE_CONTROL or info.attributes & ATTRIBUTE_CODEC_MASK != CODEC_NONE:
        return 0
    if not offsets_fit(info) or check_crc(start, info) != BATCH_OK:
        return 0
    batch_size = info.batch_length + BATCH_LENGTH_END
    if walk_stored_records(
        start + BATCH_HEADER_BYTES, batch_size - BATCH_HEADER_BYTES, info, &bad_index
    ) != BATCH_OK:
        return 0
    return batch_size


cdef inline uint64_t signed(Py_ssize_t n) noexcept:
    return zigzag32(<int32_t>n)


cdef Py_ssize_t body_size(Py_ssize_t delta, bytes key, bytes value) except -1:
    # Size of a record after its length: attributes, two deltas, key, value, no headers.
    if key is None:
        raise TypeError("a record of a compacted topic needs a key")
    cdef Py_ssize_t size = 3 + uvarlong_size(signed(delta))
    size += uvarlong_size(signed(PyBytes_GET_SIZE(key))) + PyBytes_GET_SIZE(key)
    if value is None:
        return size + 1
    return size + uvarlong_size(signed(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value)


cdef void begin_batch(
    uint8_t* start, Py_ssize_t size, Py_ssize_t count, int64_t timestamp, int64_t producer_id, int16_t producer_epoch
) noexcept:
    store_i64(start, 0)
    store_i32(start + 8, <int32_t>(size - BATCH_LENGTH_END))
    store_i32(start + BATCH_LENGTH_END, -1)
    start[BATCH_MAGIC_AT] = 2
    store_i16(start + BATCH_ATTRIBUTES_AT, ATTRIBUTE_TRANSACTIONAL if producer_id >= 0 else 0)
    store_i32(start + BATCH_LAST_OFFSET_DELTA_AT, <int32_t>(count - 1))
    store_i64(start + BATCH_FIRST_TIMESTAMP_AT, timestamp)
    store_i64(start + BATCH_MAX_TIMESTAMP_AT, timestamp)
    store_i64(start + BATCH_PRODUCER_ID_AT, producer_id)
    store_i16(start + BATCH_PRODUCER_EPOCH_AT, producer_epoch)
    store_i32(start + BATCH_BASE_SEQUENCE_AT, -1)
    store_i32(start + BATCH_RECORD_COUNT_AT, <int32_t>count)


cdef void end_batch(uint8_t* start, Py_ssize_t size) noexcept:
    store_u32(
        start + BATCH_CRC_AT, crc32c(start + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM))
    )


def build_batch(
    list records not None, int64_t timestamp, int64_t producer_id=-1, int16_t producer_epoch=-1
) -> bytes:
    """Build one batch of [(key, value or None)...], which must not be empty.

    producer_id: makes the batch transactional; -1: not transactional.
    """
    cdef:
        Py_ssize_t size = BATCH_HEADER_BYTES
        Py_ssize_t count = len(records)
        Py_ssize_t delta, body
        bytes key, value, batch
        uint8_t* start
        uint8_t* p
    if count == 0:
        raise ValueError("a batch needs at least one record")
    for delta in range(count):
        key, value = records[delta]
        body = body_size(delta, key, value)
        size += body + uvarlong_size(signed(body))
    # BOUND: all lengths and counts of the format are 32 bits.
    if size > INT32_MAX:
        raise OverflowError(f"a batch cannot have {size} bytes")
    batch = PyBytes_FromStringAndSize(NULL, size)
    start = <uint8_t*>PyBytes_AS_STRING(batch)
    begin_batch(start, size, count, timestamp, producer_id, producer_epoch)
    p = start + BATCH_HEADER_BYTES
    for delta in range(count):
        key, value = records[delta]
        p = store_uvarlong(p, signed(body_size(delta, key, value)))
        p[0] = 0
        p[1] = 0
        p = store_uvarlong(p + 2, signed(delta))
        p = store_uvarlong(p, signed(PyBytes_GET_SIZE(key)))
        memcpy(p, PyBytes_AS_STRING(key), <size_t>PyBytes_GET_SIZE(key))
        p += PyBytes_GET_SIZE(key)
        if value is None:
            p = store_uvarlong(p, signed(-1))
        else:
            p = store_uvarlong(p, signed(PyBytes_GET_SIZE(value)))
            memcpy(p, PyBytes_AS_STRING(value), <size_t>PyBytes_GET_SIZE(value))
            p += PyBytes_GET_SIZE(value)
        p[0] = 0
        p += 1
    assert p == start + size
    end_batch(start, size)
    return batch
