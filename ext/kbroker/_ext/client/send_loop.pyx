"""Sends a producer's batches and takes the responses that report no error, without the GIL.

One thread, the sender's, calls ``run``, which returns with what it cannot decide: an error, a lost
connection, a partition without a leader. Python decides (``kbroker.client.producer.sender``) and calls
the methods below. Sockets are plain ones that never block, or Python's ``ssl``, which needs the GIL.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strerror
from posix.time cimport timespec
from posix.unistd cimport read

from kbroker._ext.client.accumulator cimport time_us
from kbroker._ext.client.broker_link cimport (
    MOVED_ALL,
    MOVED_CLOSED,
    MOVED_FAILED,
    MOVED_NO_MEMORY,
    MOVED_NOTHING,
    MOVED_SOME,
    Moved,
    Node,
    close_node,
    leave_node,
    read_some,
    write_some,
)
from kbroker._ext.client.produce_frames cimport (
    ANSWER_BAD,
    ANSWER_GOOD,
    Answer,
    Request,
    RequestHead,
    frame_bytes_max,
    put_request,
    read_response,
    sort_batches,
)
from kbroker._ext.client.producer_batch cimport (
    BATCH_DONE,
    BATCH_FAILED,
    BATCH_OPEN,
    BATCH_PACKING,
    BATCH_READY,
    BATCH_SENT,
    BATCH_SPLIT,
    BATCH_TAKEN,
    Batch,
    BatchState,
    Part,
    free_parts,
    let_go,
    new_part,
    note_appended,
    put_in_order,
    release,
    stamp,
    take_out,
)
from kbroker._ext.client.producer_counts cimport Maxima
from kbroker._ext.client.record_futures cimport RecordFuture
from kbroker._ext.client.send_core cimport SendCore, pollfd
from kbroker._ext.client.sent_batch cimport SentBatch, handle_of
from kbroker._ext.sockets.stream cimport (
    STREAM_BAD_LENGTH, STREAM_BEGUN, STREAM_WAITS, StreamStatus,
    available, begin_response, consume, end_response, expect_nothing, has_unsent, reserve_request, response_data,
)

cdef extern from "<poll.h>" nogil:
    int ppoll(pollfd* fds, unsigned long count, const timespec* timeout, const void* mask)
    enum:
        POLLIN
        POLLOUT

cdef enum:
    NUMBER_BYTES = 4   # of a request, before a response's body


cdef class SendLoop(SendCore):
    """The loop, and what may be done with the batches that it gives out."""

    # -- the loop

    def run(self, double seconds, int64_t enough_bytes=-1) -> list[tuple]:
        """Send and receive until there is something to decide, ``Accumulator.wake`` was called, a signal came, no more
        than ``enough_bytes`` wait for their end or the time is over. In simulated time it sends and receives once.
        Events:

        ("answered", node, version, frame, batches)  a response with errors; the frame begins after its length
        ("lost", node, why, batches)  a connection, with the batches that were in flight on it
        ("expired", batches)  after delivery.timeout.ms
        ("connect", node)  until ``connect`` or ``unreachable``
        ("leaders", topics)  that have batches for partitions without a leader; until ``leaders_known``
        ("add", [(topic, partition)...])  to the transaction, until ``Accumulator.added``
        ("ended", [(future, function)...])  callbacks to be called

        Batches of the first two are in the caller's hands: he completes each, fails it or puts it back.
        """
        cdef int64_t until_us = time_us(self.pool) + <int64_t>(min(seconds, 1e6) * 1e6)
        cdef bint again = True
        self.enough_bytes = enough_bytes
        while again:
            with nogil:
                self._turn(until_us)
            again = self.full_count > 0
            self._pack()
        found = self.events
        self.events = []
        self.has_events = False
        if self.ended:
            found.append(("ended", self.ended))
            self.ended = []
        return found

    cdef void _turn(self, int64_t until_us) noexcept nogil:
        cdef int64_t now_us, wake_us
        cdef bint interrupted
        while not self.has_events:
            now_us = time_us(self.pool)
            wake_us = until_us
            self._expire(now_us, &wake_us)
            while self.collect(now_us, &wake_us):
                self._send_collected(now_us)
            if self.has_events or self.full_count:
                return
            self._poll(now_us, wake_us)
            self.pool.begin()
            interrupted = self.pool.interrupted
            self.pool.interrupted = False
            self.pool.end()
            if interrupted or self.pool.simulated_us or time_us(self.pool) >= until_us or self.is_enough():
                return

    cdef int _pack(self) except -1:
        while self.full_count:
            self.full_count -= 1
            self.pool.pack_batch(self.full[self.full_count])
        return 0

    # -- requests

    cdef void _send_collected(self, int64_t now_us) noexcept nogil:
        cdef int32_t i, n
        cdef Node* node
        cdef Request* request
        cdef int64_t began_us
        for i in range(self.node_count):
            node = self.nodes[i]
            if node.next.count == 0:
                continue
            request = &node.requests[(node.first + node.count) % self.in_flight_max]
            request[0] = node.next
            node.next.batches = NULL
            node.next.count = 0
            node.next_bytes = 0
            node.count += 1
            request.sent_us = now_us
            request.deadline_us = now_us + self.request_us
            for n in range(request.count):
                stamp(request.batches[n], self.head.transactional_id != NULL)
            sort_batches(request)
            if not self._fill_out(node, request):
                self.lose(node, b"there is no memory for a request")
            else:
                self._count_request(node)
                began_us = time_us(self.pool)
                self._write(node)
                self.pool.counters.transferring_us += time_us(self.pool) - began_us

    cdef void _count_request(self, Node* node) noexcept nogil:
        cdef int64_t size = node.stream.to_send.size
        self.pool.begin()
        self.pool.counters.requests += 1
        self.pool.counters.request_bytes += size
        self.pool.maxima.request_bytes = max(self.pool.maxima.request_bytes, size)
        self.pool.end()
        node.counts.requests += 1
        node.counts.request_bytes += size

    cdef bint _fill_out(self, Node* node, const Request* request) noexcept nogil:
        if not reserve_request(&node.stream, <Py_ssize_t>frame_bytes_max(&self.head, request)):
            return False
        put_request(&node.stream, node.version, &self.head, request)
        return True

    cdef void _write(self, Node* node) noexcept nogil:
        cdef Py_ssize_t before = node.stream.sent
        cdef Moved moved = write_some(node)
        self.pool.counters.sent_bytes += node.stream.sent - before
        self.pool.counters.transfers += node.stream.sent > before
        node.counts.sent_bytes += node.stream.sent - before
        if moved == MOVED_FAILED:
            self.lose(node, strerror(node.error))
        elif moved == MOVED_ALL and self.head.acks == 0:
            self._take_unanswered(node)

    # acks=0: what is in the socket's buffer is done.
    cdef void _take_unanswered(self, Node* node) noexcept nogil:
        cdef Request request
        expect_nothing(&node.stream)
        while node.fd >= 0 and node.count:
            request = self.next_answered(node)
            self._succeed(&request)

    # -- responses

    cdef void _read(self, Node* node) noexcept nogil:
        cdef Moved moved = MOVED_SOME
        cdef Py_ssize_t before
        while node.fd >= 0 and moved == MOVED_SOME:
            before = node.stream.received.size
            moved = read_some(node)
            self.pool.counters.received_bytes += node.stream.received.size - before
            self.pool.counters.transfers += node.stream.received.size > before
            node.counts.received_bytes += node.stream.received.size - before
            if moved == MOVED_NO_MEMORY:
                self.lose(node, b"there is no memory for a response")
            elif moved == MOVED_CLOSED:
                self.lose(node, b"closed by the broker")
            elif moved == MOVED_FAILED:
                self.lose(node, strerror(node.error))
            elif moved != MOVED_NOTHING:
                self._take_frames(node)

    cdef void _take_frames(self, Node* node) noexcept nogil:
        cdef StreamStatus status = STREAM_BEGUN
        while node.fd >= 0 and status == STREAM_BEGUN:
            status = begin_response(&node.stream)
            if status == STREAM_BEGUN:
                if available(&node.stream) < node.stream.frame_left:
                    return
                self._take_frame(node)
            elif status == STREAM_BAD_LENGTH:
                self.lose(node, b"not a Kafka response")
            elif status != STREAM_WAITS:
                self.lose(node, b"the response to another request")

    cdef void _take_frame(self, Node* node) noexcept nogil:
        cdef Answer answer
        cdef Request request
        cdef int32_t throttle_ms = 0
        cdef int64_t now_us = time_us(self.pool)
        # Its number, which has been compared, is a part of a frame.
        cdef const uint8_t* frame = response_data(&node.stream) - NUMBER_BYTES
        cdef int32_t size = <int32_t>node.stream.frame_left + NUMBER_BYTES
        answer = read_response(frame, size, node.version, &node.requests[node.first], &throttle_ms)
        if answer == ANSWER_BAD:
            self.lose(node, b"not a response to Produce")
            return
        consume(&node.stream, size - NUMBER_BYTES)
        end_response(&node.stream)
        request = self.next_answered(node)
        self._count_response(node, now_us - request.sent_us, throttle_ms)
        if answer == ANSWER_GOOD:
            if throttle_ms > 0:
                node.not_before_us = now_us + <int64_t>throttle_ms * 1000
            self._succeed(&request)
        else:
            self._tell_answer(node, frame, size, &request)

    cdef void _count_response(self, Node* node, int64_t took_us, int64_t throttle_ms) noexcept nogil:
        cdef Maxima* maxima = &self.pool.maxima
        self.pool.begin()
        self.pool.counters.responses += 1
        self.pool.counters.latency_us += took_us
        self.pool.counters.throttled_ms += throttle_ms
        maxima.latency_us = max(maxima.latency_us, took_us)
        maxima.throttled_ms = max(maxima.throttled_ms, throttle_ms)
        node.counts.latency_max_us = max(node.counts.latency_max_us, took_us)
        self.pool.end()
        node.counts.responses += 1
        node.counts.latency_us += took_us

    # The batches of a request were appended.
    cdef void _succeed(self, Request* request) noexcept nogil:
        cdef int32_t i
        cdef bint called = False
        self.pool.begin()
        for i in range(request.count):
            self.answered(request.batches[i])
            called = self._complete(request.batches[i]) or called
        self.pool.tell()
        self.pool.end()
        if called:
            self._keep_callbacks(request)
        for i in range(request.count):
            let_go(request.batches[i])
        free(request.batches)

    # With the lock. Returns whether it has callbacks. Not for a batch that has ended, as those do that expire in flight.
    cdef bint _complete(self, Batch* batch) noexcept nogil:
        if batch.state >= BATCH_DONE:
            return False
        batch.state = BATCH_DONE
        note_appended(batch)
        self.pool.counters.acknowledged += batch.count
        batch.part.topic.counts.acknowledged += batch.count
        self.pool.finish(batch)
        if batch.callbacks == NULL:
            self.pool.drop_data(batch)
            let_go(batch)
            return False
        return True

    # -- waiting

    cdef void _poll(self, int64_t now_us, int64_t wake_us) noexcept nogil:
        cdef:
            timespec timeout
            int32_t i
            int32_t count = 0
            Node* node
            uint64_t rung
            int64_t began_us, left_us, woken_us
        for i in range(self.node_count):
            node = self.nodes[i]
            if node.fd >= 0 and node.count:
                if now_us >= node.requests[node.first].deadline_us:
                    self.lose(node, b"no response within request.timeout.ms")
                else:
                    wake_us = min(wake_us, node.requests[node.first].deadline_us)
        if self.has_events:
            return
        self.polled[0].fd = self.pool.wake_fd
        self.polled[0].events = POLLIN
        for i in range(self.node_count):
            node = self.nodes[i]
            self.polled[i + 1].fd = node.fd  # -1 is ignored
            self.polled[i + 1].events = POLLIN | (POLLOUT if has_unsent(&node.stream) else 0)
            self.polled[i + 1].revents = 0
        self.pool.begin()
        if self.pool.news or self.pool.interrupted:
            wake_us = 0
        else:
            self.pool.asleep = True
            self.pool.sleeps_until_us = wake_us
        self.pool.end()
        began_us = time_us(self.pool)
        left_us = 0 if self.pool.simulated_us else max(wake_us - began_us, 0)
        timeout.tv_sec = left_us // 1000000
        timeout.tv_nsec = (left_us % 1000000) * 1000
        count = ppoll(self.polled, <unsigned long>(self.node_count + 1), &timeout, NULL)
        woken_us = time_us(self.pool)
        self.pool.counters.polls += 1
        self.pool.counters.polling_us += woken_us - began_us
        self.pool.begin()
        self.pool.asleep = False
        self.pool.interrupted = self.pool.interrupted or count < 0
        self.pool.end()
        if count <= 0:
            return
        if self.polled[0].revents:
            read(self.pool.wake_fd, &rung, 8)
        for i in range(self.node_count):
            node = self.nodes[i]
            if self.polled[i + 1].revents & POLLOUT and node.fd >= 0:
                self._write(node)
            if self.polled[i + 1].revents & ~POLLOUT and node.fd >= 0:
                self._read(node)
        self.pool.counters.transferring_us += time_us(self.pool) - woken_us

    # Take what has not been acknowledged by its deadline out of the queues.
    cdef void _expire(self, int64_t now_us, int64_t* wake_us) noexcept nogil:
        cdef Batch* batch
        self.pool.begin()
        batch = self.pool.oldest
        # What expired in flight ended; what is TAKEN is being decided about.
        while batch != NULL and (batch.state == BATCH_TAKEN or batch.state == BATCH_PACKING):
            batch = batch.newer
        if batch != NULL:
            wake_us[0] = min(wake_us[0], batch.deadline_us)
        self.pool.end()
        if batch != NULL and now_us >= wake_us[0] and now_us >= batch.deadline_us:
            self._tell_expired(now_us)

    cdef void _tell_answer(self, Node* node, const uint8_t* frame, int32_t size, Request* request) noexcept with gil:
        body = PyBytes_FromStringAndSize(<const char*>frame, size)
        self.events.append(("answered", node.id, node.version, body, self.handles(request)))
        self.has_events = True

    cdef void _tell_expired(self, int64_t now_us) noexcept with gil:
        cdef list found = []
        cdef list all_batches = []
        cdef SentBatch handle
        cdef Batch* batch
        cdef BatchState state
        # The list changes only at its end, by threads that need the GIL, and by this one.
        batch = self.pool.oldest
        while batch != NULL and batch.deadline_us <= now_us:
            all_batches.append(handle_of(batch))
            batch = batch.newer
        for handle in all_batches:
            batch = handle.batch
            self.pool.begin()
            state = batch.state
            if state == BATCH_OPEN or state == BATCH_READY:
                take_out(batch.part, batch)
            if state == BATCH_OPEN or state == BATCH_READY or state == BATCH_SENT:
                batch.state = BATCH_TAKEN
                self.pool.end()
                found.append(handle)
            else:
                self.pool.end()
        if found:
            self.events.append(("expired", found))
            self.has_events = True

    cdef void _keep_callbacks(self, Request* request) noexcept with gil:
        cdef int32_t i
        for i in range(request.count):
            self._end_callbacks(request.batches[i])
        self.has_events = True

    # The batch has ended: collect its callbacks, and give up the reference that `_complete` kept for them.
    cdef void _end_callbacks(self, Batch* batch) noexcept:
        if batch.callbacks == NULL:
            return
        self.ended += <list>batch.callbacks
        Py_XDECREF(batch.callbacks)
        batch.callbacks = NULL
        release(batch)

    # -- what Python decides

    def connect(self, int32_t node, socket, bint tls, int16_t version) -> None:
        """A connection that the loop owns from now on; version: of Produce."""
        cdef Node* link = self.node(node)
        if link == NULL:
            raise MemoryError
        socket.setblocking(False)
        close_node(link)
        Py_INCREF(socket)
        link.socket = <PyObject*>socket
        link.fd = socket.fileno()
        link.tls = tls
        link.version = version
        link.wanted = link.asked = False
        link.not_before_us = 0

    def unreachable(self, int32_t node, double seconds) -> None:
        """Ask for a connection again after ``seconds``, if one is needed."""
        cdef Node* link = self.node(node)
        if link != NULL:
            link.wanted = link.asked = False
            link.not_before_us = time_us(self.pool) + <int64_t>(seconds * 1e6)

    def silent_s(self, int32_t node) -> float:
        """How long the oldest request in flight has waited for its response, in seconds; 0 without one."""
        cdef Node* link = self.node(node)
        if link == NULL or link.fd < 0 or link.count == 0:
            return 0.0
        return (time_us(self.pool) - link.requests[link.first].deadline_us + self.request_us) / 1e6

    def disconnect(self, int32_t node, str why not None) -> None:
        """Close a connection, as if it had been lost."""
        cdef Node* link = self.node(node)
        if link != NULL and link.fd >= 0:
            self.lose(link, why.encode())

    def release(self, int32_t node) -> bool:
        """Whether the connection's socket is its owner's again; not if bytes are under way."""
        cdef Node* link = self.node(node)
        if link == NULL or link.fd < 0 or link.count or has_unsent(&link.stream) or link.stream.received.size > link.stream.at:
            return False
        leave_node(link)
        return True

    def complete(self, SentBatch handle not None, int64_t base_offset, int64_t append_time) -> None:
        """The batch was appended at that offset, -1 if it is unknown. append_time: ms, -1: its own."""
        cdef Batch* batch = handle.batch
        if batch.state < BATCH_DONE:
            batch.base_offset = base_offset
            batch.append_time = append_time
            self.pool.begin()
            called = self._complete(batch)
            self.pool.tell()
            self.pool.end()
            if called:
                self._end_callbacks(batch)

    def fail(self, SentBatch handle not None, error not None) -> None:
        """Its futures end with ``error``."""
        cdef Batch* batch = handle.batch
        if batch.state < BATCH_DONE:
            Py_INCREF(error)
            batch.error = <PyObject*>error
            self.pool.begin()
            batch.state = BATCH_FAILED
            self.pool.counters.failed += batch.count
            batch.part.topic.counts.failed += batch.count
            self.pool.finish(batch)
            self.pool.tell()
            self.pool.end()
            if batch.callbacks != NULL:
                self._end_callbacks(batch)
            else:
                release(batch)

    def put_back(self, SentBatch handle not None, double seconds) -> None:
        """Send it again, ``seconds`` from now at the earliest, before the newer ones of its partition."""
        cdef Batch* batch = handle.batch
        cdef Part* part = batch.part
        if batch.state >= BATCH_DONE:
            return
        self.pool.begin()
        batch.state = BATCH_READY
        put_in_order(part, batch)
        self.pool.activate(part)
        part.held = True
        part.not_before_us = time_us(self.pool) + <int64_t>(seconds * 1e6)
        self.pool.counters.retried += batch.count
        part.topic.counts.retried += batch.count
        self.pool.end()

    def split(self, SentBatch handle not None, list parts not None) -> None:
        """Send its records as smaller batches: [(batch, records)...], which follow one another. They have its
        place in the queue, its deadline and its sequence numbers."""
        cdef Batch* batch = handle.batch
        cdef Batch* made = NULL
        cdef Batch* last = NULL
        cdef Batch* first = NULL
        cdef int32_t at = 0
        cdef int32_t count
        cdef bytes data
        if batch.state != BATCH_TAKEN:
            return
        for data, count in parts:
            made = new_part(batch, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), at, count)
            if made == NULL:
                free_parts(first)
                raise MemoryError
            if first == NULL:
                first = made
            else:
                last.next_part = made
            last = made
            at += count
        assert at == batch.count, f"{at} records in the parts of a batch of {batch.count}"
        self.pool.begin()
        self._replace(batch, first, last)
        self.pool.end()
        self._move_callbacks(batch)
        release(batch)

    # With the lock: the parts, from first to last, take the place of their batch.
    cdef void _replace(self, Batch* batch, Batch* first, Batch* last) noexcept nogil:
        cdef Part* part = batch.part
        cdef Batch* older = batch.older
        cdef Batch* made = first
        batch.charged = 0
        self.pool.finish(batch)
        while made != NULL:
            made.older = older
            if older == NULL:
                made.newer = self.pool.oldest
                self.pool.oldest = made
            else:
                made.newer = older.newer
                older.newer = made
            if made.newer == NULL:
                self.pool.newest = made
            else:
                made.newer.older = made
            older = made
            put_in_order(part, made)
            made = made.next_part
        self.pool.activate(part)
        part.held = True
        self.pool.counters.splits += 1
        batch.parts = first
        batch.state = BATCH_SPLIT
        self.pool.news = True
        self.pool.tell()

    # Of a batch that was split, to its parts. Futures that have none follow when they are asked.
    cdef int _move_callbacks(self, Batch* batch) except -1:
        cdef RecordFuture future
        cdef list found
        if batch.callbacks == NULL:
            return 0
        found = <list>batch.callbacks
        Py_XDECREF(batch.callbacks)
        batch.callbacks = NULL
        for future, function in found:
            future.add_done_callback(function)
        return 0

    def rewrite(self, SentBatch handle not None) -> None:
        """No batch of its partition that waits was appended: they get new numbers, in the next epoch."""
        self.pool.begin()
        handle.batch.part.rewrite = handle.batch.part.held = True
        self.pool.end()
