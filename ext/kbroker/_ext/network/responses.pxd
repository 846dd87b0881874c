# Responses that are ready, and how they are sent. See responses.pyx.
from libc.stdint cimport int64_t

from kbroker._ext.fetch.fetch_send cimport SendStatus
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.shared.client_figures cimport ClientFigures
from kbroker._ext.shared.request_times cimport RequestTimes
from kbroker._ext.sockets.requests cimport REQUEST_COMPLETE, Request

cdef enum:
    # BOUND: bytes of all long responses together in a turn in which others wait for short ones.
    SHARED_TURN_BYTES = 65536


cdef class Responses:
    cdef list dirty                    # connections with responses to send
    cdef int64_t long_bytes            # sent of long responses in this turn, if others wait
    cdef int64_t short_response_ms       # when the last short response was sent
    cdef int64_t yield_at_ns           # when the core may be yielded again
    cdef int64_t bytes_sent
    cdef RequestTimes times            # None: nobody wants to know
    cdef ClientFigures clients
    cdef int64_t slow_ns               # requests that take longer are noted in `slow`; -1: none
    cdef list slow
    cdef int64_t slow_left_out
    cdef int64_t idle_since_ns         # when the sending of the last response ended, or the present round began
    # A response has been sent completely: note how long each stage took.
    cdef void note_sent(self, const Request* request, int64_t began_ns, int64_t now_ns) noexcept
    cdef int note_slow(self, const Request* request, int64_t began_ns, int64_t now_ns) except -1
    cdef int let_others_run(self) except -1
    # Send the short responses at the head of the queue; *whole: the number sent completely.
    cdef SendStatus send_short(self, Connection c, int64_t now_ms, int* whole) noexcept
    # Send more of the long response at the head of the queue, as much as this turn allows.
    cdef SendStatus send_long(self, Connection c, int64_t now_ms) noexcept

    # The response to a request is complete, now.
    cdef inline int ready(self, Request* request, int64_t now_ns) except -1:
        request.state = REQUEST_COMPLETE
        request.ready_ns = now_ns
        return self.look_at(<Connection>request.connection)

    # See to this connection at the end of the turn.
    cdef inline int look_at(self, Connection c) except -1:
        if not c.in_dirty:
            c.in_dirty = True
            self.dirty.append(c)
        return 0

    cdef inline bint has_room_for_long(self) noexcept:
        return self.long_bytes < SHARED_TURN_BYTES
