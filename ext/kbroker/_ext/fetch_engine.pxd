# Serves Fetch requests in a network process: sessions, reading positions, parking. See fetch_engine.pyx.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch_decode cimport FetchRequest
from kbroker._ext.fetch_files cimport FileCache
from kbroker._ext.fetch_reply cimport FetchReply, PartitionAnswer, ReplyPool
from kbroker._ext.fetch_segments cimport FoundRange
from kbroker._ext.fetch_sessions cimport FetchPartition, FetchSession, SessionCache, TopicRegistry
from kbroker._ext.partition_table cimport LogEnd, PartitionTable, SlotData


cdef enum FetchKind:
    FETCH_SESSIONLESS = 0
    FETCH_FULL = 1           # wants a session
    FETCH_INCREMENTAL = 2


cdef struct FetchTerms:
    uint64_t token
    int32_t correlation_id
    int32_t session_epoch    # that the session must still have when the answer is written
    int32_t bytes_min
    int32_t bytes_max
    int16_t version
    int8_t isolation_level
    FetchKind kind


cdef struct PartitionResult:
    int32_t entry            # of the session
    PartitionAnswer answer   # its file carries a reference of this result while size is above 0


# One parked request's wish on one slot; nodes of a slot and nodes of a request are chained.
cdef struct WaitNode:
    void* request            # ParkedFetch, kept alive by FetchEngine.parked
    int32_t entry
    int32_t slot
    int64_t counted          # bytes this partition adds to the request's available bytes
    int32_t next_of_slot
    int32_t previous_of_slot
    int32_t next_of_request  # also chains free nodes


cdef class ParkedFetch:
    cdef FetchTerms terms
    cdef FetchSession session
    cdef int64_t deadline_ms
    cdef int32_t heap_index
    cdef int32_t first_node
    cdef int64_t available


cdef class FetchEngine:
    cdef PartitionTable table
    cdef readonly int network_index
    cdef list log_dirs
    cdef FileCache files
    cdef TopicRegistry registry
    cdef SessionCache sessions
    cdef ReplyPool replies
    cdef FetchRequest request
    cdef list idle_sessions
    cdef int64_t now_ms
    cdef int32_t bytes_max
    cdef PartitionResult* results
    cdef int32_t result_count
    cdef int32_t result_capacity
    cdef dict parked                  # token -> ParkedFetch
    cdef void** heap                  # ParkedFetch by deadline; references are held by `parked`
    cdef int32_t heap_count
    cdef int32_t heap_capacity
    cdef int32_t* slot_heads          # first WaitNode of each slot, -1: none
    cdef WaitNode* nodes
    cdef int32_t node_capacity
    cdef int32_t free_node
    cdef FetchReply completed_first
    cdef FetchReply completed_last
    cdef readonly uint64_t parked_total

    # Serve one request. `body` is the request after its header and need only live during the call. Returns the reply,
    # or None when the request is parked; then the reply comes out of next_completed(), with this token.
    # Raises FetchDecodeError (ValueError) on malformed bytes: close the connection, naming the reason.
    cdef FetchReply handle(
        self, const uint8_t* body, Py_ssize_t size, int16_t version, int32_t correlation_id, uint64_t token,
        int64_t now_ms,
    )
    # A WAKE named this slot: look again at the requests parked on it.
    cdef int wake(self, int32_t slot, int64_t now_ms) except -1
    # Complete the requests whose deadline is at or before now_ms.
    cdef int expire(self, int64_t now_ms) except -1
    # The next deadline, -1 when nothing is parked.
    cdef int64_t next_deadline_ms(self) noexcept
    # The next reply of a request that had been parked, None when there is no more. Drain after handle() (a request on
    # a session completes one that is parked on it), wake(), expire() and topic changes.
    cdef FetchReply next_completed(self)
    # The connection of a parked request was closed. A reply already completed still comes out: release() it.
    cdef int cancel(self, uint64_t token) except -1

    # Close files nobody used for a while. Call it every few seconds, also when no request comes.
    cdef int housekeep(self, int64_t now_ms) except -1

    cdef FetchReply serve_full(self, FetchTerms* terms)
    cdef FetchReply serve_incremental(self, FetchTerms* terms)
    cdef FetchReply answer_or_park(self, FetchSession session, FetchTerms* terms)
    cdef FetchReply refuse(self, FetchTerms* terms, int16_t error)
    cdef FetchReply error_reply(self, FetchTerms* terms, int16_t error)
    cdef FetchSession take_session(self)
    cdef int put_session(self, FetchSession session) except -1
    cdef int make_results(self, int32_t count) except -1
    cdef int64_t evaluate(self, FetchSession session, FetchTerms* terms, bint* failed) except -1
    cdef int16_t read_partition(
        self, FetchPartition* entry, int8_t isolation_level, int64_t bytes_max, bint at_least_one,
        PartitionAnswer* answer,
    ) except *
    cdef int16_t find_bytes(
        self, FetchPartition* entry, SlotData* slot, LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* found,
    ) except *
    cdef int drop_results(self) except -1
    cdef int select_news(self, FetchSession session) except -1
    cdef FetchReply finish(self, FetchSession session, FetchTerms* terms)
    cdef FetchReply encode(self, FetchSession session, FetchTerms* terms, int16_t error, int32_t session_id)
    cdef bint park(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms) except *
    cdef bint recheck(self, WaitNode* node, ParkedFetch waiting) except *
    cdef int recheck_slot(self, int32_t slot, bint always) except -1
    cdef int complete(self, ParkedFetch waiting, int16_t session_error) except -1
    cdef int unpark(self, ParkedFetch waiting) except -1
    cdef int32_t take_node(self) except -1
    cdef int heap_push(self, ParkedFetch waiting) except -1
    cdef int heap_remove(self, ParkedFetch waiting) except -1
    cdef void heap_settle(self, int32_t index) noexcept
