# The waiters of a log for the high watermark. See committed_queue.pyx.
from libc.stdint cimport int64_t, uint8_t

from kbroker._ext.base.growing cimport Bytes


cdef enum:
    NO_LIMIT_MS = -1             # the waiter has a timeout of its own


cdef struct Waiter:
    int64_t end                  # committed when the high watermark has reached it
    int64_t since_ms             # on the clock that `expire` is given; NO_LIMIT_MS: it has expired
    void* sink                   # a Sink, with a reference; NULL: no longer waiting
    void* item                   # an object, with a reference, or NULL
    Py_ssize_t start             # of its payload
    Py_ssize_t size


cdef class CommittedQueue


# The source of waiters, which also completes them. `settle` and `expire` must not call Python code of the process: they
# append it to `ready` as (function, arguments).
cdef class Sink:
    # How long a waiter may wait.
    cdef int64_t limit_ms(self) except? -2
    # Complete a waiter: committed (error None), or failed (a WireError).
    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1
    # A waiter has waited for a while already.
    cdef int note_wait(self, const uint8_t* payload) except -1
    # A waiter has waited too long. True: remove it; False: keep it in case it is committed after all.
    cdef bint expire(self, const Waiter* waiter, const uint8_t* payload, list ready) except *


cdef class CallSink(Sink):
    cdef object _on_committed
    cdef object _on_failed
    cdef object _on_expired
    cdef object _limit_ms
    cdef object _on_too_few


cdef class CommittedQueue:
    cdef readonly int64_t offset         # the high watermark that is published and whose waiters are completed
    cdef public bint is_under_min_isr    # fewer replicas are in sync than acks=all needs
    # The same with those that may be in sync by now: it is not certain that the append was replicated often enough.
    cdef public bint is_maximal_under_min_isr
    cdef Waiter* waiters
    cdef Py_ssize_t head
    cdef Py_ssize_t tail
    cdef Py_ssize_t capacity
    cdef Bytes payloads
    cdef readonly Py_ssize_t count       # waiters
    cdef int64_t next_number             # of the next waiter to enter
    cdef int64_t seen                    # what it was at the last note_waits
    cdef int64_t noted                   # waiters below this number were noted
    cdef bint is_listed                  # the loop knows that there are waiters
    # Add a waiter; returns where to put the payload, valid until the next call.
    cdef uint8_t* add(self, int64_t end, Sink sink, int64_t since_ms, Py_ssize_t size) except NULL
    # The high watermark is published: complete the waiters that it has reached.
    cdef int reach(self, int64_t offset, list ready) except -1
    # Tell the sinks of the waiters that have been here since the last call, of each once. True if there are others.
    cdef bint note_waits(self) except *
    cdef int settle_one(self, Waiter* waiter, object error, list ready) except -1
    cdef void release(self, Waiter* waiter) noexcept
    cdef int make_room(self) except -1
    cdef void tidy(self) noexcept
