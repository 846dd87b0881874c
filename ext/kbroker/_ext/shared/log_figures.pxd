# What passes through each partition, counted in shared memory by slot. See log_figures.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._ext.shared.layouts cimport Read, Written
from kbroker._ext.shared.partition_table cimport PartitionTable


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
