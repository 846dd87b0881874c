"""Fetch responses, versions 0 to 18: encoded bytes, and ranges of log files that are not copied. Versions 0 to 3 have
other message formats than the files, so their records are copied.

Oracle: ``kbroker.protocol.codec``. Source: protocol guide, Fetch API (key 1).
"""

import os

cimport cython
from libc.stdint cimport uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.wire cimport store_i16, store_i32, store_i64, store_uvarlong

cdef enum:
    SIZE_FIELD = 4
    HEADER_BYTES_MAX = 32        # length, header, throttle time, error, session id, topic count
    PARTITION_BYTES_MAX = 64     # without aborted transactions
    PARTITION_TAGS_BYTES_MAX = 26
    TAG_DIVERGING_EPOCH = 0
    TAG_CURRENT_LEADER = 1
    ABORTED_BYTES_MAX = 17
    COUNT_BYTES_MAX = 5
    FIRST_CAPACITY = 512
    FIRST_CHUNKS = 4
    IDLE_REPLIES = 64            # BOUND: kept for reuse, each with at most KEEP_CAPACITY bytes
    KEEP_CAPACITY = 65536
    RESPONSE_BYTES_MAX = 0x7FFFFFFF


cdef class ReplyPool:
    """Hands out replies and takes them back, buffers and all."""

    def __cinit__(self, FileCache cache not None):
        self.cache = cache
        self.idle = []

    cdef FetchReply take(self):
        cdef FetchReply reply
        if self.idle:
            reply = self.idle.pop()
        else:
            reply = FetchReply.__new__(FetchReply)
            reply.pool = self
            reply.cache = self.cache
        reply.bytes_size = 0
        reply.chunk_count = 0
        reply.chunk_start = 0
        reply.total_size = 0
        reply.throttle_ms = 0
        reply.prepaid = 0
        return reply


