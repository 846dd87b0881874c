# A quota of replication (KIP-73), counted by all processes of the broker together. See replication_quota.pyx.
from libc.stdint cimport int64_t, uint64_t


cdef class ReplicationQuota:
    cdef object _region             # keeps the mapping alive
    cdef uint64_t* counts           # of the last periods
    cdef int count                  # how many
    cdef int64_t sample_ms
    cdef int64_t period_ms
    cdef public int64_t rate        # bytes a second
    # Whether the rate of the last samples is above the quota.
    cdef bint exceeded(self, int64_t now_ms) noexcept nogil
    cdef void record(self, int64_t size, int64_t now_ms) noexcept nogil
    cdef int64_t total(self, int64_t now_ms, int64_t* span_ms) noexcept nogil
