"""Compaction of messages of formats 0 and 1, which other brokers wrote or message.format.version asks for.

A message that is kept does not change by a byte, even in a wrapper: its offset there is absolute in format 0, and in
format 1 it may count from any start, as the last message has the wrapper's offset. So a wrapper that loses messages
gets the offset of the last one kept, and no message is rewritten. COMPAT: Kafka's cleaner renumbers a wrapper of format
1 from 0; readers see no difference.

COMPAT: the wrapper's format decides how the offsets in it count, whatever the format of its messages: the cleaner of
Kafka 0.10.0 wrote wrappers of format 1 around messages of format 0 (KAFKA-4298).
"""
from libc.string cimport memcpy

from kbroker._ext.base.wire cimport load_i32, load_i64, store_i8, store_i32, store_i64, store_u32
from kbroker._ext.record.legacy_records cimport (
    ENTRY_HEADER_BYTES,
    MESSAGE_0_BYTES_MIN,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CODEC_MASK,
    MESSAGE_CRC_AT,
    MESSAGE_CRC_FROM,
    MESSAGE_MAGIC_AT,
    MESSAGE_OK,
    MESSAGE_TIMESTAMP_AT,
    crc32,
    read_message,
)


cdef bint open_set(
    const uint8_t* entry, const Message* message, const uint8_t* content, Py_ssize_t size, MessageSet* out
) noexcept nogil:
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int64_t first = message.offset
    cdef int64_t last = message.offset
    cdef Py_ssize_t taken
    out.last_offset = message.offset
    out.shift = 0
    out.count = 1
    if content == NULL:
        out.start = entry
        out.size = message.size
        return message.offset >= 0
    out.start = p = content
    out.size = size
    out.count = 0
    end = p + size
    while p != end:
        if end - p < MESSAGE_0_BYTES_MIN:
            return False
        taken = load_i32(p + 8) + <Py_ssize_t>ENTRY_HEADER_BYTES
        if taken < MESSAGE_0_BYTES_MIN or taken > end - p:
            return False
        if out.count == 0:
            first = load_i64(p)
        elif load_i64(p) <= last:
            return False
        last = load_i64(p)
        out.count += 1
        p += taken
    if out.count == 0 or first < 0 or message.offset < 0:
        return False
    if message.magic == 0:
        return last == message.offset
    # INVARIANT: neither is negative, so this does not overflow; offsets are increasing, so none exceeds the last.
    out.shift = message.offset - last
    return first + out.shift >= 0


cdef FilterStatus index_messages(OffsetMap map, const MessageSet* messages, int64_t start_offset) noexcept nogil:
    cdef const uint8_t* p = messages.start
    cdef const uint8_t* end = p + messages.size
    cdef Message message
    while p != end:
        if read_message(p, end, &message) != MESSAGE_OK or message.attributes & MESSAGE_CODEC_MASK:
            return MESSAGES_BAD  # a wrapper in a wrapper, too
        if messages.shift + message.offset >= start_offset and message.key_size >= 0:
            if not map.put(message.key, message.key_size, messages.shift + message.offset):
                return MESSAGES_MAP_FULL
        p += message.size
    return MESSAGES_OK


cdef FilterStatus choose_messages(
    OffsetMap map, const MessageSet* messages, bint drop_tombstones, Chosen* chosen
) noexcept nogil:
    cdef const uint8_t* p = messages.start
    cdef const uint8_t* end = p + messages.size
    cdef Message message
    cdef int64_t offset
    cdef int32_t at = 0
    cdef bint keep
    chosen.count = chosen.keyless = 0
    chosen.last_offset = chosen.max_timestamp = -1
    chosen.size = 0
    while p != end:
        if read_message(p, end, &message) != MESSAGE_OK or message.attributes & MESSAGE_CODEC_MASK:
            return MESSAGES_BAD  # a wrapper in a wrapper, too
        offset = messages.shift + message.offset
        if offset > map.latest_offset:
            keep = True
        elif message.key_size < 0:
            keep = False
            chosen.keyless += 1
        else:
            keep = (message.value_size >= 0 or not drop_tombstones) and offset >= map.get(message.key, message.key_size)
        chosen.keep[at] = keep
        at += 1
        if keep:
            chosen.count += 1
            chosen.last_offset = offset
            chosen.max_timestamp = max(chosen.max_timestamp, message.timestamp)
            chosen.size += message.size
        p += message.size
    return MESSAGES_OK


cdef void copy_messages(const MessageSet* messages, const Chosen* chosen, uint8_t* out) noexcept nogil:
    cdef const uint8_t* p = messages.start
    cdef Py_ssize_t size
    cdef int32_t i
    for i in range(messages.count):
        # SAFETY: choose_messages has walked these sizes.
        size = load_i32(p + 8) + <Py_ssize_t>ENTRY_HEADER_BYTES
        if chosen.keep[i]:
            memcpy(out, p, <size_t>size)
            out += size
        p += size


cdef Py_ssize_t put_wrapper(
    const Message* wrapper, int64_t offset, int64_t timestamp, const uint8_t* content, int32_t size, uint8_t* out
) noexcept nogil:
    cdef uint8_t* p = out + MESSAGE_TIMESTAMP_AT
    store_i64(out, offset)
    store_i8(out + MESSAGE_MAGIC_AT, wrapper.magic)
    store_i8(out + MESSAGE_ATTRIBUTES_AT, wrapper.attributes)
    if wrapper.magic > 0:
        store_i64(p, timestamp)
        p += 8
    store_i32(p, -1)  # no key
    store_i32(p + 4, size)
    memcpy(p + 8, content, <size_t>size)
    p += 8 + size
    store_i32(out + 8, <int32_t>(p - out - ENTRY_HEADER_BYTES))
    store_u32(out + MESSAGE_CRC_AT, crc32(out + MESSAGE_CRC_FROM, <size_t>(p - out - MESSAGE_CRC_FROM)))
    return p - out
