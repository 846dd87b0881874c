# Sends FetchReply objects: small ones copied into the request's response bytes, large ones by sendfile.
from libc.stdint cimport int64_t

from kbroker._ext.fetch.fetch_reply cimport FetchReply
from kbroker._ext.sockets.requests cimport Request
from kbroker._ext.sockets.transport cimport Transport


cdef enum SendStatus:
    SENT_ALL = 0
    SENT_SOME = 1       # the budget of this turn is used up
    SEND_BLOCKED = 2    # the socket is full
    SEND_FAILED = 3     # the connection or the file failed: close

# Copy a small reply into request.response; False when it is too large for that, -1 when its file was cut.
cdef int copy_small(Request* request, FetchReply reply) except -2
cdef SendStatus send_reply(
    Transport transport, Request* request, FetchReply reply, int64_t budget, int64_t* sent
) noexcept nogil
