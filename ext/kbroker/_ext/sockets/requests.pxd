# The requests of a network process, from the first byte parsed to the last byte sent, and the table that finds them
# when a response arrives. Owned by net_loop; produce_path fills the produce fields.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from kbroker._ext.shared.arena cimport Block


# One partition of a Produce request. Pointers go into the request's arena block.
cdef struct ProducePart:
    int32_t partition
    int32_t worker             # the io worker that has it; -1 once its result is known
    int32_t slot
    uint32_t slot_incarnation
    const uint8_t* records     # the batch that the descriptor for the io worker describes; NULL once it is freed
    uint32_t size
    int16_t error_code
    bint is_appended           # it waits for a commit: the io worker does not read the batch any more
    bint has_numbers           # of a batch whose bytes are freed: the log can recognise it as a duplicate
    int32_t bad_record_index   # -1: none
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset
    uint8_t* error_text        # malloc'ed UTF-8, followed by the int32 indexes of more bad records; or NULL
    uint16_t error_text_size
    uint32_t more_bad_records
    int32_t leader_id          # another broker that leads it, and its epoch; -1: unknown
    int32_t leader_epoch


cdef struct ProduceTopic:
    const uint8_t* name        # NULL in version 13 and later
    int32_t name_size
    const uint8_t* topic_id    # 16 bytes, version 13 and later
    int32_t part_count


cdef enum RequestState:
    REQUEST_FREE = 0
    REQUEST_WAITING = 1        # for io workers, a handler, or data to fetch
    REQUEST_COMPLETE = 2       # the response is ready, but not completely sent


cdef struct Request:
    Request* next              # the next one on the connection
    void* connection           # borrowed Connection; NULL once that is closed
    uint32_t index
    uint32_t generation        # changes with each use of the entry; part of the token
    RequestState state
    bint silent                # acks=0: no response bytes
    bint close_after           # close the connection once everything before this is sent
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    int64_t started_ns         # when it was begun with; for a fetch whose response is being sent: when that began
    # Its stages (request_times), of the monotonic clock: its last byte was received, its owner began with it, it began to
    # wait for others (0: it did not), the response was ready, and sending began (0: it has not).
    int64_t arrived_ns
    int64_t taken_ns
    int64_t waits_ns
    int64_t ready_ns
    int64_t sending_ns
    int32_t throttle_ms
    bint of_follower           # a Fetch of another broker that follows
    Block* block               # arena bytes that this request refers to, or NULL
    # produce
    int32_t timeout_ms         # the client's
    int16_t acks
    int32_t transactional_id_size   # 0 or less: none
    const uint8_t* transactional_id
    int32_t parts_left
    int32_t appended_count     # of the parts that are left: those that only wait for a commit
    int32_t part_count
    int32_t part_capacity
    ProducePart* parts
    int32_t topic_count
    int32_t topic_capacity
    ProduceTopic* topics
    uint8_t* names             # malloc'ed names and ids of the topics, once the arena block is freed; or NULL
    # response: bytes with their length prefix, or a FetchReply
    uint8_t* response
    Py_ssize_t response_size
    Py_ssize_t response_capacity
    Py_ssize_t sent
    void* fetch_reply          # owned reference to a FetchReply, or NULL; `sent` counts within its current chunk
    int32_t fetch_chunk
    bint parked                # a Fetch that waits in purgatory
    int32_t express_worker     # the io worker to which this was forwarded undecoded, for its coordinator; -1: none


cdef class RequestTable:
    cdef Request** _entries
    cdef uint32_t _count
    cdef uint32_t _capacity
    cdef Request* _free
    cdef readonly uint32_t in_use
    cdef Request* acquire(self) except NULL
    cdef void release(self, Request* request) noexcept
    cdef Request* find(self, uint64_t token) noexcept nogil
    cdef Request* at(self, uint32_t index) noexcept nogil

cdef uint64_t token_of(const Request* request) noexcept nogil
cdef int reserve_response(Request* request, Py_ssize_t size) except -1
cdef ProducePart* add_part(Request* request) except NULL
cdef ProduceTopic* add_topic(Request* request) except NULL
