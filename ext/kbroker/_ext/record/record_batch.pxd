# Record batches of message format 2, checked in place. Source: protocol guide, "Record Batch".
#
# A batch is a header of 61 bytes and its records; bytes 0..7 (base offset) and 12..15 (leader
# epoch) are not covered by the checksum, so a broker can stamp both without touching the rest.
# Nothing here keeps a pointer. If the status is not BATCH_OK, `info` has the fields that were read
# before the error.

from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    BATCH_HEADER_BYTES = 61
    BATCH_LENGTH_END = 12          # batch_length counts the bytes from here
    BATCH_MAGIC_AT = 16
    BATCH_CRC_AT = 17
    BATCH_CRC_FROM = 21            # the checksum covers the bytes from here to the end of the batch
    BATCH_ATTRIBUTES_AT = 21
    BATCH_LAST_OFFSET_DELTA_AT = 23
    BATCH_FIRST_TIMESTAMP_AT = 27
    BATCH_MAX_TIMESTAMP_AT = 35
    BATCH_PRODUCER_ID_AT = 43
    BATCH_PRODUCER_EPOCH_AT = 51
    BATCH_BASE_SEQUENCE_AT = 53
    BATCH_RECORD_COUNT_AT = 57

    ATTRIBUTE_CODEC_MASK = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20
    ATTRIBUTE_DELETE_HORIZON = 0x40

    CODEC_NONE = 0
    CODEC_GZIP = 1
    CODEC_SNAPPY = 2
    CODEC_LZ4 = 3
    CODEC_ZSTD = 4


cdef enum BatchStatus:
    BATCH_PYTHON_ERROR = -1             # only from check_produced_batch: an exception is set
    BATCH_OK = 0
    BATCH_TRUNCATED = 1                 # the bytes end before the batch does
    BATCH_BAD_LENGTH = 2                # batch_length smaller than a header
    BATCH_BAD_MAGIC = 3                 # not format 2; info.magic is the claimed format
    BATCH_BAD_CRC = 4
    BATCH_BAD_RECORD_COUNT = 5          # not positive, not last_offset_delta + 1, or too many
    BATCH_BAD_OFFSET_DELTA = 6          # a record whose offset delta is not its index
    BATCH_BAD_RECORD = 7                # a record with inconsistent lengths, varints or headers
    BATCH_BAD_TIMESTAMP = 8             # overflows an int64, or a client claims append time
    BATCH_UNKNOWN_CODEC = 9
    BATCH_DECOMPRESS_FAILED = 10
    BATCH_TOO_LARGE_DECOMPRESSED = 11   # more than decompressed_max; nothing beyond it was produced
    BATCH_TRAILING_BYTES = 12           # bytes after the last record, or after the batch
    BATCH_CONTROL_FROM_CLIENT = 13      # only brokers write control batches
    BATCH_BAD_SEQUENCE = 14             # a producer id without a sequence number or epoch
    BATCH_BAD_BASE_OFFSET = 15          # not 0, although the broker assigns offsets


cdef struct BatchInfo:
    # Header fields in native order.
    int64_t base_offset
    int32_t batch_length                # bytes after this field; the batch takes 12 + batch_length
    int32_t partition_leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count
    # Results of the walk.
    int64_t walked_max_timestamp                # -1 without records
    int64_t walked_max_timestamp_offset_delta   # of the first record that has it, -1 without records
    int64_t walked_min_timestamp                # smallest except -1 ("no timestamp")
    int32_t keyless_count                       # null keys, which compacted topics reject
    int64_t uncompressed_bytes                  # of the records, after decompression


# Read the header fields of the batch at `data`. BATCH_TRUNCATED if the whole batch does not fit in
# `size`; bytes after it are ignored. Does not check the checksum.
cdef BatchStatus read_batch_header(
    const uint8_t* data, Py_ssize_t size, BatchInfo* info
) noexcept nogil

# The same if only the first 61 bytes are there: the records may be beyond `size` (a header read
# from a file).
cdef BatchStatus peek_batch_header(
    const uint8_t* data, Py_ssize_t size, BatchInfo* info
) noexcept nogil

# Whether the offsets of the batch, and the one behind it, are below 2^63. The checksum does not cover base_offset.
cdef inline bint offsets_fit(const BatchInfo* info) noexcept nogil:
    return info.last_offset_delta >= 0 and info.base_offset <= INT64_MAX - 1 - info.last_offset_delta

