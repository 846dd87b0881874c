"""What the send loop knows, which batches it sends next, and what it tells Python.

The base of ``send_loop``. Only the sender's thread uses it; its functions for queues need the lock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free

from kbroker._ext.base.growing cimport resize
from kbroker._ext.client.accumulator cimport Accumulator
from kbroker._ext.client.broker_link cimport Node, close_node, free_node, new_node
from kbroker._ext.client.produce_frames cimport Request
from kbroker._ext.client.producer_batch cimport (
    BATCH_DONE,
    BATCH_OPEN,
    BATCH_PACKING,
    BATCH_SENT,
    BATCH_TAKEN,
    Batch,
    Part,
    hold,
    pop,
    put_header,
    release,
    take_out,
)
from kbroker._ext.client.producer_counts cimport Counters, Maxima, TopicCounts
from kbroker._ext.client.sent_batch cimport SentBatch, handle_of
from kbroker._ext.record.record_batch cimport BATCH_HEADER_BYTES, CODEC_NONE
from kbroker._ext.sockets.stream cimport has_unsent


cdef class SendCore:
    """request_us: how long a response may take. in_flight_max: requests of a connection. Sizes in bytes."""

    def __cinit__(self, Accumulator pool not None, *, str client_id not None, int16_t acks, int32_t timeout_ms,
                  int64_t request_us, int64_t request_bytes_max, int32_t in_flight_max,
                  str transactional_id=None):
        self.pool = pool
        self.client_id = client_id.encode()
        self.head.client_id = PyBytes_AS_STRING(self.client_id)
        self.head.client_id_size = <int32_t>PyBytes_GET_SIZE(self.client_id)
        if transactional_id is not None:
            self.transactional_id = transactional_id.encode()
            self.head.transactional_id = PyBytes_AS_STRING(self.transactional_id)
            self.head.transactional_id_size = <int32_t>PyBytes_GET_SIZE(self.transactional_id)
        # BOUND: lengths of strings have 16 bits.
        if max(self.head.client_id_size, self.head.transactional_id_size) > 32767:
            raise ValueError("client.id and transactional.id must have at most 32767 bytes")
        self.head.acks = acks
        self.head.timeout_ms = timeout_ms
        self.request_us = request_us
        self.request_bytes_max = request_bytes_max
        self.in_flight_max = in_flight_max
        if not resize(&self.polled, sizeof(pollfd)):
            raise MemoryError
        self.events = []
        self.ended = []

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.node_count):
            self.forget_requests(self.nodes[i])
            free_node(self.nodes[i])
        free(self.nodes)
        free(self.full)
        free(self.polled)

    # -- which batches are sent

    # Whether the first batch of a partition may be sent now; if not, wake_us is moved to when it may. With the lock.
    cdef bint _is_due(self, Part* part, int64_t now_us, int64_t* wake_us) noexcept nogil:
        cdef Batch* batch = part.first
        cdef int64_t due_us = part.not_before_us
        if batch.state == BATCH_PACKING or not self._may_follow(part):
            return False
        if part.queued == 1 and batch.state == BATCH_OPEN and not (self.pool.flushing or self.pool.starved or self.pool.shut):
            if batch.size < self.pool.batch_bytes:
                due_us = max(due_us, batch.created_us + self.pool.linger_us)
        if due_us > now_us:
            wake_us[0] = min(wake_us[0], due_us)
            return False
        return True

    # Whether another batch may be sent while part.in_flight are. Adopts the producer id. With the lock.
    cdef bint _may_follow(self, Part* part) noexcept nogil:
        cdef bint is_old
        if part.in_flight >= self.pool.limit_of(part) or (part.held and part.in_flight):
            return False
        part.held = False
        if not self.pool.idempotent:
            return True
        if self.pool.producer_id < 0:
            return False
        is_old = part.producer_id != self.pool.producer_id or part.producer_epoch != self.pool.producer_epoch
        if part.rewrite:
            if not is_old or part.in_flight:
                return False
            self._forget_sequences(part)
        if is_old and part.in_flight == 0 and part.first.sequence < 0:
            part.producer_id = self.pool.producer_id
            part.producer_epoch = self.pool.producer_epoch
            part.next_sequence = 0
            part.known = False
            is_old = False
        # What was sent with the former epoch and is undecided is sent with it again, and nothing new.
        return not is_old or part.first.sequence >= 0

    cdef void _forget_sequences(self, Part* part) noexcept nogil:
        cdef Batch* batch = part.first
        while batch != NULL:
            batch.sequence = -1
            batch = batch.next
        part.rewrite = False

    # Collect a request for each node that may have one more in flight. Returns whether there is any.
    cdef bint collect(self, int64_t now_us, int64_t* wake_us) noexcept nogil:
        cdef int64_t i = 0
        cdef int64_t walked = 0
        cdef int64_t count
        cdef bint any_batch = False
        cdef bint leaderless = False
        cdef bint to_add = False
        cdef Part* part
        cdef Node* node
        self.pool.begin()
        self.pool.news = False
        count = self.pool.active_count
        self.start += 1
        while walked < count:
            i = (self.start + walked) % count
            walked += 1
            part = self.pool.active[i]
            if part.first == NULL or not self._is_due(part, now_us, wake_us):
                continue
            node = self.node(part.leader) if part.leader >= 0 else NULL
            if node == NULL:
                leaderless = True
            elif self.head.transactional_id != NULL and not part.added:
                to_add = to_add or not part.adding
            elif self._offer(node, part, now_us, wake_us):
                any_batch = True
        self._drop_idle_parts()
        self.pool.end()
        if self.has_wanted:
            self.ask_connections()
        if leaderless and not self.asked_leaders:
            self.ask_leaders()
        if to_add:
            self.ask_added()
        return any_batch

    # With the lock.
    cdef void _drop_idle_parts(self) noexcept nogil:
        cdef int64_t i = 0
        while i < self.pool.active_count:
            if self.pool.active[i].first == NULL:
                self.pool.active[i].active = False
                self.pool.active_count -= 1
                self.pool.active[i] = self.pool.active[self.pool.active_count]
            else:
                i += 1

    # With the lock. Add the first batch of a partition to the node's next request, if there is one.
    cdef bint _offer(self, Node* node, Part* part, int64_t now_us, int64_t* wake_us) noexcept nogil:
        cdef Batch* batch = part.first
        cdef Batch** place
        if node.fd < 0:
            if node.not_before_us > now_us:
                wake_us[0] = min(wake_us[0], node.not_before_us)
            elif not node.wanted:
                # Python is asked later: with the lock nobody waits for the GIL.
                node.wanted = self.has_wanted = True
            return False
        if node.count >= self.in_flight_max or has_unsent(&node.stream):
            return False
        if node.not_before_us > now_us:
            wake_us[0] = min(wake_us[0], node.not_before_us)
            return False
        if node.next.count and node.next_bytes + batch.size > self.request_bytes_max:
            return False
        if batch.state == BATCH_OPEN:
            put_header(batch)
            self.pool.counters.batches += 1
            if self.pool.codec != CODEC_NONE:
                self._put_full(batch)
                return False
        if not self._reserve(&node.next):
            return False
        pop(part)
        batch.state = BATCH_SENT
        if self.pool.idempotent and batch.sequence < 0:
            batch.producer_id = part.producer_id
            batch.producer_epoch = part.producer_epoch
            batch.sequence = part.next_sequence
            # The number after 2^31-1 is 0.
            part.next_sequence = <int32_t>((<int64_t>part.next_sequence + batch.count) & 0x7FFFFFFF)
        part.in_flight += 1
        batch.log = part.log
        if batch.attempts == 0:
            self._count(batch, now_us - batch.created_us)
        elif self.pool.idempotent:
            # COMPAT: alone, as Java's: refused again, it would be forgotten behind what the broker took meanwhile.
            part.held = True
        batch.attempts += 1
        hold(batch)
        place = node.next.batches + node.next.count
        place[0] = batch
        node.next.count += 1
        node.next_bytes += batch.size
        return True

    # With the lock: a batch is sent for the first time.
    cdef void _count(self, const Batch* batch, int64_t queued_us) noexcept nogil:
        cdef Counters* counters = &self.pool.counters
        cdef Maxima* maxima = &self.pool.maxima
        cdef TopicCounts* of_topic = &batch.part.topic.counts
        cdef int64_t kept_bytes = batch.size - BATCH_HEADER_BYTES
        cdef int64_t ppm = 1000000
        counters.sent_batches += 1
        counters.sent_records += batch.count
        counters.batch_bytes += batch.size
        counters.queued_us += queued_us
        maxima.batch_bytes = max(maxima.batch_bytes, batch.size)
        maxima.queued_us = max(maxima.queued_us, queued_us)
        of_topic.batch_bytes += batch.size
        if batch.records_bytes:
            ppm = kept_bytes * 1000000 // batch.records_bytes
        elif batch.codec != CODEC_NONE:
            return  # others have compressed it
        counters.measured += 1
        counters.compression_ppm += ppm
        of_topic.measured += 1
        of_topic.compression_ppm += ppm

    # Room for one more batch, in powers of two. False: there is no memory.
    cdef bint _reserve(self, Request* request) noexcept nogil:
        cdef int32_t n = request.count
        if n & (n - 1):
            return True
        return resize(&request.batches, <size_t>max(2 * n, 1) * sizeof(Batch*))

    cdef void _put_full(self, Batch* batch) noexcept nogil:
        if self.full_count == self.full_room:
            if not resize(&self.full, <size_t>(2 * self.full_room + 16) * sizeof(Batch*)):
                return
            self.full_room = 2 * self.full_room + 16
        batch.state = BATCH_PACKING
        self.full[self.full_count] = batch
        self.full_count += 1

    cdef bint is_enough(self) noexcept nogil:
        # Only who drives the loop adds to `used` then, so it needs no lock.
        return self.enough_bytes >= 0 and self.pool.used <= self.enough_bytes

    # -- requests

    cdef Request next_answered(self, Node* node) noexcept nogil:
        cdef Request request = node.requests[node.first]
        node.first = (node.first + 1) % self.in_flight_max
        node.count -= 1
        return request

    # With the lock: a batch is in no request any more.
    cdef void answered(self, Batch* batch) noexcept nogil:
        batch.part.in_flight -= 1
        if batch.state == BATCH_SENT:
            batch.state = BATCH_TAKEN

    # -- what Python is told. With the GIL, and as the only thread that sends, so the lock is needed only for queues and
    # states.

    cdef void ask_connections(self) noexcept with gil:
        cdef int32_t i
        self.has_wanted = False
        for i in range(self.node_count):
            if self.nodes[i].wanted and not self.nodes[i].asked:
                self.nodes[i].asked = True
                self.events.append(("connect", self.nodes[i].id))
                self.has_events = True

    cdef list handles(self, Request* request):
        cdef int32_t i
        self.pool.begin()
        for i in range(request.count):
            self.answered(request.batches[i])
        self.pool.end()
        cdef list found = [handle_of(request.batches[i]) for i in range(request.count)]
        self.free_request(request)
        return found

    cdef void free_request(self, Request* request) noexcept:
        cdef int32_t i
        for i in range(request.count):
            release(request.batches[i])
        free(request.batches)
        request.batches = NULL
        request.count = 0

    cdef void forget_requests(self, Node* node) noexcept:
        cdef Request request
        while node.count:
            request = self.next_answered(node)
            self.free_request(&request)
        self.free_request(&node.next)

    cdef void lose(self, Node* node, const char* why) noexcept with gil:
        cdef Request request
        cdef list batches = []
        cdef str reason = (<bytes>why).decode()
        while node.count:
            request = self.next_answered(node)
            batches += self.handles(&request)
        close_node(node)
        self.events.append(("lost", node.id, reason, batches))
        self.has_events = True

    cdef void ask_leaders(self) noexcept with gil:
        cdef set topics = {topic for topic, _ in self.leaderless()}
        if topics:
            self.asked_leaders = True
            self.events.append(("leaders", sorted(topics)))
            self.has_events = True

    cdef void ask_added(self) noexcept with gil:
        cdef list found = []
        cdef int64_t i
        cdef Part* part
        for i in range(self.pool.active_count):
            part = self.pool.active[i]
            if part.first != NULL and not part.added and not part.adding:
                part.adding = True
                found.append((<object>part.topic.name, part.index))
        if found:
            self.events.append(("add", found))
            self.has_events = True

    # -- nodes

    # NULL: there is no memory.
    cdef Node* node(self, int32_t id) noexcept nogil:
        cdef int32_t i
        cdef Node* made
        for i in range(self.node_count):
            if self.nodes[i].id == id:
                return self.nodes[i]
        if not resize(&self.nodes, <size_t>(self.node_count + 1) * sizeof(Node*)):
            return NULL
        if not resize(&self.polled, <size_t>(self.node_count + 2) * sizeof(pollfd)):
            return NULL
        made = new_node(id, self.in_flight_max)
        if made != NULL:
            self.nodes[self.node_count] = made
            self.node_count += 1
        return made

    # -- what Python asks

    def leaders_known(self) -> None:
        """Metadata was refreshed, or could not be: missing leaders are asked for again."""
        self.asked_leaders = False

    def leaderless(self) -> list[tuple[str, int]]:
        """Partitions that have batches, and no leader."""
        cdef list found = []
        cdef int64_t i
        for i in range(self.pool.active_count):
            if self.pool.active[i].first != NULL and self.pool.active[i].leader < 0:
                found.append((<object>self.pool.active[i].topic.name, self.pool.active[i].index))
        return found

    def in_flight(self, int32_t node) -> int:
        """Requests without a response; -1: there is no connection."""
        cdef Node* link = self.node(node)
        return -1 if link == NULL or link.fd < 0 else link.count

    def is_oldest(self, SentBatch handle not None) -> bool:
        """Whether no older batch of its partition is undecided."""
        cdef Batch* batch = handle.batch
        cdef bint found = False
        self.pool.begin()
        batch = batch.older
        while batch != NULL and not found:
            found = batch.part == handle.batch.part
            batch = batch.older
        self.pool.end()
        return not found

    def is_overtaken(self, SentBatch handle not None) -> bool:
        """Whether a newer batch of its partition was appended."""
        cdef Batch* batch = handle.batch
        cdef Part* part = batch.part
        cdef bint overtaken
        self.pool.begin()
        if batch.number == part.newest:
            overtaken = batch.split_at < part.newest_split_at
        else:
            overtaken = batch.number < part.newest
        self.pool.end()
        return overtaken

    def is_alone(self, SentBatch handle not None) -> bool:
        """Whether no batch of its partition is in flight; this one is not any more."""
        self.pool.begin()
        cdef bint found = handle.batch.part.in_flight == 0
        self.pool.end()
        return found

    def take_all(self) -> list[SentBatch]:
        """Take every batch that waits out of its queue; those in flight stay."""
        cdef list found = []
        cdef int64_t i
        cdef Part* part
        cdef Batch* batch
        for i in range(self.pool.active_count):
            part = self.pool.active[i]
            batch = part.first
            while batch != NULL:
                if batch.state != BATCH_PACKING:
                    found.append(handle_of(batch))
                batch = batch.next
        for handle in found:
            batch = (<SentBatch>handle).batch
            self.pool.begin()
            take_out(batch.part, batch)
            batch.state = BATCH_TAKEN
            self.pool.end()
        return found

    def take_unended(self) -> list[SentBatch]:
        """Take every batch that has not ended, wherever it is. After ``disconnect``."""
        cdef list found = []
        cdef SentBatch handle
        cdef Batch* batch = self.pool.oldest
        while batch != NULL:
            found.append(handle_of(batch))
            batch = batch.newer
        for handle in found:
            self.pool.begin()
            take_out(handle.batch.part, handle.batch)
            if handle.batch.state < BATCH_DONE:
                handle.batch.state = BATCH_TAKEN
            self.pool.end()
        return found
