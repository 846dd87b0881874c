# Batches of format 2 as message sets of format 0 or 1, for Fetch versions 0 to 3.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.base.growing cimport Bytes
from kbroker._ext.record.legacy_records cimport Message
from kbroker._ext.record.record_batch cimport BatchInfo


# Which messages, in which form.
cdef struct Wish:
    int64_t from_offset      # messages below it are left out
    int64_t bytes_enough     # no batch is begun once the messages are as many bytes
    int64_t bytes_max        # of the messages
    bint hard                # bytes_max cuts the last message (Fetch below 3); else whole batches, the first whatever its size
    bint at_least_one        # only if not hard: the first batch comes whole even if it is larger
    int8_t magic             # 0 or 1


cdef class DownConverter:
    cdef Bytes out           # the messages of all partitions of one response
    cdef Bytes raw           # what was read last
    cdef Bytes inner         # the message set of a wrapper
    cdef bint has_headers    # a record had some, since this was set to False
    # Append the messages of the batches in a file range, except for an incomplete last batch. *next_offset is the offset
    # after the last batch that was converted, or skipped because it has no messages. Returns an error code; on an error
    # nothing is appended.
    cdef int16_t convert_range(
        self, int fd, int64_t position, int64_t size, const Wish* wish, int64_t* next_offset
    ) except -2
    # Make `out` the messages of one batch with its offsets. Returns an error code; UNSUPPORTED_FOR_MESSAGE_FORMAT for
    # records with headers, which would be lost.
    cdef int16_t convert_batch(self, const uint8_t* batch, Py_ssize_t size, int8_t magic) except -2
    # Forget the messages; keep some memory for the next response.
    cdef void clear(self) noexcept

    cdef int fill(self, int fd, int64_t position, int64_t size) except -1
    cdef int16_t add_entry(self, const uint8_t* data, Py_ssize_t size, const Wish* wish) except -2
    cdef int16_t add_older_wrapper(self, const Message* wrapper, const Wish* wish) except -2
    cdef int16_t add_batch(self, const uint8_t* batch, const BatchInfo* info, const Wish* wish, int64_t room) except -2
    cdef int16_t add_wrapper(
        self, const uint8_t* records, Py_ssize_t size, const BatchInfo* info, const Wish* wish, int64_t room
    ) except -2


# Write one message of format 0 or 1 with its checksum; returns the position behind it. timestamp is ignored in format 0.
# SAFETY: the caller has reserved the bytes of key and value and MESSAGE_1_BYTES_MIN more (format 0: MESSAGE_0_BYTES_MIN).
cdef uint8_t* put_message(
    uint8_t* start, int64_t offset, int8_t magic, int8_t attributes, int64_t timestamp, const uint8_t* key,
    int32_t key_size, const uint8_t* value, int32_t value_size
) noexcept nogil
