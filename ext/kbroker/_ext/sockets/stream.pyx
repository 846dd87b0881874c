"""The bytes of one connection to a broker, without its I/O: ``kbroker.wire.stream`` for the hot paths.

A follower's fetches and a producer's requests are framed here, numbered, and compared with their responses. A response can be
read as a stream of its parts, so that a long one needs no more memory than its longest part. Nothing that arrives is trusted:
a length is checked before anything is allocated for it, and memory grows with the bytes that are there. Nothing needs the GIL.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from kbroker._ext.base.growing cimport resize
from kbroker._ext.base.wire cimport load_i32, store_i16, store_i32, store_i8

cdef enum:
    LENGTH_BYTES = 4
    NUMBER_BYTES = 4
    NUMBER_MAX = 0x7FFFFFFF


cdef void open_stream(Stream* stream, int64_t frame_bytes_max) noexcept nogil:
    stream.frame_bytes_max = frame_bytes_max
    stream.frame_left = -1
    stream.last_request = stream.last_response = 0
    stream.to_send.size = stream.sent = 0
    stream.received.size = stream.at = 0


cdef void free_stream(Stream* stream) noexcept nogil:
    free(stream.to_send.data)
    free(stream.received.data)


# Have room for this many items more. The capacity at least doubles if it grows.
cdef bint grown(Bytes* bytes, Py_ssize_t more, Py_ssize_t least) noexcept nogil:
    cdef Py_ssize_t capacity
    if bytes.capacity - bytes.size >= more:
        return True
    capacity = max(2 * bytes.capacity, bytes.size + more, least)
    if not resize(&bytes.data, <size_t>capacity):
        return False
    bytes.capacity = capacity
    return True


# ---- requests ----------------------------------------------------------------------------------------------------

cdef bint reserve_request(Stream* stream, Py_ssize_t size) noexcept nogil:
    if not has_unsent(stream):
        stream.to_send.size = stream.sent = 0
    return grown(&stream.to_send, size, 0)


# WIRE: length, API key, version, number, client id (two bytes of length, even in flexible versions), no tagged fields.
cdef uint8_t* begin_request(
    Stream* stream, int16_t api_key, int16_t version, const char* client_id, int32_t client_id_size, bint flexible
) noexcept nogil:
    cdef uint8_t* p = stream.to_send.data + stream.to_send.size + LENGTH_BYTES
    stream.request_at = stream.to_send.size
    stream.last_request = (stream.last_request + 1) & NUMBER_MAX
    store_i16(p, api_key)
    store_i16(p + 2, version)
    store_i32(p + 4, stream.last_request)
    store_i16(p + 8, <int16_t>(-1 if client_id == NULL else client_id_size))
    p += 10
    if client_id != NULL:
        memcpy(p, client_id, <size_t>client_id_size)
        p += client_id_size
    if flexible:
        store_i8(p, 0)
        p += 1
    return p


cdef void end_request(Stream* stream, const uint8_t* end) noexcept nogil:
    cdef uint8_t* start = stream.to_send.data + stream.request_at
    stream.to_send.size = end - stream.to_send.data
    store_i32(start, <int32_t>(end - start - LENGTH_BYTES))


# ---- responses ---------------------------------------------------------------------------------------------------

cdef bint reserve_received(Stream* stream, Py_ssize_t more, Py_ssize_t least) noexcept nogil:
    cdef Py_ssize_t left = stream.received.size - stream.at
    if left == 0 or (stream.at > 0 and stream.received.capacity - stream.received.size < more):
        if left > 0:  # or there may be no buffer yet
            memmove(stream.received.data, stream.received.data + stream.at, <size_t>left)
        stream.received.size = left
        stream.at = 0
    return grown(&stream.received, more, least)


cdef StreamStatus begin_response(Stream* stream) noexcept nogil:
    cdef Py_ssize_t count = stream.received.size - stream.at
    cdef const uint8_t* head = stream.received.data + stream.at
    if stream.frame_left >= 0:
        return STREAM_BEGUN
    if count < LENGTH_BYTES:
        return STREAM_WAITS
    stream.wrong = load_i32(head)
    if not NUMBER_BYTES <= stream.wrong <= stream.frame_bytes_max:
        return STREAM_BAD_LENGTH
    if stream.last_response == stream.last_request:
        return STREAM_NO_REQUEST
    if count < LENGTH_BYTES + NUMBER_BYTES:
        return STREAM_WAITS
    stream.wrong = load_i32(head + LENGTH_BYTES)
    if stream.wrong != ((stream.last_response + 1) & NUMBER_MAX):
        return STREAM_OTHER_REQUEST
    stream.frame_left = load_i32(head) - NUMBER_BYTES
    stream.at += LENGTH_BYTES + NUMBER_BYTES
    return STREAM_BEGUN


cdef void end_response(Stream* stream) noexcept nogil:
    stream.frame_left = -1
    stream.last_response = (stream.last_response + 1) & NUMBER_MAX


cdef void expect_nothing(Stream* stream) noexcept nogil:
    stream.last_response = stream.last_request
