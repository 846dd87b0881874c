# What passes through each partition, counted in shared memory by slot. See log_figures.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._ext.shared.partition_table cimport PartitionTable


# Written by the io worker that owns the slot.
cdef struct Written:
    uint32_t incarnation        # of the slot, as of the numbers
    uint32_t segments           # of the log now
    int64_t messages_in
    int64_t bytes_in
    int64_t produces
    int64_t failed_produces
    int64_t bytes_rejected
    int64_t sealed_bytes        # of the log now, without its active segment
    uint32_t segment_version    # of the slot, when these two were right
    uint32_t behind             # the leader by one less so many committed records; 0: it is not being copied


# Written by one network process.
cdef struct Read:
    uint32_t incarnation
    uint32_t unused
    int64_t bytes_out           # to consumers
    int64_t bytes_to_followers
    int64_t fetches
    int64_t failed_fetches
    int64_t more[3]


cdef class LogFigures:
    cdef object _region         # keeps the mapping alive
    cdef readonly int32_t capacity
    cdef readonly int network_count
    cdef Written* written       # by slot
    cdef Read* read             # by slot, of the network process that has opened this; NULL: it is none

    # SAFETY: callers have checked 0 <= slot < capacity.
    cdef inline Written* written_of(self, int32_t slot, uint32_t incarnation) noexcept nogil:
        if self.written[slot].incarnation != incarnation:
            self.clear_written(slot, incarnation)
        return &self.written[slot]

    cdef inline Read* read_of(self, int32_t slot, uint32_t incarnation) noexcept nogil:
        if self.read[slot].incarnation != incarnation:
            self.clear_read(slot, incarnation)
        return &self.read[slot]

    cdef void clear_written(self, int32_t slot, uint32_t incarnation) noexcept nogil
    cdef void clear_read(self, int32_t slot, uint32_t incarnation) noexcept nogil
    cdef Read* read_by(self, int network_index) noexcept nogil
    cdef int check(self, int slot) except -1
    # By how many committed records the replica is behind its leader; -1: it is not being copied.
    cdef void show_lag(self, PartitionTable table, int32_t slot, int64_t lag) noexcept nogil
