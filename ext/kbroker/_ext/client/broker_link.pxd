# A producer's connection to one broker; see broker_link.pyx.
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._ext.client.produce_frames cimport Request
from kbroker._ext.client.producer_counts cimport NodeCounts
from kbroker._ext.sockets.stream cimport Stream

cdef enum Moved:
    MOVED_ALL              # written, or read as much as there is
    MOVED_SOME             # there may be more to read
    MOVED_NOTHING          # the socket would block
    MOVED_NO_MEMORY
    MOVED_CLOSED           # by the broker
    MOVED_FAILED           # the node's error says why

# wanted: a batch needs the connection; asked: Python knows. requests: a ring of those without a response, oldest first.
cdef struct Node:
    int32_t id
    int fd                   # -1: not connected
    PyObject* socket         # owned
    bint tls
    bint wanted
    bint asked
    int error                # errno of what has failed
    int16_t version          # of Produce
    Request* requests
    int32_t first, count
    Stream stream
    int64_t not_before_us    # throttled, or not to be connected to
    Request next             # being collected, with the bytes of its batches
    int64_t next_bytes
    NodeCounts counts

# NULL: there is no memory.
cdef Node* new_node(int32_t id, int32_t in_flight_max) noexcept nogil
# With the GIL. The requests must have been taken out.
cdef void close_node(Node* node) noexcept
# With the GIL: the socket is its owner's again.
cdef void leave_node(Node* node) noexcept
cdef void free_node(Node* node) noexcept
# Send what the stream has to send; receive once into it.
cdef Moved write_some(Node* node) noexcept nogil
cdef Moved read_some(Node* node) noexcept nogil
