"""The requests in flight of one network process.

Entries are reused together with their buffers, so a steady load allocates nothing. A token names an entry and its
generation: a response that arrives after the entry was released finds nothing.
"""
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._ext.base.growing cimport grow

cdef enum:
    # BOUND: buffers larger than this are freed when a request ends, so one large request does not pin memory.
    KEEP_BYTES = 16384


cdef inline uint64_t token_of(const Request* request) noexcept nogil:
    return ((<uint64_t>request.generation) << 32) | request.index


cdef int reserve_response(Request* request, Py_ssize_t size) except -1:
    """Make room for ``size`` response bytes in all."""
    request.response_capacity = grow(&request.response, request.response_capacity, size, 1, 256)
    return 0


cdef ProducePart* add_part(Request* request) except NULL:
    """Add a partition to a Produce request, without a result yet."""
    cdef ProducePart* part
    request.part_capacity = grow(&request.parts, request.part_capacity, request.part_count + 1, sizeof(ProducePart), 4)
    part = &request.parts[request.part_count]
    request.part_count += 1
    memset(part, 0, sizeof(ProducePart))
    part.worker = -1
    part.leader_id = -1
    part.bad_record_index = -1
    part.base_offset = -1
    part.log_append_time_ms = -1
    part.log_start_offset = -1
    return part


cdef ProduceTopic* add_topic(Request* request) except NULL:
    """Add a topic to a Produce request."""
    request.topic_capacity = grow(
        &request.topics, request.topic_capacity, request.topic_count + 1, sizeof(ProduceTopic), 2)
    request.topic_count += 1
    memset(&request.topics[request.topic_count - 1], 0, sizeof(ProduceTopic))
    return &request.topics[request.topic_count - 1]


cdef class RequestTable:
    """All requests of the process, free and in use."""

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._count):
            free(self._entries[i].parts)
            free(self._entries[i].topics)
            free(self._entries[i].response)
            free(self._entries[i].names)
            free(self._entries[i])
        free(self._entries)

    cdef Request* acquire(self) except NULL:
        """Return an entry in state WAITING with everything else cleared."""
        cdef Request* request = self._free
        if request != NULL:
            self._free = request.next
        else:
            self._capacity = grow(&self._entries, self._capacity, <int64_t>self._count + 1, sizeof(Request*), 64)
            request = <Request*>calloc(1, sizeof(Request))
            if request == NULL:
                raise MemoryError()
            request.index = self._count
            self._entries[self._count] = request
            self._count += 1
        self.in_use += 1
        request.next = NULL
        request.connection = NULL
        request.generation += 1
        request.state = REQUEST_WAITING
        request.silent = False
        request.close_after = False
        request.arrived_ns = request.taken_ns = request.waits_ns = request.ready_ns = request.sending_ns = 0
        request.throttle_ms = 0
        request.of_follower = False
        request.block = NULL
        request.timeout_ms = 0
        request.parts_left = 0
        request.appended_count = 0
        request.part_count = 0
        request.topic_count = 0
        request.response_size = 0
        request.sent = 0
        request.fetch_reply = NULL
        request.fetch_chunk = 0
        request.parked = False
        request.express_worker = -1
        return request

    cdef void release(self, Request* request) noexcept:
        """Free an entry for reuse. The caller has already released its block and fetch reply."""
        cdef int32_t i
        for i in range(request.part_count):
            free(request.parts[i].error_text)
            request.parts[i].error_text = NULL
        request.part_count = request.parts_left = 0
        free(request.names)
        request.names = NULL
        request.state = REQUEST_FREE
        request.generation += 1
        if request.response_capacity > KEEP_BYTES:
            free(request.response)
            request.response = NULL
            request.response_capacity = 0
        if request.part_capacity * <Py_ssize_t>sizeof(ProducePart) > KEEP_BYTES:
            free(request.parts)
            request.parts = NULL
            request.part_capacity = 0
        if request.topic_capacity * <Py_ssize_t>sizeof(ProduceTopic) > KEEP_BYTES:
            free(request.topics)
            request.topics = NULL
            request.topic_capacity = 0
        request.next = self._free
        self._free = request
        self.in_use -= 1

    cdef Request* find(self, uint64_t token) noexcept nogil:
        """Return the entry that a token names; NULL if it has been released since."""
        cdef uint32_t index = <uint32_t>token
        cdef Request* request
        if index >= self._count:
            return NULL
        request = self._entries[index]
        if request.generation != <uint32_t>(token >> 32) or request.state == REQUEST_FREE:
            return NULL
        return request

    @property
    def buffer_bytes(self) -> int:
        """Bytes allocated for the buffers of all entries, in use or free."""
        cdef uint32_t i
        cdef Py_ssize_t total = 0
        for i in range(self._count):
            total += self._entries[i].response_capacity
            total += self._entries[i].part_capacity * <Py_ssize_t>sizeof(ProducePart)
            total += self._entries[i].topic_capacity * <Py_ssize_t>sizeof(ProduceTopic)
        return total

    def queue_sizes(self) -> tuple[int, int]:
        """Return (requests that wait for a process or are worked on, responses that are not sent completely). Neither has
        requests that only wait for data or for replicas.
        """
        cdef uint32_t i
        cdef int requests = 0, responses = 0
        cdef const Request* request
        for i in range(self._count):
            request = self._entries[i]
            if request.state == REQUEST_COMPLETE:
                responses += 1
            elif request.state == REQUEST_WAITING and not request.parked and (
                request.parts_left == 0 or request.appended_count < request.parts_left
            ):
                requests += 1
        return requests, responses

    cdef Request* at(self, uint32_t index) noexcept nogil:
        """Return the entry at ``index``, whatever its state; NULL past the end."""
        return self._entries[index] if index < self._count else NULL
