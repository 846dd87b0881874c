"""A connection to another broker: requests out, responses in, and nothing that blocks.

Used in the loop of a process, over a transport that somebody else has connected, and encrypted if need be. A response is
read as a stream: whoever takes it sees the bytes that are here and consumes what it can use, so a long one needs no more
memory than its longest piece. Nothing of it is trusted: its length is checked before anything is allocated for it.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker._ext.base.growing cimport grow, reserve, resize
from kbroker._ext.base.wire cimport load_i32, store_i16, store_i32, store_i8
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, Transport

cdef enum:
    LENGTH_BYTES = 4
    CORRELATION_BYTES = 4
    RECEIVE_BYTES = 1 << 20     # BOUND: of the buffer, unless one piece of a response is longer
    ROOM_MIN = 64 << 10         # what is left is moved to the front before there is less room than that
    KEPT_BYTES = 64 << 10       # of the buffer for requests, while there is none


cdef class PeerLink:
    """transport: of a non-blocking socket; ``close`` closes it. frame_max: BOUND of one response's length."""

    def __cinit__(self, Transport transport not None, str client_id not None, int64_t frame_max):
        self.transport = transport
        self.fd = transport.fd
        self.client_id = client_id.encode()
        self.frame_max = frame_max
        self.frame_left = -1

    def __dealloc__(self):
        free(self.received.data)
        free(self.to_send.data)

    def close(self) -> None:
        """Close the connection; nothing is sent or received any more."""
        self.transport.close()

    # ---- requests ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests whose response has not been consumed."""
        return self.next_request - self.next_response

    @property
    def has_unsent(self) -> bool:
        """Whether the socket did not accept all bytes: ``flush`` when it is writable."""
        return self.sent < self.to_send.size

    def request(self, int16_t api_key, int16_t version, bint flexible, bytes body not None) -> None:
        """Send a request. flexible: of its header. Raises OSError."""
        cdef Py_ssize_t start = self.begin_request(api_key, version, flexible, len(body))
        cdef uint8_t* end = self.to_send.data + self.to_send.size
        memcpy(end, PyBytes_AS_STRING(body), <size_t>len(body))
        self.end_request(start, end + len(body))

    cdef Py_ssize_t begin_request(self, int16_t api_key, int16_t version, bint flexible, Py_ssize_t body_max) except -1:
        cdef Py_ssize_t name = len(self.client_id)
        cdef Py_ssize_t start = self.to_send.size
        cdef uint8_t* p
        reserve(&self.to_send, LENGTH_BYTES + 10 + name + flexible + body_max)
        p = self.to_send.data + start + LENGTH_BYTES
        store_i16(p, api_key)
        store_i16(p + 2, version)
        store_i32(p + 4, self.next_request)
        store_i16(p + 8, <int16_t>name)
        memcpy(p + 10, PyBytes_AS_STRING(self.client_id), <size_t>name)
        if flexible:
            store_i8(p + 10 + name, 0)  # no tagged fields
        self.to_send.size = start + LENGTH_BYTES + 10 + name + flexible
        self.next_request += 1
        return start

    cdef int end_request(self, Py_ssize_t start, const uint8_t* end) except -1:
        self.to_send.size = end - self.to_send.data
        store_i32(self.to_send.data + start, <int32_t>(self.to_send.size - start - LENGTH_BYTES))
        self.flush()
        return 0

    def flush(self) -> None:
        """Send what the socket accepts. Raises OSError."""
        cdef ssize_t count
        while self.sent < self.to_send.size:
            count = self.transport.send(
                self.to_send.data + self.sent, <size_t>(self.to_send.size - self.sent), False)
            if count >= 0:
                self.sent += count
            elif count == TRANSPORT_BLOCKED:
                return
            else:
                raise self.transport.failure()
        self.sent = self.to_send.size = 0
        if self.to_send.capacity > KEPT_BYTES and resize(&self.to_send.data, KEPT_BYTES):
            self.to_send.capacity = KEPT_BYTES

    # ---- responses -----------------------------------------------------------------------------------------------

    def receive(self, Py_ssize_t limit) -> int:
        """Receive up to this many bytes, or a few more; returns their number. Raises OSError, also at the end of
        the stream.
        """
        cdef ssize_t count
        cdef Py_ssize_t total = 0
        if self.received.size == self.at:
            self.received.size = self.at = 0
        if self.received.capacity - self.received.size < ROOM_MIN:
            self.need(self.received.size - self.at + ROOM_MIN)
        limit = min(limit, self.received.capacity - self.received.size)
        while True:
            count = self.transport.receive(self.received.data + self.received.size, <size_t>limit)
            if count > 0:
                self.received.size += count
                total += count
                if self.transport.short_is_empty:
                    return total
                # Of a record whose rest is decrypted already, no event of the socket would tell.
                limit = self.transport.waiting()
                if limit == 0:
                    return total
                self.need(self.received.size - self.at + max(limit, <Py_ssize_t>ROOM_MIN))
            elif count == 0:
                raise ConnectionResetError("the connection was closed")
            elif count == TRANSPORT_BLOCKED:
                return total
            else:
                raise self.transport.failure()

    def take_response(self):
        """The body of the next response; None until it has arrived completely. Raises ValueError."""
        cdef bytes body
        if not self.in_frame():
            return None
        if self.available() < self.frame_left:
            # Memory grows with the received bytes, not with the announced size.
            self.need(min(<Py_ssize_t>self.frame_left, max(2 * self.available(), ROOM_MIN)))
            return None
        body = PyBytes_FromStringAndSize(<const char*>self.data(), <Py_ssize_t>self.frame_left)
        self.consume(<Py_ssize_t>self.frame_left)
        self.end_frame()
        return body

    cdef bint in_frame(self) except -1:
        cdef int64_t length
        cdef int32_t correlation
        if self.frame_left >= 0:
            return True
        if self.received.size - self.at < LENGTH_BYTES + CORRELATION_BYTES:
            return False
        length = load_i32(self.received.data + self.at)
        if not CORRELATION_BYTES <= length <= self.frame_max:
            raise ValueError(f"a response of {length} bytes; at most {self.frame_max} are accepted")
        correlation = load_i32(self.received.data + self.at + LENGTH_BYTES)
        if self.next_response == self.next_request:
            raise ValueError("a response to no request")
        if correlation != self.next_response:
            raise ValueError(f"a response to request {correlation}, not to {self.next_response}")
        self.at += LENGTH_BYTES + CORRELATION_BYTES
        self.frame_left = length - CORRELATION_BYTES
        return True

    cdef const uint8_t* data(self) noexcept nogil:
        return self.received.data + self.at

    cdef Py_ssize_t available(self) noexcept nogil:
        return <Py_ssize_t>min(self.frame_left, <int64_t>(self.received.size - self.at))

    cdef void consume(self, Py_ssize_t size) noexcept nogil:
        self.at += size
        self.frame_left -= size

    cdef int need(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t left = self.received.size - self.at
        if self.at > 0 and self.received.capacity - self.at < max(size, left + ROOM_MIN):
            memmove(self.received.data, self.received.data + self.at, <size_t>left)
            self.received.size = left
            self.at = 0
        self.received.capacity = <Py_ssize_t>grow(
            &self.received.data, self.received.capacity, max(size, left + ROOM_MIN), 1, RECEIVE_BYTES)
        return 0

    cdef int end_frame(self) except -1:
        self.frame_left = -1
        self.next_response += 1
        if self.received.size == self.at and self.received.capacity > RECEIVE_BYTES:
            self.received.size = self.at = 0
            if resize(&self.received.data, RECEIVE_BYTES):
                self.received.capacity = RECEIVE_BYTES
        return 0
