"""The waiters of a log for the high watermark, in the order of the log.

An append is committed once the high watermark is above it and the turn that raised the high watermark has synced and
published the log. With one replica that is the end of the turn that appended. Produces with acks=all wait here, responses
to offset commits, operations of coordinators, and calls that write markers. A waiter leaves in one of these ways:

A. The high watermark is already above its end: it does not enter.
B. The high watermark reaches its end (``reach``).
   B.1 It is committed.
   B.2 It is committed, but by now fewer replicas than min.insync.replicas are in sync: a produce and a marker get
       NOT_ENOUGH_REPLICAS_AFTER_APPEND, commits and operations the error that coordinators make of it.
C. This broker cannot commit it (``fail``): it is no longer the leader, the log directory failed, or the partition was
   deleted. The records may still be committed elsewhere; the waiter has to find out.
D. Its source no longer exists, such as a coordinator that is being reloaded (``fail`` with its sink).
E. It has waited too long (``expire``). An operation stays in the queue in case it is committed after all.

Produces that have waited for a while free the bytes of their requests (``note_waits``): from then on, only this queue knows
what becomes of them.

The ``Sink`` knows where to send the response. Per waiter: no Python object; in a log with one replica the queue is empty
between turns. INVARIANT: ends never decrease from one waiter to the next, so only the first has to be looked at.
"""
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport free
from libc.string cimport memmove

from kbroker._ext.base.growing cimport grow, reserve

cdef enum:
    # Each log has a queue, and most hold a few waiters for a short time.
    WAITERS_MIN = 4
    PAYLOADS_MIN = 256
    PAYLOADS_KEPT = 65536        # more is freed when the queue is empty


cdef class Sink:

    cdef int64_t limit_ms(self) except? -2:
        return NO_LIMIT_MS

    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1:
        raise NotImplementedError

    cdef int note_wait(self, const uint8_t* payload) except -1:
        return 0

    cdef bint expire(self, const Waiter* waiter, const uint8_t* payload, list ready) except *:
        raise NotImplementedError


cdef class CallSink(Sink):
    """Calls functions with the item that waited: on_committed(item), on_failed(item, error), on_expired(item),
    on_too_few(item).

    limit_ms(): how long an item may wait; None: without a limit. on_too_few: in case B.2; None: it is committed.
    """

    def __init__(self, on_committed, on_failed, on_expired=None, limit_ms=None, on_too_few=None):
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._on_expired = on_expired
        self._limit_ms = limit_ms
        self._on_too_few = on_too_few

    cdef int64_t limit_ms(self) except? -2:
        return NO_LIMIT_MS if self._limit_ms is None else self._limit_ms()

    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1:
        cdef object item = <object><PyObject*>waiter.item
        if error is None:
            too_few = self._on_too_few is not None and queue.is_maximal_under_min_isr
            ready.append((self._on_too_few if too_few else self._on_committed, (item,)))
        else:
            ready.append((self._on_failed, (item, error)))
        return 0

    cdef bint expire(self, const Waiter* waiter, const uint8_t* payload, list ready) except *:
        ready.append((self._on_expired, (<object><PyObject*>waiter.item,)))
        return False


