"""The last step of a fetch: header bytes and file ranges onto the socket.

A reply up to SMALL_MAX is gathered by pread into the response buffer and leaves in one write with its neighbours; a larger
one goes chunk by chunk: header bytes with MSG_MORE, then sendfile straight from the page cache.
"""
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy
from posix.unistd cimport pread

from kbroker._ext.fetch.fetch_reply cimport ReplyChunk
from kbroker._ext.sockets.requests cimport reserve_response
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, Transport

cdef enum:
    # Up to this size, copying costs as much as a second system call (measured: docs/decisions).
    SMALL_MAX = 32768


cdef int copy_small(Request* request, FetchReply reply) except -2:
    """1: the reply is now in request.response; 0: too large; -1: a file was truncated."""
    cdef:
        int32_t i
        ReplyChunk* chunk
        uint8_t* out
        int64_t done
        ssize_t n
    if reply.total_size > SMALL_MAX:
        return 0
    reserve_response(request, reply.total_size)
    out = request.response
    for i in range(reply.chunk_count):
        chunk = &reply.chunks[i]
        memcpy(out, reply.bytes + chunk.bytes_offset, <size_t>chunk.bytes_size)
        out += chunk.bytes_size
        done = 0
        while done < chunk.size:
            n = pread(chunk.fd, out, <size_t>(chunk.size - done), chunk.position + done)
            if n <= 0:
                if n < 0 and errno == EINTR:
                    continue
                return -1
            done += n
            out += n
    request.response_size = out - request.response
    return 1


cdef SendStatus send_reply(
    Transport transport, Request* request, FetchReply reply, int64_t budget, int64_t* sent
) noexcept nogil:
    """Continue where the last call stopped: at request.fetch_chunk and request.sent."""
    cdef:
        ReplyChunk* chunk
        int64_t left
        ssize_t n
    while request.fetch_chunk < reply.chunk_count:
        chunk = &reply.chunks[request.fetch_chunk]
        if sent[0] >= budget:
            return SENT_SOME
        if request.sent < chunk.bytes_size:
            n = transport.send(
                reply.bytes + chunk.bytes_offset + request.sent,
                <size_t>(chunk.bytes_size - request.sent),
                chunk.size > 0,
            )
        elif request.sent < chunk.bytes_size + chunk.size:
            left = min(chunk.bytes_size + chunk.size - request.sent, budget - sent[0])
            n = transport.send_file(chunk.fd, chunk.position + (request.sent - chunk.bytes_size), <size_t>left)
        else:
            request.fetch_chunk += 1
            request.sent = 0
            continue
        if n < 0:
            return SEND_BLOCKED if n == TRANSPORT_BLOCKED else SEND_FAILED
        request.sent += n
        sent[0] += n
    return SENT_ALL
