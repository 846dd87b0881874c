# The transport of an encrypted connection. See tls_transport.pyx.
from libc.stdint cimport int64_t, uint8_t

from kbroker._ext.base.socket_api cimport iovec
from kbroker._ext.sockets.transport cimport Transport


cdef class TlsTransport(Transport):
    cdef readonly object socket      # the ssl.SSLSocket, whose handshake is done
    cdef object _read
    cdef object _write
    cdef readonly object fault       # the error that has broken it, or None
    cdef bint _broken                # an error of TLS: nothing can be sent or received any more
    cdef bint _sending_ended
    # The beginning of the next record: bytes that wait for more, or that OpenSSL has begun to send and must be given again.
    cdef uint8_t* _record            # malloc'ed, NULL while it is empty
    cdef size_t _filled
    cdef size_t _reported            # of these, bytes that the caller was told are sent
    cdef bint _begun                 # OpenSSL has them
    cdef size_t _ahead               # bytes sent that the caller has not been told of
    cdef ssize_t read_some(self, char* into, size_t size) noexcept
    cdef ssize_t pending(self) noexcept
    cdef ssize_t write_some(self, const void* data, size_t size) noexcept
    cdef ssize_t write_all(self, const char* data, size_t size, bint more) noexcept
    cdef ssize_t write_record(self) noexcept
    cdef bint keep(self, const void* data, size_t size) noexcept
    cdef void drop_record(self) noexcept
    cdef void notify_close(self) noexcept
