"""The transport of an encrypted connection, over an ``ssl.SSLSocket`` of either side.

It keeps the contract of ``Transport``. Python's OpenSSL decrypts into the caller's memory and encrypts from it; a record
has at most RECORD_BYTES of it. A record that the socket did not accept completely must be given to OpenSSL again, byte
for byte: a copy of it is kept here, so the caller may change its mind about the rest.

``send_file`` reads and encrypts: why the kernel does not (kTLS), docs/decisions/0023 tells.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from libc.errno cimport EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport pread

from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, TRANSPORT_CUT, TRANSPORT_FAILED, Transport

import ssl

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, int* count)
    enum:
        FIONREAD

cdef enum:
    RECORD_BYTES = 16384         # of plaintext in a TLS record
    # BOUND: bytes that one call decrypts, so that a peer that sends faster than that does not hold the loop.
    RECEIVE_BYTES = 262144
    FILE_BYTES = 65536           # read from a file at a time

cdef object WANTS_READ = ssl.SSLWantReadError
cdef object WANTS_WRITE = ssl.SSLWantWriteError
cdef object ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)

# Shared by all connections of the process: what it holds is given to OpenSSL before the call returns.
cdef char[FILE_BYTES] shared


cdef class TlsTransport(Transport):
    """Takes ownership of a connected, non-blocking ``ssl.SSLSocket`` whose handshake is done. fd: its descriptor."""

    def __cinit__(self, int fd, connected):
        self.socket = connected
        self._read = connected.read
        self._write = connected.write
        self.short_is_empty = False

    def __dealloc__(self):
        free(self._record)

    cdef ssize_t receive(self, void* into, size_t size) noexcept nogil:
        if self._sending_ended:  # what still arrives is discarded, and need not be decrypted
            return Transport.receive(self, into, size)
        with gil:
            return self.read_some(<char*>into, min(size, <size_t>RECEIVE_BYTES))

    cdef ssize_t waiting(self) noexcept nogil:
        with gil:
            return self.pending()

    cdef ssize_t send(self, const void* data, size_t size, bint more) noexcept nogil:
        with gil:
            return self.write_all(<const char*>data, size, more)

    cdef ssize_t send_all(self, iovec* vectors, int count) noexcept nogil:
        """Several small buffers become one record."""
        cdef size_t gathered = 0
        cdef int i = 0
        if count == 0:
            return 0
        with gil:
            if vectors[0].iov_len >= RECORD_BYTES:
                return self.write_all(<const char*>vectors[0].iov_base, vectors[0].iov_len, False)
            while i < count and gathered + vectors[i].iov_len <= FILE_BYTES:
                # COPY: small responses into one record.
                memcpy(shared + gathered, vectors[i].iov_base, vectors[i].iov_len)
                gathered += vectors[i].iov_len
                i += 1
            return self.write_all(shared, gathered, False)

    cdef ssize_t send_file(self, int file, int64_t position, size_t size) noexcept nogil:
        cdef ssize_t n
        with gil:
            while True:
                # COPY: from the page cache, to be encrypted.
                n = pread(file, shared, min(size, <size_t>FILE_BYTES), position)
                if n > 0:
                    return self.write_all(shared, <size_t>n, False)
                if n == 0:
                    return TRANSPORT_CUT
                if errno != EINTR:
                    return TRANSPORT_FAILED

    cdef void end_sending(self) noexcept nogil:
        with gil:
            self.notify_close()
            self._sending_ended = True
        Transport.end_sending(self)

    cdef void close(self) noexcept nogil:
        with gil:
            if not self._sending_ended:
                self.notify_close()
            self.drop_record()
            try:
                self.socket.close()
            except OSError:
                pass  # the descriptor is free even so

    cdef object failure(self):
        return self.fault or ConnectionResetError("the TLS connection is broken")

    # -- with the GIL ---

    cdef ssize_t read_some(self, char* into, size_t size) noexcept:
        cdef size_t done = 0
        cdef ssize_t n
        cdef int waiting
        self.short_is_empty = False
        if self._broken:
            return TRANSPORT_FAILED
        while done < size:
            try:
                n = self._read(size - done, PyMemoryView_FromMemory(into + done, size - done, PyBUF_WRITE))
            except (WANTS_READ, WANTS_WRITE):
                self.short_is_empty = True
                return done if done else TRANSPORT_BLOCKED
            except ENDS:
                # Without a close_notify it is the end, too: lengths in the stream show whether it is complete.
                n = 0
            except Exception as error:
                self._broken = True
                self.fault = error
                return done if done else TRANSPORT_FAILED
            if n == 0:
                return done  # the next call returns the end
            done += n
            # OpenSSL reads one record at a time. If this one is used up and the socket is empty, the next bytes make a
            # new edge; to ask OpenSSL would cost an exception.
            if done < size and (ioctl(self.fd, FIONREAD, &waiting) < 0 or waiting == 0):
                self.short_is_empty = True
                break
        return done

    cdef ssize_t pending(self) noexcept:
        # Broken: the next call says so, and no event of the socket may come.
        try:
            return 1 if self._broken else self.socket.pending()
        except Exception:
            return 0

    cdef ssize_t write_some(self, const void* data, size_t size) noexcept:
        """Give bytes of at most one record to OpenSSL."""
        if self._broken:
            return TRANSPORT_FAILED
        try:
            return self._write(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ))
        except WANTS_WRITE:
            return TRANSPORT_BLOCKED
        except Exception as error:
            self._broken = True
            self.fault = error
            return TRANSPORT_FAILED

    cdef ssize_t write_all(self, const char* data, size_t size, bint more) noexcept:
        """Send bytes, record by record; more: a short rest waits for those of the next call."""
        cdef size_t done = 0
        cdef size_t part
        cdef ssize_t n
        while done < size:
            if self._ahead:
                part = min(self._ahead, size - done)
                self._ahead -= part
                done += part
                continue
            if self._filled and not self._begun:
                part = min(size - done, RECORD_BYTES - self._filled)
                memcpy(self._record + self._filled, data + done, part)
                self._filled += part
                if more and self._filled < RECORD_BYTES:
                    self._reported = self._filled
                    return done + part
                self._begun = True
            if self._begun:
                n = self.write_record()
                if n < 0:
                    return done if done else n
                continue
            part = min(size - done, <size_t>RECORD_BYTES)
            if more and part < RECORD_BYTES:
                if not self.keep(data + done, part):
                    return done if done else TRANSPORT_FAILED
                self._reported = part
                return size
            n = self.write_some(data + done, part)
            if n > 0:
                done += n
                continue
            if n == TRANSPORT_BLOCKED:
                if not self.keep(data + done, part):
                    n = TRANSPORT_FAILED
                self._begun = True
            return done if done else n
        return done

    cdef ssize_t write_record(self) noexcept:
        """Give OpenSSL the kept record, again; what it accepts and the caller does not know of is ``_ahead``."""
        cdef ssize_t n = self.write_some(self._record, self._filled)
        cdef size_t part
        if n <= 0:
            return n
        part = min(<size_t>n, self._reported)
        self._reported -= part
        self._ahead += n - part
        self._filled -= n
        if self._filled:  # the peer has asked for shorter records
            memmove(self._record, self._record + n, self._filled)
        else:
            self.drop_record()
        return n

    cdef bint keep(self, const void* data, size_t size) noexcept:
        """Copy bytes into the kept record, which is empty; False without memory."""
        self._record = <uint8_t*>malloc(RECORD_BYTES)
        if self._record == NULL:
            self._broken = True
            return False
        memcpy(self._record, data, size)
        self._filled = size
        self._reported = 0
        return True

    cdef void drop_record(self) noexcept:
        free(self._record)
        self._record = NULL
        self._filled = self._reported = 0
        self._begun = False

    cdef void notify_close(self) noexcept:
        """Send close_notify if nothing is in its way."""
        if self._broken or self._begun:
            return
        try:
            self.socket.unwrap()
        except Exception:
            pass  # sent: the answer is not here yet. Not sent: the peer sees the end of the stream
