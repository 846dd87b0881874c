# Produce requests and their responses as frames; see produce_frames.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.client.producer_batch cimport Batch
from kbroker._ext.sockets.stream cimport Stream

cdef enum Answer:
    ANSWER_GOOD        # every batch was appended; its base_offset and append_time are set
    ANSWER_TO_DECODE   # something else, which is for Python
    ANSWER_BAD         # not a response to the request

# What all requests of a producer have in common.
cdef struct RequestHead:
    const char* client_id
    int32_t client_id_size
    const char* transactional_id   # NULL: none
    int32_t transactional_id_size
    int16_t acks
    int32_t timeout_ms

cdef struct Request:
    Batch** batches
    int32_t count
    int64_t sent_us
    int64_t deadline_us

# Bytes of a request at most, for batches of `bytes` in all.
cdef int64_t frame_bytes_max(const RequestHead* head, const Request* request) noexcept nogil
# Put the batches into the order in which they are in the frame.
cdef void sort_batches(Request* request) noexcept nogil
# The whole frame. SAFETY: the stream has room for frame_bytes_max. COPY: the batches.
cdef void put_request(Stream* stream, int16_t version, const RequestHead* head, const Request* request) noexcept nogil
# frame: without its length.
cdef Answer read_response(
    const uint8_t* frame, int64_t size, int16_t version, Request* request, int32_t* throttle_ms
) noexcept nogil
