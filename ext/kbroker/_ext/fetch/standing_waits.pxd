# Partitions of followers' sessions that have nothing new, by slot. See standing_waits.pyx.
from libc.stdint cimport int32_t


cdef struct StandingWait:
    void* session            # FetchSession, kept alive by SessionCache.followers
    int32_t entry            # of the session
    int32_t slot
    int32_t next_of_slot     # also chains free nodes
    int32_t previous_of_slot


cdef class StandingWaits:
    cdef int32_t slot_count
    cdef int32_t* slot_heads          # first StandingWait of each slot, -1: none
    cdef StandingWait* nodes
    cdef int32_t capacity
    cdef int32_t free_node
    cdef readonly int32_t count
    # Returns the number of the node. The slot is one of the table's.
    cdef int32_t add(self, void* session, int32_t entry, int32_t slot) except -1
    cdef void remove(self, int32_t number) noexcept
    # The first node of a slot, -1: none.
    cdef int32_t head(self, int32_t slot) noexcept
