"""A connection to another broker: requests out, responses in, and nothing that blocks.

Used in the loop of a process, over a transport that somebody else has connected, and encrypted if need be. A response is
read as a stream: whoever takes it sees the bytes that are here and consumes what it can use, so a long one needs no more
memory than its longest piece. Nothing of it is trusted: its length is checked before anything is allocated for it.
"""
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker._ext.base.growing cimport resize
from kbroker._ext.sockets.stream cimport (
    STREAM_BAD_LENGTH,
    STREAM_BEGUN,
    STREAM_HEAD_BYTES,
    STREAM_NO_REQUEST,
    STREAM_WAITS,
    Stream,
    StreamStatus,
    available,
    begin_request,
    begin_response,
    consume,
    end_request,
    end_response,
    free_stream,
    has_unsent,
    in_flight,
    open_stream,
    reserve_received,
    reserve_request,
    response_data,
)
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, Transport

cdef enum:
    RECEIVE_BYTES = 1 << 20     # BOUND: of the buffer, unless one piece of a response is longer
    ROOM_MIN = 64 << 10         # what is left is moved to the front before there is less room than that
    KEPT_BYTES = 64 << 10       # of the buffer for requests, while there is none


cdef class PeerLink:
    """transport: of a non-blocking socket; ``close`` closes it. frame_bytes_max: BOUND of one response's length."""

    def __cinit__(self, Transport transport not None, str client_id not None, int64_t frame_bytes_max):
        self.transport = transport
        self.fd = transport.fd
        self.client_id = client_id.encode()
        open_stream(&self.stream, frame_bytes_max)

    def __dealloc__(self):
        free_stream(&self.stream)

    def close(self) -> None:
        """Close the connection; nothing is sent or received any more."""
        self.transport.close()

    # ---- requests ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests whose response has not been consumed."""
        return in_flight(&self.stream)

    @property
    def has_unsent(self) -> bool:
        """Whether the socket did not accept all bytes: ``flush`` when it is writable."""
        return has_unsent(&self.stream)

    def request(self, int16_t api_key, int16_t version, bint flexible, bytes body not None) -> None:
        """Send a request. flexible: of its header. Raises OSError."""
        cdef uint8_t* p = self.begin_request(api_key, version, flexible, len(body))
        memcpy(p, PyBytes_AS_STRING(body), <size_t>len(body))
        self.end_request(p + len(body))

    cdef uint8_t* begin_request(self, int16_t api_key, int16_t version, bint flexible, Py_ssize_t body_max) except NULL:
        cdef Py_ssize_t name = len(self.client_id)
        if not reserve_request(&self.stream, STREAM_HEAD_BYTES + name + body_max):
            raise MemoryError
        return begin_request(
            &self.stream, api_key, version, PyBytes_AS_STRING(self.client_id), <int>name, flexible)

    cdef int end_request(self, const uint8_t* end) except -1:
        end_request(&self.stream, end)
        self.flush()
        return 0

    def flush(self) -> None:
        """Send what the socket accepts. Raises OSError."""
        cdef ssize_t count
        while has_unsent(&self.stream):
            count = self.transport.send(
                self.stream.to_send.data + self.stream.sent,
                <size_t>(self.stream.to_send.size - self.stream.sent), False)
            if count >= 0:
                self.stream.sent += count
            elif count == TRANSPORT_BLOCKED:
                return
            else:
                raise self.transport.failure()
        self.stream.sent = self.stream.to_send.size = 0
        if self.stream.to_send.capacity > KEPT_BYTES and resize(&self.stream.to_send.data, KEPT_BYTES):
            self.stream.to_send.capacity = KEPT_BYTES

    # ---- responses -----------------------------------------------------------------------------------------------

    def receive(self, Py_ssize_t limit) -> int:
        """Receive up to this many bytes, or a few more; returns their number. Raises OSError, also at the end of
        the stream.
        """
        cdef ssize_t count
        cdef Py_ssize_t total = 0
        self.reserve(ROOM_MIN)
        limit = min(limit, self.stream.received.capacity - self.stream.received.size)
        while True:
            count = self.transport.receive(self.stream.received.data + self.stream.received.size, <size_t>limit)
            if count > 0:
                self.stream.received.size += count
                total += count
                if self.transport.short_is_empty:
                    return total
                # Of a record whose rest is decrypted already, no event of the socket would tell.
                limit = self.transport.waiting()
                if limit == 0:
                    return total
                self.reserve(max(limit, <Py_ssize_t>ROOM_MIN))
            elif count == 0:
                raise ConnectionResetError("the connection was closed")
            elif count == TRANSPORT_BLOCKED:
                return total
            else:
                raise self.transport.failure()

    def take(self):
        """The body of the next response; None until it has arrived completely. Raises ValueError."""
        cdef bytes body
        cdef Py_ssize_t count
        if not self.in_frame():
            return None
        count = available(&self.stream)
        if count < self.stream.frame_left:
            # Memory grows with the received bytes, not with the announced size.
            self.need(min(<Py_ssize_t>self.stream.frame_left, max(2 * count, <Py_ssize_t>ROOM_MIN)))
            return None
        body = PyBytes_FromStringAndSize(<const char*>response_data(&self.stream), count)
        consume(&self.stream, count)
        self.end_frame()
        return body

    cdef bint in_frame(self) except -1:
        cdef StreamStatus status = begin_response(&self.stream)
        if status == STREAM_BEGUN or status == STREAM_WAITS:
            return status == STREAM_BEGUN
        if status == STREAM_BAD_LENGTH:
            most = self.stream.frame_bytes_max
            raise ValueError(f"a response of {self.stream.wrong} bytes; at most {most} are accepted")
        if status == STREAM_NO_REQUEST:
            raise ValueError("a response to no request")
        raise ValueError(f"a response to request {self.stream.wrong}, not to {self.stream.last_response + 1}")

    cdef int reserve(self, Py_ssize_t more) except -1:
        if not reserve_received(&self.stream, more, RECEIVE_BYTES):
            raise MemoryError
        return 0

    cdef int need(self, Py_ssize_t size) except -1:
        self.reserve(max(size - (self.stream.received.size - self.stream.at), <Py_ssize_t>ROOM_MIN))
        return 0

    cdef int end_frame(self) except -1:
        cdef Stream* stream = &self.stream
        end_response(stream)
        if stream.received.size == stream.at and stream.received.capacity > RECEIVE_BYTES:
            stream.received.size = stream.at = 0
            if resize(&stream.received.data, RECEIVE_BYTES):
                stream.received.capacity = RECEIVE_BYTES
        return 0
