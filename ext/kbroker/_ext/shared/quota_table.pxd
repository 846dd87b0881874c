# What clients have used of their quotas, counted by all processes of the broker together. See quota_table.pyx.
from libc.stdint cimport int64_t, uint64_t


# A quota of one client, as one process uses it.
cdef struct Limit:
    uint64_t key             # of its cell; 0: there is no quota
    double rate              # units a second
    int64_t ahead_us_max     # how far ahead of its quota it can be
    uint64_t* cell           # NULL before its first use; found again in each period
    int64_t period           # in which the cell was found


cdef class QuotaTable:
    cdef object _region      # keeps the mapping alive
    cdef uint64_t* words
    cdef readonly int64_t cells
    cdef readonly int64_t sample_ms
    cdef readonly int64_t burst_ms
    # Find the cell of a limit, if it was not found in this period.
    cdef void locate(self, Limit* limit, int64_t now_ms) noexcept nogil
    # Count what its client uses.
    cdef void record(self, Limit* limit, int64_t amount, int64_t now_ms) noexcept nogil
    # How long its client has to wait until it is within the quota, in ms; 0 if it is.
    cdef int64_t excess_ms(self, Limit* limit, int64_t now_ms) noexcept nogil
    # How long at the rate of its quota what it has used takes, from now on, in us; 0: everything is paid.
    cdef int64_t ahead_us(self, Limit* limit, int64_t now_ms) noexcept nogil
    # The most units that are within the quota of a client that has used none.
    cdef int64_t burst_amount(self, const Limit* limit) noexcept nogil
    # Count the time (ns) that another process has spent for the client of this quota for the time of requests.
    cdef void record_time(self, uint64_t key, double rate, int64_t spent_ns, int64_t now_ms) noexcept nogil
    cdef uint64_t* find(self, uint64_t key, int64_t now_us) noexcept nogil


cdef class Quota:
    cdef QuotaTable table
    cdef Limit limit
