# The bytes of one connection to a broker, without its I/O: what `kbroker.wire.stream` is for messages, for hot paths.
# A shell around it moves the bytes, and owns the struct. See stream.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.base.growing cimport Bytes

cdef enum StreamStatus:
    STREAM_WAITS           # for more bytes
    STREAM_BEGUN           # a response has begun; its bytes are at `response_data`
    STREAM_BAD_LENGTH      # a length that cannot be, or that is above the bound
    STREAM_NO_REQUEST      # no request waits for a response
    STREAM_OTHER_REQUEST   # the response to another request than the oldest one

cdef enum:
    STREAM_HEAD_BYTES = 15   # of a request, beside its client id

# Zeroed memory is a stream that has not been opened; `free_stream` may be called for it.
cdef struct Stream:
    int64_t frame_bytes_max      # BOUND: of a response
    int64_t frame_left           # bytes of the response that has begun, behind its number; -1: none has
    int64_t wrong                # the length, or the number, that cannot be
    int32_t last_request         # numbers of requests count up from 1
    int32_t last_response        # that has ended
    Bytes to_send                # up to `sent` it is gone
    Py_ssize_t sent
    Py_ssize_t request_at        # where the request begins that is being written
    Bytes received               # up to `at` it is consumed
    Py_ssize_t at

# For a new connection. Memory is kept.
cdef void open_stream(Stream* stream, int64_t frame_bytes_max) noexcept nogil
cdef void free_stream(Stream* stream) noexcept nogil

# ---- requests

# Have room for a request of so many bytes. False: there is no memory.
cdef bint reserve_request(Stream* stream, Py_ssize_t size) noexcept nogil
# Write a request's header; returns where its body begins. client_id: NULL for none. SAFETY: STREAM_HEAD_BYTES, the client id and
# the body have been reserved.
cdef uint8_t* begin_request(
    Stream* stream, int16_t api_key, int16_t version, const char* client_id, int32_t client_id_size, bint flexible
) noexcept nogil
# The request ends there.
cdef void end_request(Stream* stream, const uint8_t* end) noexcept nogil

cdef inline bint has_unsent(const Stream* stream) noexcept nogil:
    return stream.sent < stream.to_send.size

cdef inline int32_t in_flight(const Stream* stream) noexcept nogil:
    return (stream.last_request - stream.last_response) & 0x7FFFFFFF

# ---- responses

# Have room for so many bytes behind what has been received. least: of the whole buffer. False: there is no memory.
cdef bint reserve_received(Stream* stream, Py_ssize_t more, Py_ssize_t least) noexcept nogil
# Whether the next response has begun.
cdef StreamStatus begin_response(Stream* stream) noexcept nogil
# It is consumed.
cdef void end_response(Stream* stream) noexcept nogil
# No response is awaited to what was sent (acks=0).
cdef void expect_nothing(Stream* stream) noexcept nogil

cdef inline const uint8_t* response_data(const Stream* stream) noexcept nogil:
    return stream.received.data + stream.at

# The bytes of the response that are here.
cdef inline Py_ssize_t available(const Stream* stream) noexcept nogil:
    return <Py_ssize_t>min(stream.frame_left, <int64_t>(stream.received.size - stream.at))

cdef inline void consume(Stream* stream, Py_ssize_t size) noexcept nogil:
    stream.at += size
    stream.frame_left -= size
