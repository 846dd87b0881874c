# The transport of one connection: the only code that reads from its socket, writes to it or closes it.
from libc.stdint cimport int64_t

from kbroker._ext.base.socket_api cimport iovec


cdef enum:
    # Returned by the calls below instead of a number of bytes.
    TRANSPORT_BLOCKED = -1     # it would block: wait for an event of the socket
    TRANSPORT_FAILED = -2      # the connection is broken
    TRANSPORT_CUT = -3         # the file is shorter than the range to send
    # Bytes still to come of a long frame for which an event can wait.
    WAKE_FROM = 8192


cdef class Transport:
    cdef readonly int fd               # for epoll, and the connection's key
    # Whether a short receive means that the socket is empty; encrypted, it is so only after some of them.
    cdef readonly bint short_is_empty
    cdef int _wakes_at                 # SO_RCVLOWAT
    cdef ssize_t receive(self, void* into, size_t size) noexcept nogil
    # Have no event of the socket before enough of these bytes have arrived. Exactly, or fewer: the loop would wait for ever.
    cdef void wake_at(self, int64_t missing) noexcept nogil
    # Bytes that are decrypted and not received yet; the loop does not hear of them.
    cdef ssize_t waiting(self) noexcept nogil
    cdef ssize_t send(self, const void* data, size_t size, bint more) noexcept nogil
    cdef ssize_t send_all(self, iovec* vectors, int count) noexcept nogil
    cdef ssize_t send_file(self, int file, int64_t position, size_t size) noexcept nogil
    cdef void end_sending(self) noexcept nogil
    cdef void close(self) noexcept nogil
    cdef object failure(self)          # the error of the call that has just failed, for a log line
