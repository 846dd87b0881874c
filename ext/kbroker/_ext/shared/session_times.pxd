# When each session of a follower has sent its last request, in memory that network processes write and io workers read.
from libc.stdint cimport int32_t, int64_t, uint64_t

from kbroker._ext.base.atomics cimport kb_load_u64


cdef enum:
    # BOUND: sessions of followers in one network process. Each is a connection of another broker's fetcher.
    SESSION_CELLS = 512


cdef class SessionTimes:
    cdef object _region        # keeps the mapping alive
    cdef int64_t* times        # monotonic ms; 0: no session
    cdef readonly int32_t count
    cdef int32_t first         # of the cells of this network process; -1 in other processes
    cdef int32_t next_cell     # where the search for a free one begins, so that none is used again at once
    # The time of the session's last request; -1 for no cell. The cell of a session that has ended may be another's.
    cdef inline int64_t last_request_ms(self, int32_t cell) noexcept nogil:
        return <int64_t>kb_load_u64(<const uint64_t*>&self.times[cell]) if 0 <= cell < self.count else -1
    # Network process only: a cell for a new session, with its first request; -1 if all are taken.
    cdef int32_t take(self, int64_t now_ms) noexcept
    cdef void note(self, int32_t cell, int64_t now_ms) noexcept nogil
    cdef void give_back(self, int32_t cell) noexcept
    cdef int check(self, int cell) except -1
