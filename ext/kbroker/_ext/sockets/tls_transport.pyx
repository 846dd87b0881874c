"""The transport of an encrypted connection, of either side.

It keeps the contract of ``Transport``. Bytes are received with one system call for several records, and given to Python's
OpenSSL record by record, which decrypts them into the caller's memory. The lengths of records are followed here, as
OpenSSL says by an exception that it lacks the rest of one. What it encrypts, a record at a time, is sent from here.
Encrypted bytes that the socket does not take are kept, and the caller is told of the last byte of a call only when all of
them are gone: so it waits for the socket, and calls again.

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
    HEADER_BYTES = 5
    TLS_MAJOR = 3                # of the version in a record's header
    # BOUND: as kbroker.security.tls.tls_socket has it. TLS 1.2 allows longer records; nobody sends them.
    GIVEN_BYTES = 16645
    TOGETHER_BYTES = 4096        # short records are given to OpenSSL together, until they are as many bytes
    # BOUND: bytes that one call decrypts, so that a peer that sends faster than that does not hold the loop.
    RECEIVE_BYTES = 262144
    SHARED_BYTES = 65536         # received, or read from a file, at a time
    # BOUND: what OpenSSL answers by itself (to a change of keys) while the peer does not read.
    ANSWERS_BYTES = 65536

cdef object WANTS_READ = ssl.SSLWantReadError
cdef object ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)

# Shared by all connections of the process, which one thread serves: what it holds is given to OpenSSL before the call
# returns.
cdef char[SHARED_BYTES] shared


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

    cdef void wake_at(self, int64_t missing) noexcept nogil:
        Transport.wake_at(self, missing - <int64_t>self._begun if self._followed else 0)  # the rest of them as records

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
            while i < count and gathered + vectors[i].iov_len <= SHARED_BYTES:
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
                n = pread(file, shared, min(size, <size_t>SHARED_BYTES), position)
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
        cdef size_t done = 0, received = 0, given = 0
        cdef ssize_t n = 0
        # Bytes may have arrived since the last call; if it did not say that the socket was empty, no event tells of them.
        self.short_is_empty = self._socket_empty = False
        if self._broken:
            return TRANSPORT_FAILED
        while done < size:
            if self._needs_more and given == received:
                n = TRANSPORT_BLOCKED if self._socket_empty else self.take_in(size - done)
                if n < 0:
                    self.short_is_empty = n == TRANSPORT_BLOCKED  # the next bytes make a new edge
                    break
                received = <size_t>n
                given = 0
            if self._needs_more:
                n = self.give_records(shared + given, received - given)
                if n < 0:
                    break
                given += <size_t>n
                if self._needs_more:
                    continue
            n = self.decrypt(into + done, size - done)
            if n < 0 or (n == 0 and not self._needs_more):
                break  # the next call returns it
            done += <size_t>n
        while given < received and not self._broken:  # there was no room for these
            given += <size_t>max(self.give_records(shared + given, received - given), <ssize_t>0)
            self._needs_more = False
        return done if done else n

    cdef ssize_t take_in(self, size_t room) noexcept:
        """Receive bytes for OpenSSL; many, if there is room for what they become."""
        cdef size_t limit = max(<size_t>GIVEN_BYTES, min(room, <size_t>SHARED_BYTES)) - self._begun
        cdef ssize_t n = Transport.receive(self, shared, limit)
        if n < 0:
            return n
        if n == 0:
            try:
                self._incoming.write_eof()
            except Exception as error:
                return self.breaks(error)
            self._needs_more = False
        if self.send_answers() < 0:  # to what was read last, if there was no need to ask OpenSSL for more
            return TRANSPORT_FAILED
        self._socket_empty = 0 < <size_t>n < limit
        return n

    cdef ssize_t give_records(self, const char* data, size_t size) noexcept:
        """Give OpenSSL bytes up to the end of a record, or all of them if none ends; how many, or FAILED."""
        cdef size_t given = 0
        while given < min(size, <size_t>TOGETHER_BYTES):
            given += self.follow_record(<const uint8_t*>data + given, size - given)
        try:
            self._give(PyMemoryView_FromMemory(<char*>data, given, PyBUF_READ))
        except Exception as error:
            return self.breaks(error)
        return given

    cdef size_t follow_record(self, const uint8_t* data, size_t size) noexcept:
        """How many bytes there are up to the end of the record in progress; if it ends, OpenSSL can read."""
        cdef size_t used = 0, part
        while self._followed and self._begun < HEADER_BYTES:
            if used == size:
                return used
            self._header[self._begun] = data[used]
            self._begun += 1
            used += 1
            if self._begun == HEADER_BYTES:
                self._length = HEADER_BYTES + (<size_t>self._header[3] << 8 | self._header[4])
                # Let OpenSSL say at once what is wrong.
                self._followed = self._header[1] == TLS_MAJOR and self._length <= GIVEN_BYTES
        if not self._followed:
            self._begun = 0
            self._needs_more = False
            return size
        part = min(size - used, self._length - self._begun)
        self._begun += part
        if self._begun == self._length:
            self._begun = 0
            self._needs_more = False
        return used + part

    cdef ssize_t decrypt(self, char* into, size_t room) noexcept:
        """Read bytes of one record. 0 is the end of the stream, unless OpenSSL needs more."""
        cdef ssize_t n
        try:
            n = self._read(room, PyMemoryView_FromMemory(into, room, PyBUF_WRITE))
            if n > 0 and <size_t>self._incoming.pending <= self._begun:  # of the last whole record
                self._followed = True
                self._needs_more = <size_t>n < room or not self.socket.tls.pending()
            return n
        except WANTS_READ:
            self._needs_more = True
            return self.send_answers()
        except ENDS:
            # Without a close_notify it is the end, too: lengths in the stream show whether it is complete.
            return 0
        except Exception as error:
            return self.breaks(error)

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
                n = self.flush(done < size)
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

    cdef ssize_t flush(self, bint more=False) noexcept:
        """Send what is encrypted; 0 when all of it is gone. more: further records follow right away."""
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
                    self, <const char*>self._unsent + self._unsent_at, len(self._unsent) - self._unsent_at, more)
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
