# The Fetch requests of a network process, between its loop and the fetch engine. See fetch_requests.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch.fetch_engine cimport FetchEngine
from kbroker._ext.fetch.fetch_reply cimport FetchReply
from kbroker._ext.network.client_limits cimport ClientLimits
from kbroker._ext.network.responses cimport Responses
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.sockets.requests cimport Request, RequestTable


cdef class FetchRequests:
    cdef FetchEngine engine
    cdef RequestTable requests
    cdef Responses responses
    cdef ClientLimits limits
    cdef uint64_t starved_seen         # engine.reader.starved_total when files were freed last
    cdef int start(self, Connection c, Request* request, const uint8_t* frame, int32_t size, int64_t now_ms) except -1
    cdef int finish(self, Request* request, FetchReply reply, int64_t now_ms) except -1
    # Respond to the parked fetches that are complete.
    cdef int drain(self, int64_t now_ms) except -1
    # Respond to the parked fetches of these followers with what there is.
    cdef int hurry(self, frozenset brokers, int64_t now_ms) except -1
    # Respond to the parked fetches that are complete or past their deadline. Returns the time, which it may have read
    # again.
    cdef int64_t expire(self, int64_t now_ms) except -1
    # Drop a parked request: its connection is closed.
    cdef int forget(self, Request* request) except -1
    # Connections to close so that fetches get descriptors again.
    cdef list relief(self, object connections, int64_t now_ms)
