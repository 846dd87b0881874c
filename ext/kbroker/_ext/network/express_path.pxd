# The express path of a network process: frequent requests about one group or transactional id, to the coordinator and back.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.fetch.topic_registry cimport TopicRegistry
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.shared.descriptors cimport EXPRESS_BIT
from kbroker._ext.shared.request_times cimport RequestTimes
from kbroker._ext.sockets.requests cimport Request, RequestTable


# The next MSG_REQUEST to one io worker.
cdef struct ExpressBundle:
    uint8_t* data
    size_t size
    uint32_t count


cdef class ExpressPath:
    cdef TopicRegistry topics
    cdef RequestTable requests
    cdef int worker_count
    cdef ExpressBundle* bundles
    cdef uint64_t quota_key             # of the next request's time, and units a second; 0: there is no quota
    cdef double quota_rate
    cdef readonly dict frames              # token -> the frame, for an error response that needs it decoded
    cdef bint takes(self, int16_t api_key, int16_t version) noexcept nogil
    cdef bint may_repeat(self, int16_t api_key) noexcept nogil
    cdef bint start(self, Connection c, Request* request, const uint8_t* frame, int32_t size, list lanes) except -1
    cdef bint send_bundle(self, int worker, list lanes) except -1
    cdef bint send_bundles(self, list lanes) except -1
    cdef void drop_bundle(self, int worker) noexcept nogil
    cdef Request* find(self, uint64_t token) noexcept nogil
    cdef bint take_response(self, Request* request, const uint8_t* body, size_t size, int32_t throttle_ms) except -1
    # Count the error codes of a coordinator's response body.
    cdef void count_errors(self, const Request* request, const uint8_t* body, Py_ssize_t size, RequestTimes times) noexcept
    cdef object forget(self, Request* request)


cdef uint64_t express_token(const Request* request) noexcept nogil


# Whether a token belongs to this path, by its highest bit (EXPRESS_BIT).
cdef inline bint is_express(uint64_t token) noexcept nogil:
    return token >> EXPRESS_BIT
