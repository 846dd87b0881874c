# The transport of an encrypted connection. See tls_transport.pyx.
from libc.stdint cimport int64_t, uint8_t

from kbroker._ext.base.socket_api cimport iovec
from kbroker._ext.sockets.transport cimport Transport


cdef class TlsTransport(Transport):
    cdef readonly object socket      # the TlsSocket, whose handshake is done
    cdef readonly object fault       # the error that has broken it, or None
    cdef bint _broken                # an error of TLS: nothing can be sent or received any more
    cdef bint _sending_ended
    # OpenSSL's side: of its connection, and of the memory that it reads from and writes to.
    cdef object _read
    cdef object _write
    cdef object _incoming
    cdef object _give
    cdef object _outgoing
    cdef bint _needs_more            # OpenSSL has no whole record: what arrives is to be given to it
    cdef bint _socket_empty          # as of the last call that received
    # The record that arrives, of which OpenSSL has the beginning; not followed: where it begins is not known.
    cdef bint _followed
    cdef size_t _begun               # bytes of it that have arrived
    cdef size_t _length              # with its header, which says it
    cdef uint8_t[5] _header
    # Encrypted bytes that the socket has not taken, or None.
    cdef bytes _unsent
    cdef size_t _unsent_at
    cdef size_t _ahead               # bytes encrypted that the caller has not been told of
    # The beginning of the next record, which waits for more; the caller was told that it is sent.
    cdef uint8_t* _record            # malloc'ed, NULL while it is empty
    cdef size_t _filled
    cdef void wake_at(self, int64_t missing) noexcept nogil
    cdef ssize_t read_some(self, char* into, size_t size) noexcept
    cdef ssize_t take_in(self, size_t room) noexcept
    cdef ssize_t give_records(self, const char* data, size_t size) noexcept
    cdef size_t follow_record(self, const uint8_t* data, size_t size) noexcept
    cdef ssize_t decrypt(self, char* into, size_t room) noexcept
    cdef ssize_t send_answers(self) noexcept
    cdef ssize_t pending(self) noexcept
    cdef ssize_t write_all(self, const char* data, size_t size, bint more) noexcept
    cdef ssize_t encrypt(self, const char* data, size_t size) noexcept
    cdef ssize_t flush(self, bint more=*) noexcept
    cdef bint keep(self, const char* data, size_t size) noexcept
    cdef void drop_record(self) noexcept
    cdef void notify_close(self) noexcept
    cdef ssize_t breaks(self, object error) noexcept
