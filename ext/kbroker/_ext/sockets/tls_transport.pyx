"""The transport of an encrypted connection, of either side.

It keeps the contract of ``Transport``. Bytes are received with one system call and given to Python's OpenSSL, which
decrypts them into the caller's memory; what it encrypts, a record at a time, is sent from here. Encrypted bytes that the
socket does not take are kept, and the caller is told of the last byte of a call only when all of them are gone: so it
waits for the socket, and calls again.

``send_file`` reads and encrypts: why the kernel does not (kTLS), docs/decisions/0023 tells.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from libc.errno cimport EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.unistd cimport pread

from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, TRANSPORT_CUT, TRANSPORT_FAILED, Transport

import ssl

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)

cdef enum:
    RECORD_BYTES = 16384         # of plaintext in a TLS record
    # BOUND: as kbroker.security.tls.tls_socket has it.
    GIVEN_BYTES = 16645
    # BOUND: bytes that one call decrypts, so that a peer that sends faster than that does not hold the loop.
    RECEIVE_BYTES = 262144
    FILE_BYTES = 65536           # read from a file at a time
    # BOUND: what OpenSSL answers by itself (to a change of keys) while the peer does not read.
    ANSWERS_BYTES = 65536

cdef object WANTS_READ = ssl.SSLWantReadError
cdef object ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)

# Shared by all connections of the process: what it holds is given to OpenSSL before the call returns.
cdef char[FILE_BYTES] shared


cdef class TlsTransport(Transport):
    """Takes ownership of a non-blocking ``TlsSocket`` whose handshake is done. fd: its descriptor."""

    def __cinit__(self, int fd, connected):
        self.socket = connected
        self._read = connected.tls.read
        self._write = connected.tls.write
        self._incoming = connected.incoming
        self._give = connected.incoming.write
        self._outgoing = connected.outgoing
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
        # Bytes may have arrived since the last call; if it did not say that the socket was empty, no event tells of them.
        self.short_is_empty = self._socket_empty = False
        if self._broken:
            return TRANSPORT_FAILED
        while done < size:
            if self._needs_more:
                n = self.take_in()
                if n < 0:
                    self.short_is_empty = n == TRANSPORT_BLOCKED
                    return done if done else n
            try:
                n = self._read(size - done, PyMemoryView_FromMemory(into + done, size - done, PyBUF_WRITE))
                if n > 0 and not self._incoming.pending:
                    # The last record. If the caller has room left, it is used up, too: to ask OpenSSL would cost an
                    # exception.
                    self._needs_more = done + n < size
            except WANTS_READ:
                n = 0
                self._needs_more = True
                if self.send_answers() < 0:
                    return done if done else TRANSPORT_FAILED
            except ENDS:
                # Without a close_notify it is the end, too: lengths in the stream show whether it is complete.
                return done
            except Exception as error:
                self.breaks(error)
                return done if done else TRANSPORT_FAILED
            if n == 0 and not self._needs_more:
                return done  # the end; the next call returns it
            done += n
            if self._needs_more and self._socket_empty:
                self.short_is_empty = True  # the next bytes make a new edge
                return done if done else TRANSPORT_BLOCKED
        return done

    cdef ssize_t take_in(self) noexcept:
        """Receive bytes for OpenSSL."""
        cdef ssize_t n = Transport.receive(self, shared, GIVEN_BYTES)
        if n < 0:
            return n
        try:
            if n == 0:
                self._incoming.write_eof()
            else:
                self._give(PyMemoryView_FromMemory(shared, n, PyBUF_READ))
        except Exception as error:
            return self.breaks(error)
        if self.send_answers() < 0:  # to what was read last, if there was no need to ask OpenSSL for more
            return TRANSPORT_FAILED
        self._needs_more = False
        self._socket_empty = 0 < n < GIVEN_BYTES
        return n

    cdef ssize_t send_answers(self) noexcept:
        """Send what OpenSSL has answered by itself. FAILED, or 0 even if the socket does not take it: the next call
        tries again.
        """
        try:
            if self._outgoing.pending:
                self.flush()
                if <size_t>self._outgoing.pending > ANSWERS_BYTES:
                    raise ConnectionResetError("the peer changes keys, and does not read the answers")
        except Exception as error:
            return self.breaks(error)
        return 0

    cdef ssize_t pending(self) noexcept:
        # Broken: the next call says so, and no event of the socket may come.
        try:
            if self._broken:
                return 1
            return self.socket.tls.pending() + (0 if self._needs_more else <Py_ssize_t>self._incoming.pending)
        except Exception:
            return 0

    cdef ssize_t write_all(self, const char* data, size_t size, bint more) noexcept:
        """Send bytes, record by record; more: a short rest waits for those of the next call."""
        cdef size_t done, part
        cdef ssize_t n
        if self._broken:
            return TRANSPORT_FAILED
        n = self.flush()
        if n < 0:
            return n
        done = min(self._ahead, size)
        self._ahead -= done
        while done < size:
            part = min(size - done, RECORD_BYTES - self._filled)
            if self._filled or (more and part < RECORD_BYTES):
                if not self.keep(data + done, part):
                    return TRANSPORT_FAILED
                done += part
                if more and self._filled < RECORD_BYTES:
                    return done
                n = self.encrypt(<const char*>self._record, self._filled)
                self.drop_record()
            else:
                n = self.encrypt(data + done, part)
                done += part
            if n == 0:
                n = self.flush()
            if n == TRANSPORT_FAILED:
                return TRANSPORT_FAILED
            if n == TRANSPORT_BLOCKED:
                self._ahead = 1
                return done - 1 if done > 1 else TRANSPORT_BLOCKED
        return done

    cdef ssize_t encrypt(self, const char* data, size_t size) noexcept:
        """Have OpenSSL make records of bytes: one, unless the peer has asked for shorter ones. 0, or FAILED."""
        cdef size_t done = 0
        try:
            while done < size:
                done += <size_t>self._write(PyMemoryView_FromMemory(<char*>data + done, size - done, PyBUF_READ))
        except Exception as error:
            return self.breaks(error)
        return 0

    cdef ssize_t flush(self) noexcept:
        """Send what is encrypted; 0 when all of it is gone."""
        cdef ssize_t n
        while True:
            if self._unsent is None:
                try:
                    if not self._outgoing.pending:
                        return 0
                    self._unsent = self._outgoing.read()
                except Exception as error:
                    return self.breaks(error)
                self._unsent_at = 0
            while self._unsent_at < <size_t>len(self._unsent):
                n = Transport.send(
                    self, <const char*>self._unsent + self._unsent_at, len(self._unsent) - self._unsent_at, False)
                if n < 0:
                    return n
                self._unsent_at += n
            self._unsent = None

    cdef bint keep(self, const char* data, size_t size) noexcept:
        """Copy bytes into the record that waits for more; False without memory."""
        if self._record == NULL:
            self._record = <uint8_t*>malloc(RECORD_BYTES)
            if self._record == NULL:
                self._broken = True
                return False
        # COPY: short bytes, so that they share a record with those that follow.
        memcpy(self._record + self._filled, data, size)
        self._filled += size
        return True

    cdef void drop_record(self) noexcept:
        free(self._record)
        self._record = NULL
        self._filled = 0

    cdef void notify_close(self) noexcept:
        """Send close_notify if nothing is in its way."""
        if self._broken or self._unsent is not None:
            return
        try:
            self.socket.tls.unwrap()
        except Exception:
            pass  # written: the answer is not here yet. Not written: the peer sees the end of the stream
        self.flush()

    cdef ssize_t breaks(self, object error) noexcept:
        """FAILED, now and from now on; the peer is told by OpenSSL's alert if the socket takes it."""
        if not self._broken:
            self._broken = True
            self.fault = error
            self.flush()
        return TRANSPORT_FAILED
