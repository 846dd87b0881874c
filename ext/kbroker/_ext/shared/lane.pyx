"""Lanes: the hot links between network processes and io workers.

A message is an envelope and packed structs (descriptors.pxd). The socket pair outlives both processes; the receiver
drops a message from or to an earlier incarnation. Used by one thread, without an object per message.
"""
from libc.errno cimport EAGAIN, EINTR, ENOBUFS, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._ext.base.buffers cimport (
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
    region_bytes,
)
from kbroker._ext.base.socket_api cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr, recv, sendmsg


cdef class Lane:
    """One end.

    fd: this end of the pair, owned by the caller. me: (kind, index, incarnation) of this process. peer_index: the
    peer's index among its kind. cells, peer_cell: where the process table shows the peer's incarnation.
    """

    def __cinit__(self, int fd, me, int peer_index, cells, Py_ssize_t peer_cell):
        cdef Py_ssize_t cells_size = 0
        cdef const uint8_t* cells_start
        self.fd = fd
        self.peer_index = peer_index
        self._kind, self._index, self._incarnation = me
        cells_start = region_bytes(cells, &cells_size)
        if not 0 <= peer_cell < cells_size // <Py_ssize_t>sizeof(int64_t):
            raise IndexError(f"cell {peer_cell} is outside the process table")
        self._cells = cells
        self._peer_cell = <const int64_t*>cells_start + peer_cell
        self.peer_incarnation = <uint32_t>self._peer_cell[0]
        self._buffer = <uint8_t*>malloc(LANE_BUFFER)
        if self._buffer == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self._buffer)

    cdef bint peer_renewed(self) noexcept:
        cdef uint32_t current = <uint32_t>self._peer_cell[0]
        if current == self.peer_incarnation:
            return False
        self.peer_incarnation = current
        return True

    cdef bint send(
        self, uint8_t kind, uint32_t count, const void* body, size_t size, const void* more, size_t more_size
    ) except -1:
        cdef:
            Envelope envelope
            iovec vectors[3]
            msghdr message
            ssize_t sent
        envelope.kind = kind
        envelope.sender_kind = self._kind
        envelope.sender_index = self._index
        envelope.sender_incarnation = self._incarnation
        envelope.target_incarnation = self.peer_incarnation
        envelope.count = count
        vectors[0].iov_base = &envelope
        vectors[0].iov_len = sizeof(Envelope)
        vectors[1].iov_base = <void*>body
        vectors[1].iov_len = size
        vectors[2].iov_base = <void*>more
        vectors[2].iov_len = more_size
        message.msg_name = NULL
        message.msg_namelen = 0
        message.msg_iov = vectors
        message.msg_iovlen = 3 if more_size else 2
        message.msg_control = NULL
        message.msg_controllen = 0
        message.msg_flags = 0
        while True:
            sent = sendmsg(self.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent >= 0:
                return True
            if errno == EAGAIN or errno == ENOBUFS:
                return False
            if errno != EINTR:
                raise OSError(errno, f"lane to peer {self.peer_index}")

    cdef const uint8_t* receive(self, Envelope* envelope, Py_ssize_t* size) except? NULL:
        cdef ssize_t n
        while True:
            n = recv(self.fd, self._buffer, LANE_BUFFER, MSG_DONTWAIT)
            if n < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return NULL
                raise OSError(errno, f"lane from peer {self.peer_index}")
            if n == 0:
                return NULL
            if n < <ssize_t>sizeof(Envelope):
                self.dropped += 1
                continue
            memcpy(envelope, self._buffer, sizeof(Envelope))
            if (
                envelope.target_incarnation != self._incarnation
                or envelope.sender_incarnation != <uint32_t>self._peer_cell[0]
            ):
                self.dropped += 1
                continue
            size[0] = n - sizeof(Envelope)
            return self._buffer + sizeof(Envelope)

    def send_message(self, int kind, body) -> bool:
        """``send`` for Python, outside the hot path: one message. False if the lane is full."""
        cdef Py_buffer view
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            return self.send(<uint8_t>kind, 1, view.buf, view.len, NULL, 0)
        finally:
            PyBuffer_Release(&view)

    def look(self) -> bool:
        """Python's face of ``peer_renewed``."""
        return self.peer_renewed()

    @property
    def peer(self) -> int:
        """The incarnation of the peer that messages are sent to."""
        return self.peer_incarnation
