# Who waits for what is in a log to be committed. See committed_queue.pyx.
from libc.stdint cimport int64_t, uint8_t

from kbroker._ext.growing cimport Bytes


cdef enum:
    NO_LIMIT_MS = -1             # whoever waits gives up by itself


cdef struct Waiter:
    int64_t end                  # committed when the high watermark has reached it
    int64_t since_ms             # on the clock that `expire` is given; NO_LIMIT_MS: its time is over
    void* sink                   # a Sink, with a reference; NULL: it waits no longer
    void* item                   # an object, with a reference, or NULL
    Py_ssize_t start             # of its payload
    Py_ssize_t size


cdef class CommittedQueue


# Where those who wait come from, and where they go. `settle` and `expire` must not call Python code of the process: that
# goes to `ready`, as (function, arguments).
cdef class Sink:
    # How long one may wait.
    cdef int64_t limit_ms(self) except? -2
    # One waits no longer: committed (error None), or never to be (a WireError).
    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1
    # One has waited too long. Whether it is done with; else it stays for what follows when it is committed after all.
    cdef bint expire(self, const Waiter* waiter, const uint8_t* payload, list ready) except *


cdef class CallSink(Sink):
    cdef object _on_committed
    cdef object _on_failed
    cdef object _on_expired
    cdef object _limit_ms


cdef class CommittedQueue:
    cdef readonly int64_t offset         # the high watermark, as far as it is published and those below it were told
    cdef public bint is_under_min_isr    # fewer replicas are in sync than acks=all needs
    cdef Waiter* waiters
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef Py_ssize_t capacity
    cdef Bytes payloads
    cdef readonly Py_ssize_t count       # that wait
    # Have somebody wait; where the payload has to be put, valid until the next call.
    cdef uint8_t* add(self, int64_t end, Sink sink, int64_t since_ms, Py_ssize_t size) except NULL
    # The high watermark is published: settle what it has reached.
    cdef int reach(self, int64_t offset, list ready) except -1
    cdef int settle_one(self, Waiter* waiter, object error, list ready) except -1
    cdef void release(self, Waiter* waiter) noexcept
    cdef int make_room(self) except -1
    cdef void tidy(self) noexcept


# Run what sinks have put there.
cdef int run_ready(list ready) except -1
