"""Up-conversion: a message set of format 0 or 1 becomes one record batch of format 2.

Runs in io workers, for Produce versions 0 to 2. One pass over the bytes for the checksums, one that writes the records;
a wrapper is decompressed into at most ``decompressed_max`` bytes and its records are compressed again with the same
codec. No Python object per message. The offsets sent by a client are ignored, because the broker assigns them: clients
of format 0 mostly send zeros. In a wrapper of format 1 they must increase.

Oracle: ``tests/support/storage/message_sets.py``. Source: protocol guide, "Message sets"; KIP-31, KIP-32; KIP-57 for the header
checksum of LZ4 frames.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, uint64_t
from libc.string cimport memcpy, memset

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.error_codes cimport (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._ext.base.wire cimport (
    load_i8,
    load_i32,
    load_i64,
    load_u32,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_uvarlong,
    varint_size,
    varlong_size,
    zigzag32,
    zigzag64,
)
from kbroker._ext.record.codec_frames cimport lz4_header_checksum
from kbroker._ext.record.codecs cimport UNPACK_TOO_LARGE, UNPACKED, UnpackStatus, pack, try_unpack
from kbroker._ext.record.record_batch cimport (
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
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    BATCH_RECORD_COUNT_AT,
    CODEC_LZ4,
    CODEC_NONE,
    read_batch_header,
)

cdef extern from "crc32.h" nogil:
    void crc32_init()
    uint32_t crc32_update(uint32_t crc, const uint8_t* data, size_t size)

cdef extern from *:
    bint __builtin_sub_overflow(int64_t a, int64_t b, int64_t* difference) noexcept nogil


# MessageStatus -> error message
cdef dict WORDS = {
    MESSAGE_TRUNCATED: "the message set ends within a message",
    MESSAGE_BAD_SIZE: "the size of a message is impossible",
    MESSAGE_BAD_MAGIC: "a message has a format that is not allowed here",
    MESSAGE_BAD_CRC: "a message does not match its checksum",
    MESSAGE_BAD_FIELDS: "the lengths in a message are inconsistent",
}

crc32_init()


class MessageSetRejected(Exception):
    """A message set is rejected. ``args``: error code, error message, index of the message at fault or -1."""


cdef uint32_t crc32(const uint8_t* data, size_t size) noexcept nogil:
    return crc32_update(0, data, size)


cdef MessageStatus read_message(const uint8_t* p, const uint8_t* end, Message* message) noexcept nogil:
    cdef int32_t size
    cdef Py_ssize_t fields
    if end - p < MESSAGE_0_BYTES_MIN:
        return MESSAGE_TRUNCATED
    message.offset = load_i64(p)
    size = load_i32(p + 8)
    if size < MESSAGE_0_BYTES_MIN - ENTRY_HEADER_BYTES:
        return MESSAGE_BAD_SIZE
    if size > end - p - ENTRY_HEADER_BYTES:
        return MESSAGE_TRUNCATED
    message.size = size + ENTRY_HEADER_BYTES
    end = p + message.size
    message.magic = load_i8(p + MESSAGE_MAGIC_AT)
    if message.magic != 0 and message.magic != 1:
        return MESSAGE_BAD_MAGIC
    if load_u32(p + MESSAGE_CRC_AT) != crc32(p + MESSAGE_CRC_FROM, <size_t>(end - p - MESSAGE_CRC_FROM)):
        return MESSAGE_BAD_CRC
    message.attributes = load_i8(p + MESSAGE_ATTRIBUTES_AT)
    message.timestamp = -1
    p += MESSAGE_TIMESTAMP_AT
    if message.magic == 1:
        if message.size < MESSAGE_1_BYTES_MIN:
            return MESSAGE_BAD_SIZE
        message.timestamp = load_i64(p)
        p += 8
    # SAFETY: the sizes above leave room for the two lengths.
    fields = end - p - 8
    message.key_size = load_i32(p)
    message.key = p + 4
    if message.key_size < -1 or message.key_size > fields:
        return MESSAGE_BAD_FIELDS
    if message.key_size > 0:
        fields -= message.key_size
        p += message.key_size
    message.value_size = load_i32(p + 4)
    message.value = p + 8
    if message.value_size < -1 or (message.value_size if message.value_size > 0 else 0) != fields:
        return MESSAGE_BAD_FIELDS
    return MESSAGE_OK


# ---- the records of format 2 -------------------------------------------------------------------------------------

# The records being written, and their properties so far.
cdef struct Records:
    uint8_t* start
    uint8_t* pos
    int32_t count
    int32_t keyless_count
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t max_timestamp_offset_delta
    int64_t min_timestamp              # except -1
    bint bad_timestamp


# SAFETY: a record takes at most 32 bytes in addition to its key and value, and its message took at least 26; so
# records_bound() is enough.
cdef inline Py_ssize_t records_bound(Py_ssize_t message_set_bytes) noexcept nogil:
    return message_set_bytes + message_set_bytes // 4 + 64


cdef inline uint8_t* put_field(uint8_t* p, const uint8_t* data, int32_t size) noexcept nogil:
    p = store_uvarlong(p, zigzag32(size))
    if size > 0:
        memcpy(p, data, <size_t>size)
        p += size
    return p


cdef void put_record(Records* out, const Message* message) noexcept nogil:
    cdef int64_t delta = 0
    cdef int64_t size
    cdef uint8_t* p = out.pos
    if out.count == 0:
        out.first_timestamp = out.max_timestamp = message.timestamp
        out.max_timestamp_offset_delta = 0
    elif __builtin_sub_overflow(message.timestamp, out.first_timestamp, &delta):
        out.bad_timestamp = True
        return
    if message.timestamp > out.max_timestamp:
        out.max_timestamp = message.timestamp
        out.max_timestamp_offset_delta = out.count
    if message.timestamp != -1 and message.timestamp < out.min_timestamp:
        out.min_timestamp = message.timestamp
    out.keyless_count += message.key_size < 0
    # The attributes and the header count of 0 take a byte each.
    size = 2 + varlong_size(delta) + varint_size(out.count) + varint_size(message.key_size)
    size += varint_size(message.value_size)
    size += <int64_t>(message.key_size if message.key_size > 0 else 0)
    size += <int64_t>(message.value_size if message.value_size > 0 else 0)
    p = store_uvarlong(p, zigzag64(size))
    p[0] = 0
    p = store_uvarlong(p + 1, zigzag64(delta))
    p = store_uvarlong(p, zigzag32(out.count))
    p = put_field(p, message.key, message.key_size)
    p = put_field(p, message.value, message.value_size)
    p[0] = 0
    out.pos = p + 1
    out.count += 1


# Write the records of a set without wrappers. inner: the content of a wrapper of format `magic`; otherwise magic is
# ignored. *code: 0, or the error code for message number out.count.
cdef MessageStatus put_messages(
    const uint8_t* p, const uint8_t* end, bint inner, int8_t magic, int64_t message_bytes_max, Records* out, int* code
) noexcept nogil:
    cdef Message message
    cdef MessageStatus status
    cdef int64_t last_offset = -1
    code[0] = 0
    while p != end:
        if not inner and end - p >= ENTRY_HEADER_BYTES and load_i32(p + 8) > message_bytes_max - ENTRY_HEADER_BYTES:
            code[0] = MESSAGE_TOO_LARGE
            return MESSAGE_OK
        status = read_message(p, end, &message)
        if status != MESSAGE_OK:
            code[0] = CORRUPT_MESSAGE
            return status
        if inner and message.magic != magic or message.attributes & MESSAGE_CODEC_MASK:
            code[0] = INVALID_RECORD
            return MESSAGE_OK
        if not inner and message.magic == 1 and message.attributes & MESSAGE_LOG_APPEND_TIME:
            code[0] = INVALID_TIMESTAMP
            return MESSAGE_OK
        if inner and magic == 1:
            if message.offset <= last_offset:
                code[0] = INVALID_RECORD
                return MESSAGE_BAD_OFFSET
            last_offset = message.offset
        put_record(out, &message)
        if out.bad_timestamp:
            code[0] = INVALID_TIMESTAMP
            return MESSAGE_OK
        p += message.size
    return MESSAGE_OK


# Why put_messages stopped.
cdef object rejection(MessageStatus status, int code, bint inner, int32_t index, int64_t message_bytes_max):
    if code == MESSAGE_TOO_LARGE:
        return MessageSetRejected(code, f"a message is larger than max.message.bytes of the topic, {message_bytes_max}", -1)
    if code == INVALID_TIMESTAMP:
        return MessageSetRejected(
            code, "a timestamp is out of range, or the producer has set log append time", index)
    if status == MESSAGE_BAD_OFFSET:
        return MessageSetRejected(code, "offsets of compressed messages do not increase", index)
    if code == INVALID_RECORD and inner:
        return MessageSetRejected(
            code, "a compressed message contains one of another format, or one that is compressed itself", index)
    if code == INVALID_RECORD:
        return MessageSetRejected(code, "a compressed message must be the only one in its set", -1)
    return MessageSetRejected(code, WORDS[status], -1)


# ---- the whole set -----------------------------------------------------------------------------------------------

cdef bint set_lz4_checksum(uint8_t* data, Py_ssize_t size, bint broken) noexcept nogil:
    cdef Py_ssize_t descriptor_bytes
    if size < 7:
        return False
    descriptor_bytes = 10 if data[4] & 0x08 else 2
    if size < 4 + descriptor_bytes + 1 or data[0] != 0x04 or data[1] != 0x22 or data[2] != 0x4D or data[3] != 0x18:
        return False
    if broken:
        data[4 + descriptor_bytes] = lz4_header_checksum(data, 4 + descriptor_bytes)
    else:
        data[4 + descriptor_bytes] = lz4_header_checksum(data + 4, descriptor_bytes)
    return True


# The message set in a wrapper.
cdef bytes unwrapped(const Message* wrapper, int64_t decompressed_max):
    cdef int codec = wrapper.attributes & MESSAGE_CODEC_MASK
    cdef const uint8_t* value = wrapper.value
    cdef UnpackStatus status
    cdef bytearray copy
    cdef bytes content
    if codec > CODEC_LZ4:
        raise MessageSetRejected(
            UNSUPPORTED_COMPRESSION_TYPE, "message formats 0 and 1 do not support this compression type", -1)
    if wrapper.value_size < 0:
        raise MessageSetRejected(INVALID_RECORD, "a compressed message has no value", -1)
    if codec == CODEC_LZ4 and wrapper.magic == 0:
        # COMPAT: as in Kafka, any header checksum is accepted from a client of format 0.
        copy = PyByteArray_FromStringAndSize(<const char*>wrapper.value, wrapper.value_size)
        value = <const uint8_t*>PyByteArray_AS_STRING(copy)
        set_lz4_checksum(<uint8_t*>PyByteArray_AS_STRING(copy), wrapper.value_size, False)
    content = try_unpack(codec, value, wrapper.value_size, decompressed_max, &status)
    if status == UNPACK_TOO_LARGE:
        raise MessageSetRejected(
            MESSAGE_TOO_LARGE, f"the messages decompress to more than {decompressed_max} bytes", -1)
    if status != UNPACKED:
        raise MessageSetRejected(CORRUPT_MESSAGE, "a compressed message cannot be decompressed", -1)
    return content


cdef bytearray batch_of_message_set(
    const uint8_t* data, Py_ssize_t size, int64_t message_bytes_max, int64_t decompressed_max, int codec, object level,
    BatchInfo* info,
):
    cdef:
        Message first
        MessageStatus status
        Records records
        bytes inner = None
        bytearray batch
        int code = 0
    if size >= ENTRY_HEADER_BYTES and load_i32(data + 8) > message_bytes_max - ENTRY_HEADER_BYTES:
        raise rejection(MESSAGE_OK, MESSAGE_TOO_LARGE, False, -1, message_bytes_max)
    status = read_message(data, data + size, &first)
    if status != MESSAGE_OK:
        raise rejection(status, CORRUPT_MESSAGE, False, -1, message_bytes_max)
    if first.attributes & MESSAGE_CODEC_MASK:
        if first.size != size:
            raise rejection(MESSAGE_OK, INVALID_RECORD, False, -1, message_bytes_max)
        if first.magic == 1 and first.attributes & MESSAGE_LOG_APPEND_TIME:
            raise rejection(MESSAGE_OK, INVALID_TIMESTAMP, False, -1, message_bytes_max)
        inner = unwrapped(&first, decompressed_max)
        data = <const uint8_t*>PyBytes_AS_STRING(inner)
        size = PyBytes_GET_SIZE(inner)
        if size == 0:
            raise MessageSetRejected(INVALID_RECORD, "a compressed message contains no messages", -1)
    batch = PyByteArray_FromStringAndSize(NULL, BATCH_HEADER_BYTES + records_bound(size))
    memset(&records, 0, sizeof(records))
    records.start = records.pos = <uint8_t*>PyByteArray_AS_STRING(batch) + BATCH_HEADER_BYTES
    records.min_timestamp = INT64_MAX
    with nogil:
        status = put_messages(
            data, data + size, inner is not None, first.magic, message_bytes_max, &records, &code)
    if code != 0:
        raise rejection(status, code, inner is not None, records.count, message_bytes_max)
    if codec < 0:
        codec = first.attributes & MESSAGE_CODEC_MASK
    batch = finished(batch, &records, codec, level)
    read_batch_header(<const uint8_t*>PyByteArray_AS_STRING(batch), len(batch), info)
    info.walked_max_timestamp = records.max_timestamp
    info.walked_max_timestamp_offset_delta = records.max_timestamp_offset_delta
    info.walked_min_timestamp = -1 if records.min_timestamp == INT64_MAX else records.min_timestamp
    info.keyless_count = records.keyless_count
    info.uncompressed_bytes = records.pos - records.start
    return batch


# Complete the batch: compress the records if required, and write the header.
cdef bytearray finished(bytearray batch, Records* records, int codec, object level):
    cdef uint8_t* p
    cdef Py_ssize_t size = BATCH_HEADER_BYTES + (records.pos - records.start)
    cdef bytes packed
    if codec != CODEC_NONE:
        packed = pack(codec, records.start, records.pos - records.start, level)
        size = BATCH_HEADER_BYTES + len(packed)
        batch = PyByteArray_FromStringAndSize(NULL, size)
        memcpy(PyByteArray_AS_STRING(batch) + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), <size_t>len(packed))
    else:
        PyByteArray_Resize(batch, size)
    p = <uint8_t*>PyByteArray_AS_STRING(batch)
    memset(p, 0, BATCH_HEADER_BYTES)
    store_i32(p + 8, <int32_t>(size - BATCH_LENGTH_END))
    store_i32(p + BATCH_LENGTH_END, -1)
    store_i8(p + BATCH_MAGIC_AT, 2)
    store_i16(p + BATCH_ATTRIBUTES_AT, codec)
    store_i32(p + BATCH_LAST_OFFSET_DELTA_AT, records.count - 1)
    store_i64(p + BATCH_FIRST_TIMESTAMP_AT, records.first_timestamp)
    store_i64(p + BATCH_MAX_TIMESTAMP_AT, records.max_timestamp)
    store_i64(p + BATCH_PRODUCER_ID_AT, -1)
    store_i16(p + BATCH_PRODUCER_EPOCH_AT, -1)
    store_i32(p + BATCH_BASE_SEQUENCE_AT, -1)
    store_i32(p + BATCH_RECORD_COUNT_AT, records.count)
    store_u32(p + BATCH_CRC_AT, crc32c(p + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM)))
    return batch


# ---- Python's view, for tests ------------------------------------------------------------------------------------

def crc32_of(data) -> int:
    """CRC-32, as messages have it."""
    cdef bytes whole = bytes(data)
    return crc32(<const uint8_t*>PyBytes_AS_STRING(whole), <size_t>len(whole))


def to_batch(
    data, *, int64_t message_bytes_max=1048588, int64_t decompressed_max=1 << 26, int codec=-1, level=None
) -> bytearray:
    """Convert a message set to a batch of format 2. Raises MessageSetRejected."""
    cdef bytes whole = bytes(data)
    cdef BatchInfo info
    return batch_of_message_set(
        <const uint8_t*>PyBytes_AS_STRING(whole), len(whole), message_bytes_max, decompressed_max, codec, level, &info)


def with_right_lz4_checksum(data) -> bytes:
    """Return an LZ4 frame with the header checksum that the frame format specifies, whatever it had before."""
    cdef bytearray copy = bytearray(data)
    set_lz4_checksum(<uint8_t*>PyByteArray_AS_STRING(copy), len(copy), False)
    return bytes(copy)
