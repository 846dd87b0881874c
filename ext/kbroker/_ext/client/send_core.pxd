# What the send loop knows, and which batches it sends; see send_core.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._ext.client.accumulator cimport Accumulator
from kbroker._ext.client.broker_link cimport Node
from kbroker._ext.client.produce_frames cimport Request, RequestHead
from kbroker._ext.client.producer_batch cimport Batch, Part

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents


cdef class SendCore:
    cdef:
        Accumulator pool
        RequestHead head
        bytes client_id, transactional_id
        Node** nodes
        int32_t node_count
        int64_t request_us, request_bytes_max
        int32_t in_flight_max
        int64_t start             # where the next walk over the partitions begins
        list events
        bint has_events
        list ended                # callbacks to be called
        Batch** full              # to be compressed
        int64_t full_count, full_room
        pollfd* polled
        bint asked_leaders
        int64_t enough_bytes      # of the pool, at which `run` returns; -1: it does not for that
        bint has_wanted           # a node is wanted that Python was not asked for

    cdef bint collect(self, int64_t now_us, int64_t* wake_us) noexcept nogil
    cdef bint _is_due(self, Part* part, int64_t now_us, int64_t* wake_us) noexcept nogil
    cdef bint _may_follow(self, Part* part) noexcept nogil
    cdef void _forget_sequences(self, Part* part) noexcept nogil
    cdef void _drop_idle_parts(self) noexcept nogil
    cdef bint _offer(self, Node* node, Part* part, int64_t now_us, int64_t* wake_us) noexcept nogil
    cdef void _count(self, const Batch* batch, int64_t queued_us) noexcept nogil
    cdef bint _reserve(self, Request* request) noexcept nogil
    cdef void _put_full(self, Batch* batch) noexcept nogil
    cdef Request next_answered(self, Node* node) noexcept nogil
    cdef void answered(self, Batch* batch) noexcept nogil
    cdef void ask_connections(self) noexcept with gil
    cdef list handles(self, Request* request)
    cdef void free_request(self, Request* request) noexcept
    cdef void forget_requests(self, Node* node) noexcept
    cdef void lose(self, Node* node, const char* why) noexcept with gil
    cdef bint is_enough(self) noexcept nogil
    cdef void ask_leaders(self) noexcept with gil
    cdef void ask_added(self) noexcept with gil
    cdef Node* node(self, int32_t id) noexcept nogil
