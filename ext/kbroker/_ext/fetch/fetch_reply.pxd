# A Fetch response ready to send: header bytes and file ranges in turn.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch.fetch_files cimport FileCache


# Send bytes [bytes_offset, bytes_offset + bytes_size) of the reply, then `size` bytes of `fd` from `position`.
# fd is -1 and size 0 when no file range follows. The file holds the whole range (it was published before); a short
# read means that the file was truncated, and the connection must be closed because the length has already been sent.
cdef struct ReplyChunk:
    int64_t bytes_offset
    int64_t bytes_size
    int64_t position
    int64_t size
    int fd
    int32_t file             # the reply's own reference, dropped by release()


cdef struct AbortedTransaction:
    int64_t producer_id
    int64_t first_offset


# One partition of a response.
cdef struct PartitionResponse:
    int32_t index
    int16_t error
    int32_t file             # records: `size` bytes of this place of the FileCache, none when size is 0
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t position
    int64_t size
    const uint8_t* records   # not NULL: the `size` bytes are these, and no file has them
    int32_t aborted_count    # -1: null, as for read_uncommitted
    const AbortedTransaction* aborted
    int32_t diverging_epoch  # the largest epoch that both logs may have, -1: they do not diverge
    int64_t diverging_end    # where it ends here
    int32_t preferred_replica  # the broker to read from instead, -1: this one
    bint has_leader          # an error of which the next two fields are the remedy (KIP-951)
    int32_t leader_id
    int32_t leader_epoch


cdef class ReplyPool:
    cdef FileCache cache
    cdef list idle
    cdef readonly int64_t copied_bytes   # of records, in the replies being sent
    cdef FetchReply take(self)


cdef class FetchReply:
    cdef uint8_t* bytes          # starts with the 4-byte length and the response header
    cdef int64_t bytes_size
    cdef int64_t bytes_capacity
    cdef ReplyChunk* chunks
    cdef int32_t chunk_count
    cdef int32_t chunk_capacity
    cdef readonly int64_t total_size   # everything to send, the 4-byte length included
    cdef readonly uint64_t token       # as given to FetchEngine.handle()
    cdef FetchReply next_completed     # used by FetchEngine only
    cdef int32_t throttle_ms           # for how long to mute the connection for its quota; -1: none applies
    cdef int64_t prepaid               # bytes for which its client has waited, or will have after the throttle time
    cdef ReplyPool pool
    cdef FileCache cache
    cdef int16_t version
    cdef int64_t chunk_start           # bytes from here belong to the next chunk
    cdef int64_t copied_bytes          # of records among the bytes
    # Call once when sent or abandoned: releases the descriptors; the object must not be used afterwards.
    cdef void release(self)
    cdef int file_count(self) noexcept
    # Encoding, in this order: begin, then per topic begin_topic, add_partition..., end_topic; end.
    cdef int begin(
        self, int16_t version, int32_t correlation_id, int16_t error, int32_t session_id, int32_t topic_count
    ) except -1
    cdef int begin_topic(self, const uint8_t* key, Py_ssize_t key_size, int32_t partition_count) except -1
    cdef int add_partition(self, const PartitionResponse* response) except -1
    cdef int put_partition_tags(self, const PartitionResponse* response) except -1
    cdef int end_topic(self) except -1
    # tagged: encoded tagged fields of the response, None: there are none.
    cdef int end(self, bytes tagged) except -1
    # The response is complete, and not sent yet.
    cdef void set_throttle(self, int32_t throttle_ms) noexcept nogil
    cdef int put_count(self, int32_t count) except -1
    cdef int reserve(self, int64_t size) except -1
    cdef int add_chunk(self, int32_t file, int64_t position, int64_t size) except -1
    cdef void drop_files(self) noexcept


# The whole response, file ranges read in; releases the reply. For tests and tools.
cdef bytes reply_bytes(FetchReply reply)
