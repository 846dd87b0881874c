# Compaction of messages of formats 0 and 1: which messages of an entry are kept, and the entry without the others.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.base.offset_map cimport OffsetMap
from kbroker._ext.record.legacy_records cimport Message


cdef enum FilterStatus:
    MESSAGES_OK = 0
    MESSAGES_BAD = 1
    MESSAGES_MAP_FULL = 2


# The messages of one log entry; an uncompressed message is a set of one. Borrows their bytes.
cdef struct MessageSet:
    const uint8_t* start
    Py_ssize_t size
    int64_t shift            # add this to the offset stored in a message to get its offset in the log
    int64_t last_offset      # of the entry, and so of its last message
    int32_t count


# The messages to keep.
cdef struct Chosen:
    uint8_t* keep            # owned by the caller, one byte per message
    int32_t count
    int32_t keyless          # dropped because they have no key
    int64_t last_offset
    int64_t max_timestamp
    Py_ssize_t size          # bytes


# The messages of a wrapper, or `entry` itself if `content` is NULL. False if their sizes or offsets are inconsistent.
cdef bint open_set(
    const uint8_t* entry, const Message* message, const uint8_t* content, Py_ssize_t size, MessageSet* out
) noexcept nogil

# Put the keys of the messages at or above start_offset into the map.
cdef FilterStatus index_messages(OffsetMap map, const MessageSet* messages, int64_t start_offset) noexcept nogil

# Decide which messages to keep. Sets all fields of `chosen` except the pointer `keep`.
cdef FilterStatus choose_messages(
    OffsetMap map, const MessageSet* messages, bint drop_tombstones, Chosen* chosen
) noexcept nogil

# Copy the chosen messages unchanged: chosen.size bytes.
cdef void copy_messages(const MessageSet* messages, const Chosen* chosen, uint8_t* out) noexcept nogil

# Write a wrapper like the given one around other content; returns its size.
# SAFETY: the caller has reserved the size of the content plus MESSAGE_1_BYTES_MIN.
cdef Py_ssize_t put_wrapper(
    const Message* wrapper, int64_t offset, int64_t timestamp, const uint8_t* content, int32_t size, uint8_t* out
) noexcept nogil
