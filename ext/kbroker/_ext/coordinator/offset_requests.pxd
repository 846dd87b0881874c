# Reads OffsetCommit requests and writes their records and responses, without an object per partition.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i32,
    read_i64,
    read_string,
    skip_tagged_fields,
    store_i16,
    store_i32,
    store_i64,
    store_uvarlong,
)
from kbroker._ext.coordinator.offset_store cimport Text


cdef enum:
    FIRST_VERSION = 2
    LAST_VERSION = 10
    RETENTION_LAST = 4             # versions 2 to 4 have a retention time
    THROTTLE_FIRST = 3             # responses from here on have a throttle time
    LEADER_EPOCH_FIRST = 6
    INSTANCE_FIRST = 7
    FLEXIBLE_FIRST = 8
    TOPIC_ID_FIRST = 10            # topics are named by it from here on
    TOPIC_ID_BYTES = 16
    PARTITION_BYTES_MIN = 13       # index, offset, an empty compact string

    KEY_TYPE = 1
    VALUE_VERSION = 3
    KEY_OVERHEAD = 10              # type, two lengths, partition
    VALUE_OVERHEAD = 24            # version, offset, leader epoch, length, timestamp


cdef struct Partition:
    int32_t index
    int32_t leader_epoch
    int64_t offset
    Text metadata                  # data NULL: null


# ---- requests ----------------------------------------------------------------------------------------------------

cdef inline bint read_text(Reader* r, Text* text, bint flexible) noexcept:
    text.data = NULL
    text.size = 0
    if flexible:
        return read_compact_string(r, &text.data, &text.size) == READ_OK
    return read_string(r, &text.data, &text.size) == READ_OK


cdef inline bint read_count(Reader* r, int32_t* count, Py_ssize_t least, bint flexible) noexcept:
    # An array that is not null.
    if flexible:
        if read_compact_array_count(r, least, count) != READ_OK:
            return False
    elif read_array_count(r, least, count) != READ_OK:
        return False
    return count[0] >= 0


cdef inline bint read_partition(Reader* r, Partition* p, int version) noexcept:
    p.leader_epoch = -1
    if read_i32(r, &p.index) != READ_OK or read_i64(r, &p.offset) != READ_OK:
        return False
    if version >= LEADER_EPOCH_FIRST and read_i32(r, &p.leader_epoch) != READ_OK:
        return False
    if not read_text(r, &p.metadata, version >= FLEXIBLE_FIRST):
        return False
    return version < FLEXIBLE_FIRST or skip_tagged_fields(r) == READ_OK


# ---- records -----------------------------------------------------------------------------------------------------

cdef inline int32_t size_of(const Text* text) noexcept:
    return text.size if text.size > 0 else 0


cdef inline uint8_t* store_text(uint8_t* p, Text text) noexcept:
    # A null string is stored as an empty one.
    cdef int32_t size = size_of(&text)
    store_i16(p, <int16_t>size)
    if size:
        memcpy(p + 2, text.data, <size_t>size)
    return p + 2 + size


cdef inline uint8_t* store_key(uint8_t* p, Text group, Text topic, int32_t partition) noexcept:
    store_i16(p, KEY_TYPE)
    p = store_text(p + 2, group)
    p = store_text(p, topic)
    store_i32(p, partition)
    return p + 4


cdef inline uint8_t* store_value(uint8_t* p, const Partition* partition, int64_t now_ms) noexcept:
    store_i16(p, VALUE_VERSION)
    store_i64(p + 2, partition.offset)
    store_i32(p + 10, partition.leader_epoch)
    p = store_text(p + 14, partition.metadata)
    store_i64(p, now_ms)
    return p + 8


# ---- responses ---------------------------------------------------------------------------------------------------

cdef inline uint8_t* store_count(uint8_t* p, int32_t count, bint flexible) noexcept:
    if flexible:
        return store_uvarlong(p, <unsigned long long>count + 1)
    store_i32(p, count)
    return p + 4


cdef inline uint8_t* store_name(uint8_t* p, Text name, bint flexible) noexcept:
    if not flexible:
        return store_text(p, name)
    p = store_uvarlong(p, <unsigned long long>name.size + 1)
    memcpy(p, name.data, <size_t>name.size)
    return p + name.size


cdef inline uint8_t* store_outcome(uint8_t* p, int32_t partition, int16_t code, bint flexible) noexcept:
    store_i32(p, partition)
    store_i16(p + 4, code)
    return store_end(p + 6, flexible)


# Store the end of a structure: no tagged fields.
cdef inline uint8_t* store_end(uint8_t* p, bint flexible) noexcept:
    if flexible:
        p[0] = 0
        return p + 1
    return p
