# Compaction's work on messages of formats 0 and 1: which of an entry's messages are kept, and the entry without the rest.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.base.offset_map cimport OffsetMap
from kbroker._ext.record.legacy_records cimport Message


cdef enum FilterStatus:
    MESSAGES_OK = 0
    MESSAGES_BAD = 1
    MESSAGES_MAP_FULL = 2


# The messages of one entry of a log: one that is no wrapper is a set of itself. Borrows their bytes.
cdef struct MessageSet:
    const uint8_t* start
    Py_ssize_t size
    int64_t shift            # what the offset of a message is short of its offset in the log
    int64_t last_offset      # that of the entry, and of its last message
    int32_t count


# Which messages are kept.
cdef struct Chosen:
    uint8_t* keep            # the caller's, a byte for each message
    int32_t count
    int32_t keyless          # dropped as they have no key
    int64_t last_offset
    int64_t max_timestamp
    Py_ssize_t size          # bytes


# The messages of a wrapper, or `entry` itself when `content` is NULL. False when their sizes or offsets do not add up.
cdef bint open_set(
    const uint8_t* entry, const Message* message, const uint8_t* content, Py_ssize_t size, MessageSet* out
) noexcept nogil

# Put the keys of the messages from start_offset on into the map.
cdef FilterStatus index_messages(OffsetMap map, const MessageSet* messages, int64_t start_offset) noexcept nogil

# Decide about each message. All fields of `chosen` but `keep` are set.
cdef FilterStatus choose_messages(
    OffsetMap map, const MessageSet* messages, bint drop_tombstones, Chosen* chosen
) noexcept nogil

# Copy the chosen messages, chosen.size bytes, as they are.
cdef void copy_messages(const MessageSet* messages, const Chosen* chosen, uint8_t* out) noexcept nogil

# Write a wrapper like the given one around other content; its size.
# SAFETY: the caller has reserved the bytes of the content and MESSAGE_1_BYTES_MIN more.
cdef Py_ssize_t put_wrapper(
    const Message* wrapper, int64_t offset, int64_t timestamp, const uint8_t* content, int32_t size, uint8_t* out
) noexcept nogil
