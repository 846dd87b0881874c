"""Record batches of message format 2: header, checksum, and a walk over every record.

Runs in io workers (produce, replica append, recovery) and in tools. One pass over the bytes for the
checksum, one over the records; no allocation and no copy, except for compressed batches, whose
records are decompressed into at most ``decompressed_max`` bytes: LZ4 into a buffer that is reused,
the others into a bytes object. Only that needs the GIL. Oracle: ``tests/support/storage/record_oracle.py``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kbroker._ext.base.crc32c cimport crc32c, crc32c_extend
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u32,
    read_uvarint,
    read_uvarlong,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
)
from kbroker._ext.record.codec_frames cimport Lz4DecodeBlock, decode_plain_lz4, plain_lz4_bound
from kbroker._ext.record.codecs cimport (
    UNPACK_TOO_LARGE,
    UnpackStatus,
    lz4_block_decoder,
    try_unpack,
)

from kbroker.batch_errors import CorruptBatchError
from kbroker.batch_summary import BatchSummary

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* sum) noexcept nogil

cdef enum:
    # Length, attributes, timestamp delta, offset delta, key length, value length, header count: a
    # byte each.
    RECORD_BYTES_MIN = 7
    # BOUND: size of the buffer kept for the next LZ4 batch. Batches of producers' default size have up to a megabyte.
    SPARE_BYTES_MAX = 4194304


# ---- header --------------------------------------------------------------------------------------

cdef BatchStatus peek_batch_header(
    const uint8_t* data, Py_ssize_t size, BatchInfo* info
) noexcept nogil:
    memset(info, 0, sizeof(BatchInfo))
    info.walked_max_timestamp = -1
    info.walked_max_timestamp_offset_delta = -1
    info.walked_min_timestamp = -1
    if size <= BATCH_MAGIC_AT:
        return BATCH_TRUNCATED
    # All formats have the same layout up to the magic byte.
    info.base_offset = load_i64(data)
    info.batch_length = load_i32(data + 8)
    info.partition_leader_epoch = load_i32(data + BATCH_LENGTH_END)
    info.magic = load_i8(data + BATCH_MAGIC_AT)
    if info.magic != 2:
        return BATCH_BAD_MAGIC
    if info.batch_length < BATCH_HEADER_BYTES - BATCH_LENGTH_END:
        return BATCH_BAD_LENGTH
    if size < BATCH_HEADER_BYTES:
        return BATCH_TRUNCATED
    info.crc = load_u32(data + BATCH_CRC_AT)
    info.attributes = load_i16(data + BATCH_ATTRIBUTES_AT)
    info.last_offset_delta = load_i32(data + BATCH_LAST_OFFSET_DELTA_AT)
    info.first_timestamp = load_i64(data + BATCH_FIRST_TIMESTAMP_AT)
    info.max_timestamp = load_i64(data + BATCH_MAX_TIMESTAMP_AT)
    info.producer_id = load_i64(data + BATCH_PRODUCER_ID_AT)
    info.producer_epoch = load_i16(data + BATCH_PRODUCER_EPOCH_AT)
    info.base_sequence = load_i32(data + BATCH_BASE_SEQUENCE_AT)
    info.record_count = load_i32(data + BATCH_RECORD_COUNT_AT)
    return BATCH_OK


cdef BatchStatus read_batch_header(
    const uint8_t* data, Py_ssize_t size, BatchInfo* info
) noexcept nogil:
    cdef BatchStatus status = peek_batch_header(data, size, info)
    if status == BATCH_OK and size - BATCH_LENGTH_END < info.batch_length:
        return BATCH_TRUNCATED
    return status


cdef BatchStatus check_crc(const uint8_t* data, const BatchInfo* info) noexcept nogil:
    cdef size_t covered = <size_t>(info.batch_length - (BATCH_CRC_FROM - BATCH_LENGTH_END))
    if crc32c(data + BATCH_CRC_FROM, covered) != info.crc:
        return BATCH_BAD_CRC
    return BATCH_OK


cdef BatchStatus check_produced_header(const BatchInfo* info, Py_ssize_t size) noexcept nogil:
    if size - BATCH_LENGTH_END > info.batch_length:
        return BATCH_TRAILING_BYTES
    if info.base_offset != 0:
        return BATCH_BAD_BASE_OFFSET
    if info.record_count <= 0 or info.last_offset_delta != info.record_count - 1:
        return BATCH_BAD_RECORD_COUNT
    if info.attributes & ATTRIBUTE_CODEC_MASK > CODEC_ZSTD:
        return BATCH_UNKNOWN_CODEC
    if info.attributes & ATTRIBUTE_CONTROL:
        return BATCH_CONTROL_FROM_CLIENT
    if info.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return BATCH_BAD_TIMESTAMP
    if info.producer_id >= 0 and (info.base_sequence < 0 or info.producer_epoch < 0):
        return BATCH_BAD_SEQUENCE
    return BATCH_OK


# ---- records -------------------------------------------------------------------------------------

cdef Varint varint_long_form(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef:
        Varint found
        Reader r
        uint32_t raw = 0
    r.pos = p
    r.end = end
    found.next = NULL
    found.raw = 0
    if read_uvarint(&r, &raw) == READ_OK:
        found.next = r.pos
        found.raw = raw
    return found


cdef Varint varlong_long_form(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef:
        Varint found
        Reader r
        uint64_t raw = 0
    r.pos = p
    r.end = end
    found.next = NULL
    found.raw = 0
    if read_uvarlong(&r, &raw) == READ_OK:
        found.next = r.pos
        found.raw = raw
    return found


# The byte after `count` headers that start at p; NULL if they are malformed. A value may be null, a
# key may not.
cdef const uint8_t* skip_headers(
    const uint8_t* p, const uint8_t* end, int64_t count
) noexcept nogil:
    cdef:
        Varint v
        int64_t n
    # BOUND: each iteration consumes two bytes or returns, so a wrong count costs no more than the record's size.
    while count > 0:
        v = varint_at(p, end, False)
        n = unzigzag(v.raw)
        if v.next == NULL or n < 0 or n > end - v.next:
            return NULL
        v = varint_at(v.next + n, end, False)
        n = unzigzag(v.raw)
        if v.next == NULL or n < -1 or n > end - v.next:
            return NULL
        p = v.next + (n if n > 0 else 0)
        count -= 1
    return p


# The fields of a record that the walk needs. `next` is the byte after it, NULL if it is malformed. WIRE: length,
# attributes (unused), timestamp delta, offset delta, key, value, headers.
cdef struct Fields:
    const uint8_t* next
    int64_t timestamp_delta
    int64_t offset_delta
    bint keyless


# Read one record of any shape.
cdef Fields careful_fields(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef:
        Fields found
        Varint v
        int64_t n
    found.next = NULL
    found.keyless = False
    found.timestamp_delta = found.offset_delta = 0
    v = varint_at(p, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < RECORD_BYTES_MIN - 1 or n > end - v.next:
        return found
    end = v.next + n
    v = varint_at(v.next + 1, end, True)
    if v.next == NULL:
        return found
    found.timestamp_delta = unzigzag(v.raw)
    v = varint_at(v.next, end, False)
    if v.next == NULL:
        return found
    found.offset_delta = unzigzag(v.raw)
    v = varint_at(v.next, end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < -1 or n > end - v.next:
        return found
    found.keyless = n < 0
    v = varint_at(v.next + (n if n > 0 else 0), end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < -1 or n > end - v.next:
        return found
    v = varint_at(v.next + (n if n > 0 else 0), end, False)
    n = unzigzag(v.raw)
    if v.next == NULL or n < 0 or skip_headers(v.next, end, n) != end:
        return found
    found.next = end
    return found


# Read a varint of one or two bytes at p; `next` is NULL if it is longer. The caller knows that two
# bytes are readable.
cdef inline Varint short_varint(const uint8_t* p) noexcept nogil:
    cdef Varint found
    found.raw = p[0]
    found.next = p + 1
    if found.raw >= 0x80:
        found.raw = (found.raw & 0x7F) | (<uint32_t>p[1] << 7)
        found.next = p + 2 if p[1] < 0x80 else NULL
    return found


# The same for the common case: lengths and deltas of one or two bytes, fewer than 64 headers. NULL
# means "use careful_fields" and says nothing about the record. Takes half as long.
cdef inline Fields quick_fields(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef:
        Fields found
        Varint v
        const uint8_t* at
        int64_t n
    found.next = NULL
    if end - p < 10:
        return found
    v = short_varint(p)
    n = <int64_t>(v.raw >> 1)
    # SAFETY: eight bytes of body have room for the attributes and three short varints, so those need
    # no further check; `end` becomes the end of the record.
    if v.next == NULL or v.raw & 1 or n < 8 or n > end - v.next:
        return found
    end = v.next + n
    v = short_varint(v.next + 1)
    if v.next == NULL:
        return found
    found.timestamp_delta = unzigzag(v.raw)
    v = short_varint(v.next)
    if v.next == NULL:
        return found
    found.offset_delta = unzigzag(v.raw)
    v = short_varint(v.next)
    if v.next == NULL:
        return found
    at = v.next
    found.keyless = v.raw == 1
    if v.raw != 1:
        n = <int64_t>(v.raw >> 1)
        if v.raw & 1 or n > end - at:
            return found
        at += n
    if end - at < 2:
        return found
    v = short_varint(at)
    if v.next == NULL:
        return found
    at = v.next
    if v.raw != 1:
        n = <int64_t>(v.raw >> 1)
        if v.raw & 1 or n > end - at:
            return found
        at += n
    n = end - at
    if n == 1 and at[0] == 0:
        found.next = end
    elif n > 1 and at[0] < 0x80 and at[0] & 1 == 0 and skip_headers(at + 1, end, at[0] >> 1) == end:
        found.next = end
    return found


# The walk itself. `stored` is a constant at both calls, so each gets its own copy without the
# other's tests; setup.py sees to it (INLINED).
cdef inline BatchStatus walk(
    const uint8_t* p, Py_ssize_t size, BatchInfo* info, int32_t* bad_index, bint stored
) noexcept nogil:
    cdef:
        const uint8_t* end = p + size
        Fields record
        int64_t timestamp = 0
        int64_t last_delta = -1
        int64_t max_timestamp = -1
        int64_t max_timestamp_delta = -1
        int64_t min_timestamp = INT64_MAX
        int64_t first_timestamp = info.first_timestamp
        int32_t keyless = 0
        int32_t count = info.record_count
        int32_t i

    bad_index[0] = -1
    info.uncompressed_bytes = size
    if count < 0 or count > size / RECORD_BYTES_MIN:
        return BATCH_BAD_RECORD_COUNT
    for i in range(count):
        record = quick_fields(p, end)
        if record.next == NULL:
            record = careful_fields(p, end)
            if record.next == NULL:
                bad_index[0] = i
                return BATCH_BAD_RECORD
        if __builtin_add_overflow(first_timestamp, record.timestamp_delta, &timestamp):
            bad_index[0] = i
            return BATCH_BAD_TIMESTAMP
        if stored:
            if record.offset_delta <= last_delta or record.offset_delta > info.last_offset_delta:
                bad_index[0] = i
                return BATCH_BAD_OFFSET_DELTA
            last_delta = record.offset_delta
        elif record.offset_delta != i:
            bad_index[0] = i
            return BATCH_BAD_OFFSET_DELTA
        if timestamp > max_timestamp or i == 0:
            max_timestamp = timestamp
            max_timestamp_delta = record.offset_delta
        if timestamp < min_timestamp and timestamp != -1:
            min_timestamp = timestamp
        keyless += record.keyless
        p = record.next

    if p != end:
        bad_index[0] = count
        return BATCH_TRAILING_BYTES
    info.walked_max_timestamp = max_timestamp
    info.walked_max_timestamp_offset_delta = max_timestamp_delta
    info.walked_min_timestamp = -1 if min_timestamp == INT64_MAX else min_timestamp
    info.keyless_count = keyless
    return BATCH_OK


cdef BatchStatus walk_records(
    const uint8_t* records, Py_ssize_t size, BatchInfo* info, int32_t* bad_index
) noexcept nogil:
    return walk(records, size, info, bad_index, False)


cdef BatchStatus walk_stored_records(
    const uint8_t* records, Py_ssize_t size, BatchInfo* info, int32_t* bad_index
) noexcept nogil:
    return walk(records, size, info, bad_index, True)


# ---- the whole batch -----------------------------------------------------------------------------

cdef bytes decompressed(
    const uint8_t* data, const BatchInfo* info, int64_t decompressed_max, BatchStatus* status
):
    cdef UnpackStatus unpacked
    cdef Py_ssize_t size = info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
    cdef bytes records = try_unpack(
        info.attributes & ATTRIBUTE_CODEC_MASK, data + BATCH_HEADER_BYTES, size, decompressed_max, &unpacked)
    if records is None:
        status[0] = BATCH_TOO_LARGE_DECOMPRESSED if unpacked == UNPACK_TOO_LARGE else BATCH_DECOMPRESS_FAILED
    return records


# A buffer for decoded records, at most one; NULL while it is in use.
cdef uint8_t* _spare = NULL
cdef int64_t _spare_size = 0


# Decode and walk the records of an LZ4 batch without a Python object. False: this was not possible; the general path,
# which also reports the error, must be used.
cdef bint walked_lz4(
    const uint8_t* data, BatchInfo* info, Py_ssize_t decompressed_max, bint stored, BatchStatus* status,
    int32_t* bad_index
) except -1:
    global _spare, _spare_size
    cdef:
        Lz4DecodeBlock decode_block = lz4_block_decoder()
        Py_ssize_t size = info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
        int64_t bound, capacity
        int64_t found
        uint8_t* buffer
    bound = plain_lz4_bound(data + BATCH_HEADER_BYTES, size)
    if decode_block == NULL or bound < 0 or bound > decompressed_max:
        return False
    # Taken while the GIL is held, so another thread allocates its own buffer.
    buffer, capacity = _spare, _spare_size
    _spare = NULL
    if buffer == NULL or capacity < bound:
        free(buffer)
        capacity = max(bound, 1)
        buffer = <uint8_t*>malloc(<size_t>capacity)
        if buffer == NULL:
            raise MemoryError
    with nogil:
        found = decode_plain_lz4(data + BATCH_HEADER_BYTES, size, buffer, bound, decode_block)
        if found >= 0:
            status[0] = walk(buffer, <Py_ssize_t>found, info, bad_index, stored)
    if _spare == NULL and capacity <= SPARE_BYTES_MAX:
        _spare, _spare_size = buffer, capacity
    else:
        free(buffer)
    return found >= 0


cdef BatchStatus check_produced_batch(
    const uint8_t* data,
    Py_ssize_t size,
    Py_ssize_t decompressed_max,
    BatchInfo* info,
    int32_t* bad_index,
) except? BATCH_PYTHON_ERROR:
    cdef BatchStatus status
    bad_index[0] = -1
    status = read_batch_header(data, size, info)
    if status == BATCH_OK:
        status = check_crc(data, info)
    if status == BATCH_OK:
        status = check_produced_header(info, size)
    if status != BATCH_OK:
        return status
    if info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_NONE:
        return walk_records(data + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES, info, bad_index)
    if info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_LZ4:
        if walked_lz4(data, info, decompressed_max, False, &status, bad_index):
            return status
    records = decompressed(data, info, decompressed_max, &status)
    if records is None:
        return status
    return walk_records(
        <const uint8_t*>PyBytes_AS_STRING(records), PyBytes_GET_SIZE(records), info, bad_index
    )


cdef BatchStatus check_stored_batch(
    const uint8_t* data,
    Py_ssize_t size,
    Py_ssize_t decompressed_max,
    BatchInfo* info,
    int32_t* bad_index,
) except? BATCH_PYTHON_ERROR:
    cdef BatchStatus status
    bad_index[0] = -1
    status = read_batch_header(data, size, info)
    if status == BATCH_OK:
        status = check_crc(data, info)
    if status != BATCH_OK:
        return status
    if info.last_offset_delta < 0 or info.record_count < 0:
        return BATCH_BAD_RECORD_COUNT
    size = info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
    # A batch that compaction has emptied has no compressed stream.
    if info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_NONE or info.record_count + size == 0:
        return walk_stored_records(data + BATCH_HEADER_BYTES, size, info, bad_index)
    if info.attributes & ATTRIBUTE_CODEC_MASK > CODEC_ZSTD:
        return BATCH_UNKNOWN_CODEC
    if info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_LZ4:
        if walked_lz4(data, info, decompressed_max, True, &status, bad_index):
            return status
    records = decompressed(data, info, decompressed_max, &status)
    if records is None:
        return status
    return walk_stored_records(
        <const uint8_t*>PyBytes_AS_STRING(records), PyBytes_GET_SIZE(records), info, bad_index
    )


# ---- stamping ------------------------------------------------------------------------------------

cdef void patch_for_append(uint8_t* data, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    store_i64(data, base_offset)
    store_i32(data + BATCH_LENGTH_END, leader_epoch)


cdef void patch_log_append_time(
    uint8_t* header, const uint8_t* records, Py_ssize_t size, int64_t now_ms
) noexcept nogil:
    cdef int16_t attributes = load_i16(header + BATCH_ATTRIBUTES_AT)
    store_i16(header + BATCH_ATTRIBUTES_AT, attributes | ATTRIBUTE_LOG_APPEND_TIME)
    patch_max_timestamp(header, records, size, now_ms)


cdef void patch_max_timestamp(
    uint8_t* header, const uint8_t* records, Py_ssize_t size, int64_t max_timestamp
) noexcept nogil:
    cdef uint32_t crc
    store_i64(header + BATCH_MAX_TIMESTAMP_AT, max_timestamp)
    crc = crc32c(header + BATCH_CRC_FROM, BATCH_HEADER_BYTES - BATCH_CRC_FROM)
    store_u32(header + BATCH_CRC_AT, crc32c_extend(crc, records, <size_t>size))


# ---- Python's view, for tests and cold paths -----------------------------------------------------

cdef object raise_corrupt(BatchStatus status, int32_t bad_index):
    raise CorruptBatchError(status, bad_index)


cdef object summary(const BatchInfo* info):
    return BatchSummary(
        info.base_offset,
        info.batch_length,
        info.partition_leader_epoch,
        info.magic,
        info.crc,
        info.attributes,
        info.last_offset_delta,
        info.first_timestamp,
        info.max_timestamp,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
        info.record_count,
        info.walked_max_timestamp,
        info.walked_max_timestamp_offset_delta,
        info.walked_min_timestamp,
        info.keyless_count,
        info.uncompressed_bytes,
    )


def check_batch(data, Py_ssize_t decompressed_max, *, bint stored=False):
    """Check one batch in full and return its BatchSummary. Raises CorruptBatchError.

    data: any contiguous buffer; exactly one batch, or with ``stored`` one followed by anything.
    stored: apply the rules for a batch read from a log (control batches, gaps left by compaction),
        not those for a client's batch.
    """
    cdef:
        Py_buffer view
        BatchInfo info
        BatchStatus status
        const uint8_t* start
        int32_t bad_index = -1
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        if stored:
            status = check_stored_batch(start, view.len, decompressed_max, &info, &bad_index)
        else:
            status = check_produced_batch(start, view.len, decompressed_max, &info, &bad_index)
    finally:
        PyBuffer_Release(&view)
    if status != BATCH_OK:
        raise_corrupt(status, bad_index)
    return summary(&info)


def read_header(data, Py_ssize_t offset=0):
    """Return the BatchSummary of the batch that starts at ``offset``; its records need not be in ``data``.

    The fields of the walk are as for a batch without records. Raises CorruptBatchError.
    """
    cdef:
        Py_buffer view
        BatchInfo info
        BatchStatus status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if offset < 0 or offset > view.len:
            raise IndexError(f"offset {offset} is outside {view.len} bytes")
        status = peek_batch_header(<const uint8_t*>view.buf + offset, view.len - offset, &info)
    finally:
        PyBuffer_Release(&view)
    if status != BATCH_OK:
        raise_corrupt(status, -1)
    return summary(&info)


def stamp_for_append(bytearray data not None, int64_t base_offset, int32_t leader_epoch) -> None:
    """``patch_for_append`` on a batch in a bytearray."""
    if len(data) < BATCH_HEADER_BYTES:
        raise_corrupt(BATCH_TRUNCATED, -1)
    patch_for_append(<uint8_t*>(<char*>data), base_offset, leader_epoch)


def stamp_log_append_time(bytearray data not None, int64_t now_ms) -> None:
    """``patch_log_append_time`` on a bytearray that holds exactly one batch."""
    if len(data) < BATCH_HEADER_BYTES:
        raise_corrupt(BATCH_TRUNCATED, -1)
    patch_log_append_time(
        <uint8_t*>(<char*>data), <uint8_t*>(<char*>data) + BATCH_HEADER_BYTES, len(data) - BATCH_HEADER_BYTES, now_ms)


def stamp_max_timestamp(bytearray data not None, int64_t max_timestamp) -> None:
    """``patch_max_timestamp`` on a bytearray that holds exactly one batch."""
    if len(data) < BATCH_HEADER_BYTES:
        raise_corrupt(BATCH_TRUNCATED, -1)
    patch_max_timestamp(
        <uint8_t*>(<char*>data), <uint8_t*>(<char*>data) + BATCH_HEADER_BYTES, len(data) - BATCH_HEADER_BYTES,
        max_timestamp)
