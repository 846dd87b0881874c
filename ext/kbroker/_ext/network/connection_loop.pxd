# The connections of a network process; net_loop adds the requests. See connection_loop.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.network.admission cimport HeavyRequests, MutedConnections, Patience
from kbroker._ext.network.responses cimport Responses
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.network.scarcity cimport MemoryQueue
from kbroker._ext.shared.arena cimport Arena
from kbroker._ext.sockets.requests cimport Request, RequestTable

cdef class ConnectionLoop:
    cdef int _epoll_fd
    cdef dict _connections            # fd -> Connection
    cdef dict _readers                # fd -> reader, for file descriptors that are not connections
    cdef object _ready                # deque: connections with more to do than their turn allowed
    cdef object _sending              # deque: those with the rest of a long response to send; none is in both
    cdef bint _sending_waits          # it had no part in the last turn
    cdef Responses _responses
    cdef MemoryQueue _memory
    cdef HeavyRequests _heavy
    cdef MutedConnections _muted
    cdef Arena _arena
    cdef RequestTable _requests
    cdef object _on_close
    cdef uint64_t _added_total         # connections since the start
    cdef int64_t _frame_max
    cdef public int64_t unknown_frame_max  # of clients that have not authenticated
    cdef int64_t now_ms
    cdef public int64_t slice_ns_max  # how much of a turn a connection may use at most
    cdef int64_t _slice_ns             # how much of the current turn
    cdef int64_t _receive_bytes        # how much it may receive at once
    cdef bint _draining
    cdef bint _called_out              # Python code of the process has run since `turns` began
    cdef int64_t frame_ns              # when the frame at hand was looked at
    cdef Patience _patience
    # totals since the start, copied into the shared counters by the worker
    cdef readonly int64_t bytes_received
    cdef readonly int64_t rejected_total   # connections that this side closed for a reason
    cdef readonly int64_t closed_total
    cdef readonly int64_t idle_ns          # waiting for events
    cdef dict _by_listener                 # index of the listener -> open connections

    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1
    cdef bint may_pipeline(self, const uint8_t* frame) noexcept nogil
    cdef bint is_heavy(self, const uint8_t* frame, int32_t size) noexcept nogil
    cdef int forget_parked(self, Request* request) except -1
    cdef int forget_express(self, Request* request) except -1
    cdef int forget_follower(self, Connection c) except -1
    cdef int on_readable(self, object reader) except -1

    # The only way to call Python code of the process. What it schedules (a call, a sleep) must be looked at before the
    # loop waits again, so `turns` returns.
    cdef inline int call_out(self, object function, tuple args) except -1:
        self._called_out = True
        function(*args)
        return 0

    cdef int queue(self, Connection c, object queue) except -1
    cdef int serve_next(self, object queue) except -1
    cdef int serve(self, Connection c) except -1
    cdef int parse(self, Connection c) except -1
    cdef int heavy_over(self, Connection c) except -1
    cdef int continue_later(self, Connection c) except -1
    cdef int flush_responses(self) except -1
    cdef int flush(self, Connection c) except -1
    cdef bint send_long(self, Connection c) except *
    cdef int end_request(self, Request* request) except -1
    cdef int end_connection(self, Connection c) except -1
    cdef int finish_ending(self, Connection c) except -1
    cdef int close_connection(self, Connection c, object reason) except -1
    cdef int retry_starved(self) except -1
    cdef int relieve_part(self, bint large) except -1
