# A partition as it is fetched over a link. See fetched_log.pyx.
from libc.stdint cimport int32_t, int64_t

from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.shared.log_figures cimport LogFigures
from kbroker._ext.shared.partition_table cimport LogEnd

cdef enum:
    REMEMBERED_ENDS = 4


cdef class FetchedLog:
    cdef readonly LogAppender appender
    cdef readonly bytes topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly bint wanted       # by ReplicaFetch: it is fetched
    cdef bint queued            # in the list of those that the next request names
    cdef bint lags              # among those that lack something committed
    cdef public bint throttled  # its bytes count for the follower's quota (KIP-73)
    cdef readonly bint behind   # the high watermark of the leader, as far as it is known
    # What the leader was told last.
    cdef bint in_session
    cdef int64_t sent_offset
    cdef int64_t sent_start
    # The leader's high watermark in its last answer; -1 before the first.
    cdef readonly int64_t told_high_watermark
    # Where the log ended behind the last answers: one of these is where the high watermark comes to be, as a rule.
    cdef LogEnd ends[REMEMBERED_ENDS]
    cdef int newest
    cdef LogFigures figures     # where its lag is shown; None: nobody wants to know
    # The leader calls so many records committed; -1: nothing is known of that any more.
    cdef void show_lag(self, int64_t told) noexcept
    cdef void note_end(self) noexcept
    # Raise the high watermark to what the leader says, if this log has it; False: its place is not known.
    cdef bint raise_high_watermark(self, int64_t told) noexcept
