# One end of the socket pair between a network process and an io worker. See docs/decisions/0001-lanes-for-produce.md.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from kbroker._ext.shared.descriptors cimport Envelope


cdef enum:
    # BOUND: structs in one message; with texts it stays well below the default socket buffer.
    LANE_ITEMS_MAX = 512
    LANE_TEXTS_MAX = 32768
    LANE_BUFFER = 131072


cdef class Lane:
    cdef readonly int fd
    cdef readonly int peer_index
    cdef uint8_t _kind
    cdef uint16_t _index
    cdef uint32_t _incarnation
    cdef uint32_t peer_incarnation     # messages go to this one; see peer_renewed
    cdef object _cells                 # keeps the process table mapped
    cdef const int64_t* _peer_cell     # the peer's incarnation there
    cdef uint8_t* _buffer
    cdef readonly int64_t dropped
    # True once for each new incarnation of the peer: requests to the previous one are void. Check before sending and
    # before using a received message.
    cdef bint peer_renewed(self) noexcept
    # False when the lane is full: keep the message and try again.
    cdef bint send(
        self, uint8_t kind, uint32_t count, const void* body, size_t size, const void* more, size_t more_size
    ) except -1
    # The next live message, valid until the next call; NULL when there is none. *size counts the bytes after the envelope.
    cdef const uint8_t* receive(self, Envelope* envelope, Py_ssize_t* size) except? NULL