cdef class CommittedQueue:
    """Created by the log's tail. The io worker's loop reports the committed offset."""

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.head, self.tail):
            self.release(&self.waiters[i])
        free(self.waiters)
        free(self.payloads.data)

    cdef uint8_t* add(self, int64_t end, Sink sink, int64_t since_ms, Py_ssize_t size) except NULL:
        cdef Waiter* waiter
        cdef uint8_t* payload
        if self.tail == self.capacity:
            self.make_room()
        reserve(&self.payloads, size + 8, PAYLOADS_MIN)  # not NULL without a payload either
        waiter = &self.waiters[self.tail]
        waiter.end = end
        if self.tail > self.head and self.waiters[self.tail - 1].end > end:
            # A duplicate of a batch in the log waits, at most, for everything appended since.
            waiter.end = self.waiters[self.tail - 1].end
        waiter.since_ms = since_ms
        waiter.sink = <void*>sink
        Py_INCREF(sink)
        waiter.item = NULL
        waiter.start = self.payloads.size
        waiter.size = size
        payload = self.payloads.data + self.payloads.size
        self.payloads.size += (size + 7) & ~<Py_ssize_t>7  # the next one is aligned like a struct
        self.tail += 1
        self.count += 1
        self.next_number += 1
        return payload

    cdef bint note_waits(self) except *:
        cdef Waiter* waiter
        cdef int64_t number = max(self.noted, self.next_number - (self.tail - self.head))
        while number < self.seen:
            waiter = &self.waiters[self.tail - (self.next_number - number)]
            number += 1
            if waiter.sink != NULL:
                (<Sink>waiter.sink).note_wait(self.payloads.data + waiter.start)
        self.noted = number
        self.seen = self.next_number
        return number < self.seen and self.count > 0

    cdef int reach(self, int64_t offset, list ready) except -1:
        self.offset = offset
        if self.head == self.tail:
            return 0  # nobody waits, as after an append with acks=1 to a log with one replica
        while self.head < self.tail and self.waiters[self.head].end <= offset:
            self.head += 1
            self.settle_one(&self.waiters[self.head - 1], None, ready)
        self.tidy()
        return 0

    cdef int settle_one(self, Waiter* waiter, object error, list ready) except -1:
        cdef Sink sink
        if waiter.sink == NULL:
            return 0
        sink = <Sink>waiter.sink
        try:
            sink.settle(self, waiter, self.payloads.data + waiter.start, error, ready)
        finally:
            self.release(waiter)
        return 0

    cdef void release(self, Waiter* waiter) noexcept:
        if waiter.sink != NULL:
            self.count -= 1
            Py_DECREF(<object><PyObject*>waiter.sink)
            Py_XDECREF(<PyObject*>waiter.item)
        waiter.sink = waiter.item = NULL

    cdef int make_room(self) except -1:
        cdef Py_ssize_t i, start
        if self.head > self.capacity // 2:
            start = self.waiters[self.head].start
            memmove(self.waiters, self.waiters + self.head, <size_t>(self.tail - self.head) * sizeof(Waiter))
            self.tail -= self.head
            self.head = 0
            self.payloads.size -= start
            memmove(self.payloads.data, self.payloads.data + start, <size_t>self.payloads.size)
            for i in range(self.tail):
                self.waiters[i].start -= start
            return 0
        self.capacity = grow(&self.waiters, self.capacity, self.capacity + 1, sizeof(Waiter), WAITERS_MIN)
        return 0

    cdef void tidy(self) noexcept:
        if self.head == self.tail:
            self.head = self.tail = 0
            self.payloads.size = 0
            if self.payloads.capacity > PAYLOADS_KEPT:
                free(self.payloads.data)
                free(self.waiters)
                self.payloads.data = NULL
                self.waiters = NULL
                self.payloads.capacity = self.capacity = 0

    # ---- Python faces ----------------------------------------------------------------------------------------------

    def wait(self, int64_t end, CallSink sink not None, item, int64_t since_ms=0) -> None:
        """Call ``sink`` with ``item`` once everything below ``end`` is committed or has failed.

        since_ms: now, on the clock of ``expire``.
        """
        self.add(end, sink, since_ms, 0)
        Py_INCREF(item)
        self.waiters[self.tail - 1].item = <void*><PyObject*>item

    def advance(self, int64_t offset) -> None:
        """Everything below is committed, synced and published. Called by the loop's ``end_turn``, and by tests."""
        cdef list ready = []
        self.reach(offset, ready)
        run_ready(ready)

    def fail(self, error not None, Sink sink=None) -> None:
        """Complete all waiters, or those of one sink, with the error."""
        cdef list ready = []
        cdef Py_ssize_t i
        for i in range(self.head, self.tail):
            if sink is None or self.waiters[i].sink == <void*>sink:
                self.settle_one(&self.waiters[i], error, ready)
        if self.count == 0:
            self.head = self.tail
            self.tidy()
        run_ready(ready)

    def expire(self, int64_t now_ms) -> int:
        """Expire the waiters that have waited too long; returns how many."""
        cdef:
            list ready = []
            Waiter* waiter
            void* last = NULL
            int64_t limit_ms = NO_LIMIT_MS
            Py_ssize_t i, late = 0
        for i in range(self.head, self.tail):
            waiter = &self.waiters[i]
            if waiter.sink == NULL or waiter.since_ms == NO_LIMIT_MS:
                continue
            if waiter.sink != last:
                last = waiter.sink
                limit_ms = (<Sink>waiter.sink).limit_ms()
            if limit_ms == NO_LIMIT_MS or now_ms - waiter.since_ms < limit_ms:
                continue
            late += 1
            waiter.since_ms = NO_LIMIT_MS
            if (<Sink>waiter.sink).expire(waiter, self.payloads.data + waiter.start, ready):
                self.release(waiter)
        if self.count == 0:
            self.head = self.tail
            self.tidy()
        run_ready(ready)
        return late


cdef int run_ready(list ready) except -1:
    for function, args in ready:
        function(*args)
    return 0
