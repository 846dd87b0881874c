# The loop of a network process: epoll, connections, request order, responses.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.arena cimport Arena
from kbroker._ext.connection cimport Connection
from kbroker._ext.fetch_engine cimport FetchEngine
from kbroker._ext.fetch_reply cimport FetchReply
from kbroker._ext.lane cimport Lane
from kbroker._ext.produce_path cimport ProducePath
from kbroker._ext.requests cimport Request, RequestTable


cdef class NetLoop:
    cdef int _epoll_fd
    cdef dict _connections            # fd -> Connection
    cdef dict _readers                # fd -> callback, for descriptors that are not connections
    cdef list _lanes                  # by io worker index
    cdef list _ready                  # connections with more to read than their turn allowed
    cdef list _dirty                  # connections with answers to send
    cdef list _starved                # connections that wait for arena memory
    cdef Arena _arena
    cdef RequestTable _requests
    cdef readonly ProducePath produce
    cdef readonly FetchEngine fetch
    cdef object _dispatch             # dispatch(connection, token, frame bytes)
    cdef object _on_close             # on_close(connection, reason)
    cdef int64_t _frame_max
    cdef int64_t now_ms
    cdef bint _draining
    cdef int64_t _idle_ms
    cdef int64_t _first_request_ms
    cdef int64_t _request_ms
    cdef int64_t _write_ms
    # totals since the start, copied into the shared counters by the worker
    cdef int64_t _api_requests[96]
    cdef readonly int64_t bytes_received
    cdef readonly int64_t bytes_sent
    cdef readonly int64_t refused_total
    cdef readonly int64_t closed_total
    cdef readonly int64_t starved_total

    cdef int serve(self, Connection c) except -1
    cdef int parse(self, Connection c) except -1
    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1
    cdef int start_produce(self, Connection c, const uint8_t* frame, int32_t size, int16_t version, int32_t correlation_id) except -1
    cdef int start_fetch(self, Connection c, Request* request, const uint8_t* frame, int32_t size) except -1
    cdef int finish_fetch(self, Request* request, FetchReply reply) except -1
    cdef int drain_fetches(self) except -1
    cdef int send_fetch(self, Connection c, Request* request) except -1
    cdef int read_lane(self, Lane lane) except -1
    cdef int take_results(self, const uint8_t* body, Py_ssize_t size, uint32_t count) except -1
    cdef int flush_answers(self) except -1
    cdef int expire_fetches(self) except -1
    cdef int finish_produce(self, Request* request) except -1
    cdef int fail_parts(self, Request* request, int worker, int16_t error_code) except -1
    cdef int all_parts_done(self, Request* request) except -1
    cdef int answered(self, Request* request) except -1
    cdef int flush(self, Connection c) except -1
    cdef int send_some(self, Connection c) except -1
    cdef int end_request(self, Request* request) except -1
    cdef int close_connection(self, Connection c, object reason) except -1
    cdef int relieve_arena(self) except -1
    cdef int expire_requests(self, int64_t now_ns) except -1
