# Connections whose next request may not start yet, or has taken too long. See admission.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.network.connection cimport Connection


cdef class HeavyRequests:
    cdef const uint8_t* arena_base
    cdef int64_t frame_max
    cdef int64_t bytes                 # of the heavy requests in progress
    cdef object held_back              # deque: connections whose heavy request waits for others to complete
    cdef bint begin(self, Connection c, int32_t size) except? True
    cdef list over(self, Connection c)
    cdef int leave(self, Connection c) except -1


cdef class MutedConnections:
    cdef list heap                     # of (end, number, connection)
    cdef int64_t next_end_ms           # the earliest end, -1 if none is muted
    cdef int64_t numbers
    cdef bint add(self, Connection c, int64_t until_ms) except *
    cdef list take_due(self, int64_t now_ms)
    cdef list end_all(self, int64_t now_ms)


cdef class Patience:
    cdef int64_t idle_ms               # 0: for ever
    cdef int64_t first_request_ms
    cdef int64_t request_ms
    cdef int64_t write_ms
    cdef object reason                 # of the last one that is over; None: the peer need not be told of
    cdef bint is_over(self, Connection c, int64_t now_ms) except *
