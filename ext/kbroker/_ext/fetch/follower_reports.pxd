# Reports on followers for the owners of slots, until they are sent. See follower_reports.pyx.
from libc.stdint cimport int32_t, uint32_t

from kbroker._ext.base.index_table cimport IndexTable
from kbroker._ext.shared.descriptors cimport FollowerProgress
from kbroker._ext.shared.lane cimport Lane


cdef struct ReportBundle:
    FollowerProgress* items
    uint32_t first           # those before it are sent
    uint32_t count
    uint32_t capacity
    IndexTable index         # while the lane is full, of the items: row = place + 1


cdef class FollowerReports:
    cdef readonly int worker_count
    cdef ReportBundle* bundles      # by io worker
    cdef bint is_sent               # every bundle is; nearly every turn of a broker without followers asks
    cdef int add(self, const FollowerProgress* progress) except -1
    # Send everything; False if a lane is full.
    cdef bint send(self, list lanes) except -1
    cdef bint send_bundle(self, ReportBundle* bundle, Lane lane) except -1
    # The io worker was restarted: it gets everything again, by FetchSession.report_again.
    cdef void drop_bundle(self, int worker) noexcept
    cdef int hold(self, ReportBundle* bundle) except -1
