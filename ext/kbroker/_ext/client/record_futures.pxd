# What `send` returns; see record_futures.pyx.
from libc.stdint cimport int32_t, int64_t

from kbroker._ext.client.accumulator cimport Accumulator
from kbroker._ext.client.producer_batch cimport Batch

cdef class RecordFuture:
    cdef:
        Accumulator owner
        Batch* batch             # NULL: refused with `error`
        object error
        int64_t timestamp
        int32_t index            # in the batch
        int32_t key_size, value_size

    cdef bint follow(self) noexcept
    cdef bint _wait(self, timeout) except -1


# Records of one batch, one after the other; batch NULL: refused.
cdef struct Run:
    Batch* batch
    int32_t first
    int32_t count


cdef class RecordFutures:
    cdef:
        Accumulator owner
        Run* runs
        int64_t run_count, run_room
        int64_t records
        dict failed              # place of a refused record -> its error

    cdef int reserve(self, int64_t more) except -1
    cdef void add(self, Batch* batch) noexcept nogil
    cdef void add_whole(self, Batch* batch) noexcept nogil
    cdef int add_failed(self, error) except -1
    cdef bint _follow(self) except -1
    cdef bint _wait(self, timeout) except -1
