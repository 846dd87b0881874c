# Parked Fetch requests of a network process, found by token, by slot and by deadline.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch.fetch_sessions cimport FetchSession
from kbroker._ext.shared.quota_table cimport Limit


cdef enum FetchKind:
    FETCH_SESSIONLESS = 0
    FETCH_FULL = 1           # wants a session
    FETCH_INCREMENTAL = 2


# The end offset of a fetch. The first two are isolation levels as in the request.
cdef enum FetchIsolation:
    FETCH_HIGH_WATERMARK = 0
    FETCH_TXN_COMMITTED = 1  # the last stable offset
    FETCH_LOG_END = 2        # followers


# Replica ids that are no broker's.
cdef enum:
    ANY_REPLICA = -3         # reads up to the log end, from followers, too


cdef struct FetchTerms:
    uint64_t token
    int32_t correlation_id
    int32_t session_epoch    # that the session must still have when the response is written
    int32_t bytes_min
    int32_t bytes_max
    int16_t version
    int8_t isolation         # a FetchIsolation
    uint8_t listener         # index of the one that the client uses
    int32_t replica_id       # of the broker that fetches, from 0 on
    FetchKind kind
    Limit limit              # the quota of the client
    int64_t prepaid          # bytes for which it has waited already


# When a request is answered at the latest. A follower sends the next one at once, and may get nothing new for hours: so
# followers are answered together, at multiples of the time that they may wait, and the process wakes up once for all.
# Only the first request of a follower waits for less.
cdef inline int64_t latest_ms(const FetchTerms* terms, int64_t now_ms, int32_t max_wait_ms, int32_t undecided) noexcept:
    cdef int64_t latest = now_ms + max_wait_ms
    return latest - latest % max_wait_ms if terms.replica_id >= 0 and undecided == 0 else latest


# One slot that a parked request waits for; the nodes of a slot and those of a request are chained.
cdef struct WaitNode:
    void* request            # ParkedFetch, kept alive by FetchPurgatory.by_token
    int32_t entry            # of the request's session
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
    cdef int32_t first_node           # -1 once it has left
    cdef int64_t available            # sum of its nodes' counted bytes
    cdef int32_t undecided            # partitions whose owners are asked where an epoch ends; it waits for them


cdef class FetchPurgatory:
    cdef dict by_token
    cdef int32_t slot_count
    cdef int32_t* slot_heads          # first WaitNode of each slot, -1: none
    cdef WaitNode* nodes
    cdef int32_t node_capacity
    cdef int32_t free_node
    cdef void** heap                  # ParkedFetch by deadline; references are held by `by_token`
    cdef int32_t heap_count
    cdef int32_t heap_capacity
    cdef ParkedFetch enter(self, FetchSession session, FetchTerms* terms, int64_t deadline_ms)
    # The node keeps its address until the next wait_for(). The slot is one of the table's.
    cdef WaitNode* wait_for(self, ParkedFetch waiting, int32_t entry, int32_t slot) except NULL
    cdef int leave(self, ParkedFetch waiting) except -1
    cdef ParkedFetch find(self, uint64_t token)
    cdef ParkedFetch first_due(self, int64_t now_ms)
    cdef int64_t next_deadline_ms(self) noexcept
    cdef int32_t take_node(self) except -1
    cdef int heap_push(self, ParkedFetch waiting) except -1
    cdef int heap_remove(self, ParkedFetch waiting) except -1
    cdef void heap_settle(self, int32_t index) noexcept
