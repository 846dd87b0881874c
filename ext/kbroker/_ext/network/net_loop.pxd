# The requests of a network process: produce, fetch, and those that are dispatched to handlers. See net_loop.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.base.api_keys cimport API_WIDTH
from kbroker._ext.fetch.fetch_engine cimport FetchEngine
from kbroker._ext.network.client_limits cimport ClientLimits
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.network.connection_loop cimport ConnectionLoop
from kbroker._ext.network.express_path cimport ExpressPath
from kbroker._ext.network.fetch_requests cimport FetchRequests
from kbroker._ext.network.produce_path cimport ProducePath
from kbroker._ext.shared.arena cimport Arena
from kbroker._ext.shared.lane cimport Lane
from kbroker._ext.sockets.requests cimport Request, RequestTable


cdef class NetLoop(ConnectionLoop):
    cdef list _lanes                  # by io worker index
    cdef readonly ProducePath produce
    cdef readonly FetchEngine fetch
    cdef FetchRequests _fetches
    cdef readonly ExpressPath express
    cdef readonly ClientLimits limits
    # on_rejected(connection, token, frame, error code, text): a coordinator's error for a request forwarded undecoded.
    cdef public object on_rejected
    # on_epoch_questions(): fetch.take_epoch_questions() has some.
    cdef public object on_epoch_questions
    cdef object _dispatch             # dispatch(connection, token, frame bytes)
    # on_response(io worker index, message): takes a MSG_RESPONSE, in which coordinators respond to handlers.
    cdef public object on_response
    cdef int64_t _api_requests[API_WIDTH]

    cdef int handle_request(self, Connection c, const uint8_t* frame, int32_t size) except -1
    cdef int read_lane(self, Lane lane) except -1
    cdef int start_token(self, Connection c, const uint8_t* frame, int32_t size) except -1
    cdef int take_responses(self, int worker, const uint8_t* body, Py_ssize_t size, int64_t now_ns) except -1
    cdef int reject_express(self, Request* request, int error_code, object text) except -1
    cdef int start_produce(
        self, Connection c, const uint8_t* frame, int32_t size, int16_t version, int32_t correlation_id
    ) except -1
    cdef int finish_produce(self, Request* request, int64_t now_ns) except -1
    cdef int take_results(self, const uint8_t* body, Py_ssize_t size, uint32_t count, int64_t now_ns) except -1
    cdef int free_block(self, Request* request) except -1
    cdef int note_restarts(self) except -1
    cdef int ask_again(self, int worker) except -1
    cdef int repeat_produce(self, Connection c, Request* request, int worker) except -1
    cdef bint start_express(self, Connection c, Request* request, const uint8_t* frame, int32_t size) except -1
    cdef int repeat_express(self, Connection c, Request* request) except -1
    cdef int fail_parts(self, Request* request, int worker, int16_t error_code) except -1
    cdef int all_parts_done(self, Request* request, int64_t now_ns) except -1
    cdef int expire_requests(self, int64_t now_ns) except -1