# no_gc_clear: __dealloc__ needs the file cache to drop the references of a reply that was never released.
@cython.final
@cython.no_gc_clear
cdef class FetchReply:
    """One response. Created by FetchEngine, sent and released by the network loop."""

    def __dealloc__(self):
        if self.cache is not None:
            self.drop_files()
            self.pool.copied_bytes -= self.copied_bytes
        free(self.bytes)
        free(self.chunks)

    cdef void release(self):
        self.drop_files()
        self.pool.copied_bytes -= self.copied_bytes
        self.copied_bytes = 0
        self.next_completed = None
        if self.bytes_capacity <= KEEP_CAPACITY and len(self.pool.idle) < IDLE_REPLIES:
            self.pool.idle.append(self)

    cdef int file_count(self) noexcept:
        """The number of references to open files that it holds."""
        cdef int32_t i
        cdef int count = 0
        for i in range(self.chunk_count):
            count += self.chunks[i].file >= 0
        return count

    cdef void drop_files(self) noexcept:
        cdef int32_t number
        for number in range(self.chunk_count):
            if self.chunks[number].fd >= 0:
                self.cache.drop(self.chunks[number].file)
        self.chunk_count = 0

    cdef int reserve(self, int64_t size) except -1:
        """Make room for ``size`` more bytes."""
        self.bytes_capacity = grow(&self.bytes, self.bytes_capacity, self.bytes_size + size, 1, FIRST_CAPACITY)
        return 0

    cdef int add_chunk(self, int32_t file, int64_t position, int64_t size) except -1:
        """End a chunk here: the bytes since the last one, then a file range (file -1: none)."""
        cdef ReplyChunk* chunk
        self.chunk_capacity = grow(
            &self.chunks, self.chunk_capacity, self.chunk_count + 1, sizeof(ReplyChunk), FIRST_CHUNKS)
        chunk = &self.chunks[self.chunk_count]
        chunk.bytes_offset = self.chunk_start
        chunk.bytes_size = self.bytes_size - self.chunk_start
        chunk.position = position
        chunk.size = size
        chunk.fd = -1
        chunk.file = file
        if file >= 0:
            self.cache.hold(file)
            chunk.fd = self.cache.files[file].fd
        self.chunk_start = self.bytes_size
        self.chunk_count += 1
        self.total_size += chunk.bytes_size + size
        return 0

    cdef int put_count(self, int32_t count) except -1:
        # An array count; room for it has been reserved.
        cdef uint8_t* p = self.bytes + self.bytes_size
        if self.version >= 12:
            self.bytes_size = store_uvarlong(p, <uint32_t>count + 1) - self.bytes
        else:
            store_i32(p, count)
            self.bytes_size += 4
        return 0

    cdef int begin(
        self, int16_t version, int32_t correlation_id, int16_t error, int32_t session_id, int32_t topic_count
    ) except -1:
        cdef uint8_t* p
        self.version = version
        self.reserve(HEADER_BYTES_MAX)
        p = self.bytes + SIZE_FIELD  # the length is stored by end()
        store_i32(p, correlation_id)
        p += 4
        if version >= 12:
            p[0] = 0  # tagged fields of response header version 1
            p += 1
        if version >= 1:
            store_i32(p, 0)  # throttle time: see set_throttle
            p += 4
        if version >= 7:
            store_i16(p, error)
            store_i32(p + 2, session_id)
            p += 6
        self.bytes_size = p - self.bytes
        return self.put_count(topic_count)

    cdef void set_throttle(self, int32_t throttle_ms) noexcept nogil:
        """Set how long the client should wait, which is known only when the response is sent."""
        if self.version >= 1:
            store_i32(self.bytes + SIZE_FIELD + 4 + (1 if self.version >= 12 else 0), throttle_ms)

    cdef int begin_topic(self, const uint8_t* key, Py_ssize_t key_size, int32_t partition_count) except -1:
        """key: 16 bytes of topic id from version 13, else the name."""
        cdef uint8_t* p
        self.reserve(key_size + 2 * COUNT_BYTES_MAX)
        p = self.bytes + self.bytes_size
        if self.version == 12:
            p = store_uvarlong(p, <uint32_t>key_size + 1)
        elif self.version < 12:
            store_i16(p, <int16_t>key_size)
            p += 2
        memcpy(p, key, <size_t>key_size)
        self.bytes_size = p + key_size - self.bytes
        return self.put_count(partition_count)

    cdef int add_partition(self, const PartitionResponse* response) except -1:
        cdef uint8_t* p
        cdef int32_t number
        cdef bint flexible = self.version >= 12
        self.reserve(PARTITION_BYTES_MAX + <int64_t>max(response.aborted_count, 0) * ABORTED_BYTES_MAX)
        p = self.bytes + self.bytes_size
        store_i32(p, response.index)
        store_i16(p + 4, response.error)
        store_i64(p + 6, response.high_watermark)
        p += 14
        if self.version >= 4:
            store_i64(p, response.last_stable_offset)
            p += 8
        if self.version >= 5:
            store_i64(p, response.log_start_offset)
            p += 8
        self.bytes_size = p - self.bytes
        if self.version >= 4:
            self.put_count(response.aborted_count)
        p = self.bytes + self.bytes_size
        for number in range(response.aborted_count):
            store_i64(p, response.aborted[number].producer_id)
            store_i64(p + 8, response.aborted[number].first_offset)
            p += 16
            if flexible:
                p[0] = 0
                p += 1
        if self.version >= 11:
            store_i32(p, response.preferred_replica)
            p += 4
        if flexible:
            p = store_uvarlong(p, <uint32_t>response.size + 1)
        else:
            store_i32(p, <int32_t>response.size)
            p += 4
        self.bytes_size = p - self.bytes
        if response.records != NULL:
            self.reserve(response.size)
            memcpy(self.bytes + self.bytes_size, response.records, <size_t>response.size)
            self.bytes_size += response.size
            self.copied_bytes += response.size
            self.pool.copied_bytes += response.size
        elif response.size > 0:
            self.add_chunk(response.file, response.position, response.size)
        if flexible:
            self.put_partition_tags(response)
        return 0

    cdef int put_partition_tags(self, const PartitionResponse* response) except -1:
        cdef uint8_t* p
        self.reserve(PARTITION_TAGS_BYTES_MAX)
        p = self.bytes + self.bytes_size
        p[0] = 0  # their count
        p += 1
        if response.diverging_epoch >= 0:
            self.bytes[self.bytes_size] += 1
            p[0] = TAG_DIVERGING_EPOCH
            p[1] = 13  # bytes of the field
            store_i32(p + 2, response.diverging_epoch)
            store_i64(p + 6, response.diverging_end)
            p[14] = 0
            p += 15
        if response.has_leader:
            self.bytes[self.bytes_size] += 1
            p[0] = TAG_CURRENT_LEADER
            p[1] = 9  # bytes of the field
            store_i32(p + 2, response.leader_id)
            store_i32(p + 6, response.leader_epoch)
            p[10] = 0
            p += 11
        self.bytes_size = p - self.bytes
        return 0

    cdef int end_topic(self) except -1:
        if self.version >= 12:
            self.reserve(1)
            self.bytes[self.bytes_size] = 0
            self.bytes_size += 1
        return 0

    cdef int end(self, bytes tagged) except -1:
        if tagged is None:
            self.end_topic()  # no tagged fields of the response itself
        else:
            self.reserve(len(tagged))
            memcpy(self.bytes + self.bytes_size, <const char*>tagged, <size_t>len(tagged))
            self.bytes_size += len(tagged)
        if self.bytes_size > self.chunk_start:
            self.add_chunk(-1, 0, 0)
        if self.total_size - SIZE_FIELD > RESPONSE_BYTES_MAX:
            raise OverflowError(f"a Fetch response of {self.total_size} bytes")
        store_i32(self.bytes, <int32_t>(self.total_size - SIZE_FIELD))
        return 0


cdef bytes reply_bytes(FetchReply reply):
    """The whole response; releases the reply."""
    cdef list parts = []
    cdef ReplyChunk* chunk
    cdef int32_t number
    for number in range(reply.chunk_count):
        chunk = &reply.chunks[number]
        parts.append((<char*>reply.bytes)[chunk.bytes_offset : chunk.bytes_offset + chunk.bytes_size])
        if chunk.fd >= 0:
            parts.append(os.pread(chunk.fd, chunk.size, chunk.position))
    whole = b"".join(parts)
    if len(whole) != reply.total_size:
        raise OSError(f"a Fetch response has {len(whole)} of {reply.total_size} bytes: a log file was truncated")
    reply.release()
    return whole