# Check the checksum of the batch whose header read_batch_header has read into `info`.
cdef BatchStatus check_crc(const uint8_t* data, const BatchInfo* info) noexcept nogil

# Walk the uncompressed records of a produced batch: each length, varint and header, offset deltas
# 0, 1, 2, ..., as many records as the header says and no byte more. Fills the walk's results in
# `info`. On an error, *bad_index is the index of the record at fault (record_count for trailing
# bytes), otherwise -1.
cdef BatchStatus walk_records(
    const uint8_t* records, Py_ssize_t size, BatchInfo* info, int32_t* bad_index
) noexcept nogil

# The same for records read from a log: compaction leaves gaps, so offset deltas need only increase
# and stay within last_offset_delta, and a batch may be empty.
cdef BatchStatus walk_stored_records(
    const uint8_t* records, Py_ssize_t size, BatchInfo* info, int32_t* bad_index
) noexcept nogil

# Check the header of a client's batch as far as that is possible without its records: counts, no
# control batch, sequence number present, known codec, create time. `size`: exactly the batch.
cdef BatchStatus check_produced_header(const BatchInfo* info, Py_ssize_t size) noexcept nogil

# All checks of a client's batch before an append: exactly one batch in `size` bytes, checksum,
# header, records, which are decompressed to at most decompressed_max bytes. The caller checks
# timestamp limits and sequence numbers. BATCH_PYTHON_ERROR (an exception is set) only if memory or
# the module of a codec is missing.
cdef BatchStatus check_produced_batch(
    const uint8_t* data,
    Py_ssize_t size,
    Py_ssize_t decompressed_max,
    BatchInfo* info,
    int32_t* bad_index,
) except? BATCH_PYTHON_ERROR

# Raises CorruptBatchError.
cdef object raise_corrupt(BatchStatus status, int32_t bad_index)

# The records of a compressed batch as a new bytes object, or None with *status set.
cdef bytes decompressed(const uint8_t* data, const BatchInfo* info, int64_t decompressed_max, BatchStatus* status)

# The checks of recovery and tools for a batch read from a log: checksum, then the records by
# walk_stored_records. Control batches, append time and bytes after the batch are allowed.
cdef BatchStatus check_stored_batch(
    const uint8_t* data,
    Py_ssize_t size,
    Py_ssize_t decompressed_max,
    BatchInfo* info,
    int32_t* bad_index,
) except? BATCH_PYTHON_ERROR

# Stamp the base offset and the leader epoch, which the checksum does not cover. 61 bytes at `data`.
cdef void patch_for_append(uint8_t* data, int64_t base_offset, int32_t leader_epoch) noexcept nogil

# Give a batch log append time: the type bit, max timestamp = now, new checksum. The first timestamp
# stays (COMPAT: as in Kafka; readers of append-time batches ignore it). Changes the header;
# `records`: the `size` bytes that follow it, which may be elsewhere in memory.
cdef void patch_log_append_time(
    uint8_t* header, const uint8_t* records, Py_ssize_t size, int64_t now_ms
) noexcept nogil

# Replace a max timestamp that differs from the walk's (COMPAT: Kafka corrects it too), with a new
# checksum.
cdef void patch_max_timestamp(
    uint8_t* header, const uint8_t* records, Py_ssize_t size, int64_t max_timestamp
) noexcept nogil


# ---- varints of records --------------------------------------------------------------------------

# A varint and the byte after it, returned in two registers; `next` is NULL if no varint ends within
# bounds.
cdef struct Varint:
    uint64_t raw
    const uint8_t* next


cdef Varint varint_long_form(const uint8_t* p, const uint8_t* end) noexcept nogil
cdef Varint varlong_long_form(const uint8_t* p, const uint8_t* end) noexcept nogil


# Varints of one or two bytes, which nearly all are, are read inline; `wide` (a constant at each
# call) allows 64 bits.
cdef inline Varint varint_at(const uint8_t* p, const uint8_t* end, bint wide) noexcept nogil:
    cdef Varint found
    if end - p >= 2:
        if p[0] < 0x80:
            found.raw = p[0]
            found.next = p + 1
            return found
        if p[1] < 0x80:
            found.raw = (p[0] & 0x7Fu) | (<uint32_t>p[1] << 7)
            found.next = p + 2
            return found
    return varlong_long_form(p, end) if wide else varint_long_form(p, end)


cdef inline int64_t unzigzag(uint64_t raw) noexcept nogil:
    return <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
