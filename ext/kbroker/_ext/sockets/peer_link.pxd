# A connection to another broker: frames out, frames in, nothing that blocks. See peer_link.pyx.
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._ext.sockets.stream cimport Stream
from kbroker._ext.sockets.transport cimport Transport


cdef class PeerLink:
    cdef Transport transport
    cdef readonly int fd                 # its socket's
    cdef bytes client_id
    cdef Stream stream

    # Write a request's header; returns where its body begins, with room for `body_max` bytes.
    cdef uint8_t* begin_request(self, int16_t api_key, int16_t version, bint flexible, Py_ssize_t body_max) except NULL
    # The body ends there: send what the socket accepts.
    cdef int end_request(self, const uint8_t* end) except -1
    # Whether a response has begun. Raises ValueError if there is none that is awaited, or its length is impossible.
    cdef bint in_frame(self) except -1
    # Have room for so many more bytes of responses.
    cdef int reserve(self, Py_ssize_t more) except -1
    # The next `size` bytes of the response are needed at once: have room for them.
    cdef int need(self, Py_ssize_t size) except -1
    # The response is consumed.
    cdef int end_frame(self) except -1
