"""The transport of a connection: plain TCP.

An encrypted connection has a subclass, which keeps the contract: no call blocks, none raises, and each returns the
number of bytes transferred or one of the TRANSPORT codes. Calls interrupted by a signal are repeated here. All methods
are cdef methods, so they cost nothing beyond the system call.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from posix.types cimport off_t
from posix.unistd cimport close as close_fd

from kbroker._ext.base.socket_api cimport (
    MSG_DONTWAIT,
    MSG_MORE,
    MSG_NOSIGNAL,
    SHUT_WR,
    SO_RCVLOWAT,
    SOL_SOCKET,
    msghdr,
    recv,
    send as send_bytes,
    sendmsg,
    setsockopt,
    shutdown,
)

import os

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int out_fd, int in_fd, off_t* offset, size_t count)


cdef enum:
    WAKE_BYTES = 65536           # are worth an event; fewer than WAKE_FROM are not worth a call to wait for them


cdef class Transport:
    """Takes ownership of a connected, non-blocking socket."""

    def __cinit__(self, int fd, *rest):
        self.fd = fd
        self.short_is_empty = True
        self._wakes_at = 1

    cdef ssize_t receive(self, void* into, size_t size) noexcept nogil:
        """Receive up to ``size`` bytes; 0 at the end of the stream."""
        cdef ssize_t n
        while True:
            n = recv(self.fd, into, size, MSG_DONTWAIT)
            if n >= 0:
                return n
            if errno != EINTR:
                return TRANSPORT_BLOCKED if errno == EAGAIN else TRANSPORT_FAILED

    cdef void wake_at(self, int64_t missing) noexcept nogil:
        cdef int wanted = <int>min(missing, <int64_t>WAKE_BYTES) if missing >= WAKE_FROM else 1
        if wanted != self._wakes_at and setsockopt(self.fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted)) == 0:
            self._wakes_at = wanted

    cdef ssize_t waiting(self) noexcept nogil:
        return 0

    cdef ssize_t send(self, const void* data, size_t size, bint more) noexcept nogil:
        """Send bytes. more: the caller sends further bytes right away (MSG_MORE)."""
        cdef ssize_t n
        while True:
            n = send_bytes(self.fd, data, size, MSG_NOSIGNAL | (MSG_MORE if more else 0))
            if n >= 0:
                return n
            if errno != EINTR:
                return TRANSPORT_BLOCKED if errno == EAGAIN else TRANSPORT_FAILED

    cdef ssize_t send_all(self, iovec* vectors, int count) noexcept nogil:
        """Send several buffers in one gathered write."""
        cdef msghdr message
        cdef ssize_t n
        message.msg_name = NULL
        message.msg_namelen = 0
        message.msg_iov = vectors
        message.msg_iovlen = count
        message.msg_control = NULL
        message.msg_controllen = 0
        message.msg_flags = 0
        while True:
            n = sendmsg(self.fd, &message, MSG_NOSIGNAL)
            if n >= 0:
                return n
            if errno != EINTR:
                return TRANSPORT_BLOCKED if errno == EAGAIN else TRANSPORT_FAILED

    cdef ssize_t send_file(self, int file, int64_t position, size_t size) noexcept nogil:
        """Send a range of a file. TRANSPORT_CUT if the file ends before the range does."""
        cdef off_t at = position
        cdef ssize_t n
        while True:
            n = sendfile(self.fd, file, &at, size)
            if n > 0:
                return n
            if n == 0:
                return TRANSPORT_CUT
            if errno != EINTR:
                return TRANSPORT_BLOCKED if errno == EAGAIN else TRANSPORT_FAILED

    cdef void end_sending(self) noexcept nogil:
        """Shut down the sending side: the peer sees the end of the stream."""
        shutdown(self.fd, SHUT_WR)

    cdef void close(self) noexcept nogil:
        close_fd(self.fd)

    cdef object failure(self):
        cdef int number = errno
        return OSError(number, os.strerror(number))


BLOCKED, FAILED, CUT = TRANSPORT_BLOCKED, TRANSPORT_FAILED, TRANSPORT_CUT

cdef enum:
    PARTS_MAX = 64


cdef class TransportCalls:
    """The calls of a transport from Python, for tests."""
    cdef Transport transport

    def __cinit__(self, Transport transport not None):
        self.transport = transport

    def receive(self, Py_ssize_t size):
        cdef bytes into = PyBytes_FromStringAndSize(NULL, size)
        cdef ssize_t n = self.transport.receive(PyBytes_AS_STRING(into), <size_t>size)
        return n if n < 0 else into[:n]

    def send(self, bytes data not None, bint more=False):
        return self.transport.send(PyBytes_AS_STRING(data), <size_t>len(data), more)

    def send_all(self, parts):
        cdef iovec vectors[PARTS_MAX]
        cdef list kept = list(parts)
        cdef int i
        assert len(kept) <= PARTS_MAX
        for i in range(len(kept)):
            vectors[i].iov_base = PyBytes_AS_STRING(kept[i])
            vectors[i].iov_len = <size_t>len(kept[i])
        return self.transport.send_all(vectors, len(kept))

    def send_file(self, int file, position, size):
        return self.transport.send_file(file, position, size)

    def end_sending(self):
        self.transport.end_sending()

    def close(self):
        self.transport.close()
