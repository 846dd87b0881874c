"""A partition replicated over a link in one leader epoch; each epoch has a new one."""
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.shared.log_figures cimport LogFigures


cdef class FetchedLog:
    """topic, partition: as the leader knows them. leader_epoch: in which it leads."""

    def __cinit__(self, LogAppender appender not None, str topic not None, int32_t partition, int32_t leader_epoch,
                  LogFigures figures=None):
        self.appender = appender
        self.topic = topic.encode()
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.sent_offset = self.sent_start = self.told_high_watermark = -1
        self.behind = True
        self.figures = figures
        memset(self.ends, 0xFF, sizeof(self.ends))

    cdef void show_lag(self, int64_t told) noexcept:
        cdef int64_t lag = max(told - self.appender.next_offset, 0) if told >= 0 else -1
        if self.figures is not None:
            self.figures.show_lag(self.appender.table, self.appender.slot, lag)

    cdef void note_end(self) noexcept:
        self.newest = (self.newest + 1) % REMEMBERED_ENDS
        self.ends[self.newest].offset = self.appender.next_offset
        self.ends[self.newest].segment_base_offset = self.appender.base_offset
        self.ends[self.newest].position = self.appender.position

    cdef bint raise_high_watermark(self, int64_t told) noexcept:
        """Raise the high watermark to the leader's, if this log has it; False: its position is unknown.

        It does not fall: what was committed is, whatever a leader that was elected since has been told.
        """
        cdef LogAppender appender = self.appender
        cdef int64_t offset = min(told, appender.next_offset)
        cdef int i
        self.told_high_watermark = told
        if offset <= appender.high_watermark.offset:
            return True
        if offset == appender.next_offset:
            appender.high_watermark.segment_base_offset = appender.base_offset
            appender.high_watermark.position = appender.position
        else:
            for i in range(REMEMBERED_ENDS):
                if self.ends[i].offset == offset:
                    appender.high_watermark = self.ends[i]
                    break
            else:
                return False
        appender.high_watermark.offset = offset
        appender.high_watermark_held = True
        appender.dirty = True
        return True
