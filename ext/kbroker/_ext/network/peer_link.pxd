# A connection to another broker: frames out, frames in, nothing that blocks. See peer_link.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.base.growing cimport Bytes
from kbroker._ext.sockets.transport cimport Transport


cdef class PeerLink:
    cdef Transport transport
    cdef readonly int fd                 # its socket's
    cdef readonly int64_t frame_left     # bytes of the response that has begun, behind its correlation id; -1: none has
    cdef int64_t frame_max
    cdef bytes client_id
    cdef Bytes received                  # from `at` on it is not consumed yet
    cdef Py_ssize_t at
    cdef Bytes to_send
    cdef Py_ssize_t sent
    cdef int32_t next_request            # correlation ids: of the next request,
    cdef int32_t next_response           # and of the next response

    # Write a request's header at the end of `to_send`, with room for `body_max` more bytes; returns where it begins.
    cdef Py_ssize_t begin_request(self, int16_t api_key, int16_t version, bint flexible, Py_ssize_t body_max) except -1
    # The body follows it up to `end`: set its length, and send what the socket accepts.
    cdef int end_request(self, Py_ssize_t start, const uint8_t* end) except -1
    # Whether a response has begun. Raises ValueError if there is none that is awaited, or its length is impossible.
    cdef bint in_frame(self) except -1
    # The received bytes of the response.
    cdef const uint8_t* data(self) noexcept nogil
    cdef Py_ssize_t available(self) noexcept nogil
    cdef void consume(self, Py_ssize_t size) noexcept nogil
    # The next `size` bytes are needed at once: have room for them.
    cdef int need(self, Py_ssize_t size) except -1
    # The response is consumed.
    cdef int end_frame(self) except -1
