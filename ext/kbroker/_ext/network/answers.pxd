# Answers that are ready, and how they leave. See answers.pyx.
from libc.stdint cimport int64_t

from kbroker._ext.fetch.fetch_send cimport SendStatus
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.sockets.requests cimport REQUEST_ANSWERED, Request

cdef enum:
    # BOUND: bytes of all long answers together in one turn where others wait for short ones: they wait for a piece at a
    # time.
    SHARED_TURN_BYTES = 65536


cdef class Answers:
    cdef list dirty                    # connections with answers to send
    cdef int64_t long_bytes            # sent of long answers in this turn, where others wait
    cdef int64_t short_answer_ms       # when the last short answer was sent
    cdef int64_t yield_at_ns           # when others may have the core again
    cdef int64_t bytes_sent
    cdef int let_others_run(self) except -1
    # Send the answers at the head of the queue; *whole: how many of them are sent to the end.
    cdef SendStatus send_short(self, Connection c, int64_t now_ms, int* whole) noexcept
    # Send more of the long answer at its head, as much as this turn allows.
    cdef SendStatus send_long(self, Connection c, int64_t now_ms) noexcept

    # The response of a request is there.
    cdef inline int ready(self, Request* request) except -1:
        request.state = REQUEST_ANSWERED
        return self.look_at(<Connection>request.connection)

    # See to this connection at the end of the turn.
    cdef inline int look_at(self, Connection c) except -1:
        if not c.in_dirty:
            c.in_dirty = True
            self.dirty.append(c)
        return 0

    cdef inline bint has_room_for_long(self) noexcept:
        return self.long_bytes < SHARED_TURN_BYTES
