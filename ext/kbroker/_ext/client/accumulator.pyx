"""Records of a producer, from ``send`` until they are acknowledged, as batches in the format of the wire.

Runs in clients. ``append`` encodes a record into the open batch of its partition (COPY: key, value and
headers, once) and gives the caller a future that knows its batch and its place in it. The sender's
thread (``send_loop``) takes the batches without the GIL.

INVARIANT: nobody waits for the GIL, or creates a Python object, while he has the lock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.unistd cimport close, write

from kbroker._ext.base.growing cimport grow, resize
from kbroker._ext.base.murmur2 cimport murmur2_partition
from kbroker._ext.client.producer_batch cimport (
    BATCH_DONE,
    BATCH_OPEN,
    BATCH_PACKING,
    BATCH_READY,
    PARTITIONS_MAX,
    RECORD_OVERHEAD_MAX,
    SPARE_BYTES,
    Batch,
    Part,
    Record,
    Topic,
    forget_log,
    free_topic,
    has_room,
    push,
    put_header,
    put_record,
    release,
)
from kbroker._ext.client.threads cimport (
    deadline_us,
    init_condition,
    monotonic_us,
    pthread_cond_broadcast,
    pthread_cond_destroy,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
    wait_until_us,
)
from kbroker._ext.record.codecs cimport pack
from kbroker._ext.record.record_batch cimport BATCH_HEADER_BYTES, CODEC_NONE

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initial, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK

cdef class Accumulator:
    """errors: makes the exceptions of refused records (``kbroker.client.producer.failures``).
    metadata: called with topic, partition, offset, timestamp and the sizes of key and value.

    Sizes are in bytes, times in microseconds. codec: attribute bits 0-2, level: of that codec, or None.
    record_bytes_max: of one record as it is encoded. block_us: how long ``append`` waits for memory.
    Any thread may call it.
    """

    def __cinit__(self, errors, metadata, *, int64_t batch_bytes, int64_t buffer_bytes, int64_t record_bytes_max,
                  int64_t linger_us, int64_t delivery_us, int64_t block_us, int32_t in_flight_max, int codec=0,
                  level=None, bint idempotent=False, bint transactional=False, bint ignore_keys=False,
                  bint adaptive=True, bint round_robin=False, uint64_t seed=1):
        if not 0 <= codec <= 4:
            raise ValueError(f"unknown codec {codec}")
        pthread_mutex_init(&self.lock, NULL)
        if init_condition(&self.done) or init_condition(&self.room):
            raise MemoryError
        self.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.wake_fd < 0:
            raise OSError("cannot create an eventfd")
        self.errors = errors
        self.metadata = metadata
        self.index = {}
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.record_bytes_max = record_bytes_max
        self.linger_us = linger_us
        self.delivery_us = delivery_us
        self.block_us = block_us
        self.in_flight_max = in_flight_max
        self.codec = codec
        self.level = level
        self.idempotent = idempotent
        self.transactional = transactional
        self.ignore_keys = ignore_keys
        self.adaptive = adaptive
        self.round_robin = round_robin
        self.producer_id = -1
        self.producer_epoch = -1
        self.random = seed or 1
        self.next_number = 1

    def __dealloc__(self):
        # Futures hold a reference to this object, so only batches without one are left.
        cdef Batch* batch = self.oldest
        cdef Batch* newer
        cdef int64_t i
        while batch != NULL:
            newer = batch.newer
            release(batch)
            batch = newer
        for i in range(self.topic_count):
            free_topic(self.topics[i])
        for i in range(self.spare_count):
            free(self.spares[i])
        free(self.topics)
        free(self.active)
        if self.wake_fd > 0:
            close(self.wake_fd)
        pthread_cond_destroy(&self.done)
        pthread_cond_destroy(&self.room)
        pthread_mutex_destroy(&self.lock)

    # -- the lock, and the sender's sleep

    cdef void begin(self) noexcept nogil:
        pthread_mutex_lock(&self.lock)

    cdef void end(self) noexcept nogil:
        pthread_mutex_unlock(&self.lock)

    # Wake the sender. Without the lock, since it is a system call.
    cdef void ring(self) noexcept nogil:
        cdef uint64_t one = 1
        write(self.wake_fd, &one, 8)

    # There is something new for the sender, due at due_us. Returns whether it is to be woken.
    cdef bint is_news(self, int64_t due_us) noexcept nogil:
        self.news = True
        if self.asleep and due_us < self.sleeps_until_us:
            self.asleep = False
            return True
        return False

    def wake(self) -> None:
        """Make ``SendLoop.run`` return, now or the next time it is called."""
        self.begin()
        self.interrupted = True
        self.asleep = False
        self.end()
        self.ring()

    def simulate(self, int64_t now_us) -> None:
        """The sender's time is simulated, and it is this now."""
        self.simulated_us = now_us

    cdef void activate(self, Part* part) noexcept nogil:
        # There is room for every partition: `set_topic` has seen to it.
        if not part.active:
            part.active = True
            self.active[self.active_count] = part
            self.active_count += 1

    cdef int32_t limit_of(self, const Part* part) noexcept nogil:
        # COMPAT: Kafka accepts any sequence number as a producer's first one, so a second batch must not overtake it.
        return 1 if self.idempotent and not part.known else self.in_flight_max

    # -- topics

    def set_topic(self, str name not None, list leaders not None, list epochs not None, bint is_another=False) -> None:
        """The nodes that lead the partitions of a topic, -1 where there is none, and their epochs. An older epoch than
        the known one changes nothing, unless it is_another topic now. An empty list: it is gone.
        """
        cdef Topic* topic = self.known(name)
        cdef Part* part
        cdef int32_t i, leader, epoch
        if len(leaders) > PARTITIONS_MAX:
            raise ValueError(f"topic {name} has {len(leaders)} partitions")
        if topic == NULL:
            if not leaders:
                return
            topic = self._add_topic(name)
        self._add_parts(topic, <int32_t>len(leaders))
        cdef list numbers = [(<int32_t>leaders[i], <int32_t>epochs[i]) for i in range(len(leaders))]
        for i, (leader, epoch) in enumerate(numbers):
            part = topic.parts[i]
            self.begin()
            if is_another or epoch < 0 or epoch >= part.leader_epoch:
                part.held = part.held or (part.leader != leader and part.in_flight > 0)
                part.leader, part.leader_epoch = leader, epoch
            if is_another:
                forget_log(part)
            self.end()
        self.begin()
        topic.count = <int32_t>len(numbers)
        topic.sticky = topic.sticky if topic.sticky < topic.count else 0
        for i in range(topic.count, topic.room):
            topic.parts[i].leader = topic.parts[i].leader_epoch = -1  # another one may come back
            forget_log(topic.parts[i])
        self.news = True
        self.end()

    def set_leader(self, str name not None, int32_t partition, int32_t leader, int32_t epoch, int32_t denied_by=-1) -> bool:
        """The same for one partition; the leader -1: none is known any more. Returns whether one is known now. If that
        is a node that has denied it, what is told next is believed: the epoch may be of a former topic."""
        cdef Topic* topic = self.known(name)
        if topic == NULL or not 0 <= partition < topic.count:
            return False
        cdef Part* part = topic.parts[partition]
        self.begin()
        if leader >= 0 and (epoch < 0 or epoch >= part.leader_epoch):
            part.leader, part.leader_epoch = leader, epoch
        elif leader < 0 and denied_by < 0:
            part.leader = -1
        if part.leader == denied_by >= 0:
            part.leader = part.leader_epoch = -1
        cdef bint is_known = part.leader >= 0
        self.news = True
        self.end()
        return is_known

    cdef Topic* known(self, str name) except? NULL:
        found = self.index.get(name)
        return NULL if found is None else self.topics[<int64_t>found]

    cdef Topic* _add_topic(self, str name) except NULL:
        cdef Py_ssize_t size = 0
        cdef const char* text = PyUnicode_AsUTF8AndSize(name, &size)
        self.topic_room = grow(&self.topics, self.topic_room, self.topic_count + 1, sizeof(Topic*), 8)
        cdef Topic* topic = <Topic*>calloc(1, sizeof(Topic))
        if topic == NULL:
            raise MemoryError
        Py_INCREF(name)
        topic.name = <PyObject*>name
        topic.text = text
        topic.text_size = <int32_t>size
        self.topics[self.topic_count] = topic
        self.index[name] = self.topic_count
        self.topic_count += 1
        return topic

    cdef int _add_parts(self, Topic* topic, int32_t count) except -1:
        cdef Part* part
        cdef int64_t i, all_parts = 0
        if count <= topic.room:
            return 0
        for i in range(self.topic_count):
            all_parts += self.topics[i].room
        self.begin()  # appenders and the sender read both arrays
        cdef bint made = resize(&topic.parts, <size_t>count * sizeof(Part*))
        made = made and resize(&self.active, <size_t>(all_parts + count) * sizeof(Part*))
        while made and topic.room < count:
            part = <Part*>calloc(1, sizeof(Part))
            made = part != NULL
            if made:
                part.topic = topic
                part.index = topic.room
                part.leader = part.leader_epoch = -1
                part.producer_id = -1
                part.producer_epoch = -1
                topic.parts[topic.room] = part
                topic.room += 1
        self.end()
        if not made:
            raise MemoryError
        return 0

    # -- where a record goes

    cdef uint64_t _next_random(self) noexcept nogil:
        # xorshift64: any partition will do, so long as all get their share.
        self.random ^= self.random << 13
        self.random ^= self.random >> 7
        self.random ^= self.random << 17
        return self.random

    # The next partition for records without a key: any that has a leader, those with shorter queues more often
    # (KIP-794). With the lock.
    cdef void _stick(self, Topic* topic) noexcept nogil:
        cdef int64_t at, longest = 0, total = 0
        cdef int32_t i
        cdef Part* part
        topic.sticky_bytes = 0
        if topic.count == 1:
            topic.sticky = 0
            return
        if self.adaptive:
            for i in range(topic.count):
                longest = max(longest, topic.parts[i].queued)
        for i in range(topic.count):
            part = topic.parts[i]
            if part.leader >= 0:
                total += longest - part.queued + 1 if self.adaptive else 1
        if total == 0:
            topic.sticky = <int32_t>(self._next_random() % <uint64_t>topic.count)
            return
        at = <int64_t>(self._next_random() % <uint64_t>total)
        for i in range(topic.count):
            part = topic.parts[i]
            if part.leader >= 0:
                at -= longest - part.queued + 1 if self.adaptive else 1
                if at < 0:
                    topic.sticky = i
                    return

    # With the lock. NULL: there is no such partition.
    cdef Part* _part_of(self, Topic* topic, int64_t partition, const Record* record) noexcept nogil:
        if partition >= 0:
            return topic.parts[partition] if partition < topic.count else NULL
        if record.key_size >= 0 and not self.ignore_keys and not self.round_robin:
            return topic.parts[murmur2_partition(record.key, <int32_t>record.key_size, topic.count)]
        if self.round_robin:
            topic.sticky = (topic.sticky + 1) % topic.count
        elif topic.sticky_bytes >= self.batch_bytes or topic.parts[topic.sticky].leader < 0:
            self._stick(topic)
        topic.sticky_bytes += record.size
        return topic.parts[topic.sticky]

    # -- records

    # With the lock. Put a record into the open batch of its partition, or into a new one. full: a batch that became
    # full, if that is to be compressed. wakes: whether the sender is to be woken.
    cdef Taken take(
        self, Topic* topic, int64_t partition, const Record* record, Batch** taker, Batch** full, bint* wakes
    ) noexcept nogil:
        cdef Part* part
        cdef Batch* batch
        cdef Taken taken = TAKEN
        cdef int64_t now_us
        if self.shut:
            return IS_CLOSED
        if self.used + record.size > self.buffer_bytes:
            return NO_ROOM
        part = self._part_of(topic, partition, record)
        if part == NULL:
            return NO_PARTITION
        batch = part.last
        if batch != NULL and batch.state == BATCH_OPEN and batch.count and batch.size + record.size > self.batch_bytes:
            taken = self._close(batch)
            full[0] = batch
            if part.in_flight < self.limit_of(part) and taken == TAKEN and self.is_news(0):
                wakes[0] = True
            batch = NULL
        if batch == NULL or batch.state != BATCH_OPEN:
            now_us = time_us(self)
            batch = self._new_batch(part, now_us)
            if batch == NULL:
                return NO_MEMORY
            if part.in_flight < self.limit_of(part) and self.is_news(now_us + self.linger_us):
                wakes[0] = True
        if not has_room(batch, record.size, self.batch_bytes):
            return NO_MEMORY
        batch.charged += record.size
        self.used += record.size
        put_record(batch, record)
        taker[0] = batch
        self.counters.records += 1
        self.counters.record_bytes += record.size - RECORD_OVERHEAD_MAX
        self.maxima.record_bytes = max(self.maxima.record_bytes, record.size - RECORD_OVERHEAD_MAX)
        return taken

    # With the lock.
    cdef Taken _close(self, Batch* batch) noexcept nogil:
        put_header(batch)
        self.counters.batches += 1
        if self.codec == CODEC_NONE:
            batch.state = BATCH_READY
            return TAKEN
        batch.state = BATCH_PACKING
        return TAKEN_AND_FULL

    # With the lock. NULL: there is no memory.
    cdef Batch* _new_batch(self, Part* part, int64_t now_us) noexcept nogil:
        cdef Batch* batch = <Batch*>calloc(1, sizeof(Batch))
        if batch == NULL:
            return NULL
        if self.spare_count:
            self.spare_count -= 1
            batch.data = self.spares[self.spare_count]
            batch.capacity = self.batch_bytes + SPARE_BYTES
        batch.refs = 1
        batch.part = part
        batch.number = self.next_number
        self.next_number += 1
        batch.size = BATCH_HEADER_BYTES
        batch.created_us = now_us
        batch.deadline_us = now_us + self.delivery_us
        batch.base_offset = batch.append_time = -1
        batch.producer_id = -1
        batch.producer_epoch = -1
        batch.sequence = -1
        batch.state = BATCH_OPEN
        batch.older = self.newest
        if self.newest == NULL:
            self.oldest = batch
        else:
            self.newest.newer = batch
        self.newest = batch
        push(part, batch)
        self.activate(part)
        return batch

    # With the GIL, without the lock: compress a batch that is PACKING.
    cdef int pack_batch(self, Batch* batch) except -1:
        cdef uint8_t* data = NULL
        cdef Py_ssize_t size
        cdef bytes packed
        cdef bint wakes
        try:
            packed = pack(
                self.codec, batch.data + BATCH_HEADER_BYTES, <Py_ssize_t>(batch.size - BATCH_HEADER_BYTES), self.level)
            size = PyBytes_GET_SIZE(packed)
            if not resize(&data, <size_t>(BATCH_HEADER_BYTES + size)):
                raise MemoryError
            memcpy(data + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), <size_t>size)
            free(batch.data)
            batch.data = data
            batch.records_bytes = batch.size - BATCH_HEADER_BYTES
            batch.size = batch.capacity = BATCH_HEADER_BYTES + size
            batch.codec = <signed char>self.codec
            put_header(batch)
        finally:
            # Without its codec the batch is still a valid one.
            self.begin()
            batch.state = BATCH_READY
            wakes = batch.part.in_flight < self.limit_of(batch.part) and self.is_news(0)
            self.end()
            if wakes:
                self.ring()
        return 0

    # -- the end of batches

    # With the lock, once per batch that is not DONE or FAILED yet: give back its memory and take it off the list. The
    # caller sets its state and gives up the accumulator's reference.
    cdef void finish(self, Batch* batch) noexcept nogil:
        self.used -= batch.charged
        if batch.older == NULL:
            self.oldest = batch.newer
        else:
            batch.older.newer = batch.newer
        if batch.newer == NULL:
            self.newest = batch.older
        else:
            batch.newer.older = batch.older
        batch.older = batch.newer = NULL

    # With the lock: nobody needs its bytes any more. Memory that was never touched costs more to write to than the record
    # itself, so that of full batches is kept for the next ones.
    cdef void drop_data(self, Batch* batch) noexcept nogil:
        cdef int64_t full = self.batch_bytes + SPARE_BYTES
        if batch.capacity == full and self.spare_count < min(SPARES_MAX, SPARE_BYTES_MAX // full):
            self.spares[self.spare_count] = batch.data
            self.spare_count += 1
        else:
            free(batch.data)
        batch.data = NULL

    # With the lock: batches have ended.
    cdef void tell(self) noexcept nogil:
        if self.waiters:
            pthread_cond_broadcast(&self.done)
        if self.starved:
            pthread_cond_broadcast(&self.room)

    # Whether the batch has ended before until_us.
    cdef bint wait_for(self, Batch* batch, int64_t until_us) except -1:
        cdef int64_t now_us = monotonic_us()
        cdef bint ended
        while True:
            with nogil:
                self.begin()
                if batch.state < BATCH_DONE and now_us < until_us:
                    self.waiters += 1
                    wait_until_us(&self.done, &self.lock, min(until_us, now_us + SLICE_US))
                    self.waiters -= 1
                ended = batch.state >= BATCH_DONE
                self.end()
            if ended:
                return True
            now_us = monotonic_us()
            if now_us >= until_us:
                return False
            PyErr_CheckSignals()

    def flush(self, double seconds) -> bool:
        """Whether all records that were taken before have ended within ``seconds``."""
        cdef int64_t now_us = monotonic_us()
        cdef int64_t until_us = deadline_us(now_us, seconds)
        cdef int64_t mark
        cdef bint all_ended = False
        self.begin()
        mark = self.next_number
        self.flushing += 1
        self.news = True
        self.asleep = False
        self.end()
        self.ring()
        try:
            while not all_ended and now_us < until_us:
                with nogil:
                    self.begin()
                    if self.oldest != NULL and self.oldest.number < mark:
                        self.waiters += 1
                        wait_until_us(&self.done, &self.lock, min(until_us, now_us + SLICE_US))
                        self.waiters -= 1
                    all_ended = self.oldest == NULL or self.oldest.number >= mark
                    self.end()
                PyErr_CheckSignals()
                now_us = monotonic_us()
        finally:
            self.begin()
            all_ended = self.oldest == NULL or self.oldest.number >= mark
            self.flushing -= 1
            self.end()
        return all_ended

    def close(self, error not None) -> None:
        """From now on ``append`` raises ``error``; those that wait for memory, too."""
        self.closed = error
        self.begin()
        self.shut = True
        pthread_cond_broadcast(&self.room)
        self.end()

    def open(self) -> None:
        """Take records again."""
        self.begin()
        self.shut = False
        self.end()
        self.closed = None

    # -- producer ids

    def set_producer(self, int64_t producer_id, int16_t epoch) -> None:
        """The id and epoch that new batches have; a partition takes them over once no batch with its former
        ones is undecided."""
        self.begin()
        self.producer_id = producer_id
        self.producer_epoch = epoch
        self.news = True
        self.end()

    def begin_transaction(self) -> None:
        """No partition is in the transaction yet."""
        cdef int64_t i, n
        self.begin()
        for i in range(self.topic_count):
            for n in range(self.topics[i].room):
                self.topics[i].parts[n].added = self.topics[i].parts[n].adding = False
        self.end()

    def added(self, list parts not None, bint success) -> None:
        """[(topic, partition)...] are in the transaction, or were not added: then they are asked for again."""
        cdef Topic* topic
        cdef int32_t partition
        for name, partition in parts:
            topic = self.known(name)
            if topic != NULL and 0 <= partition < topic.room:
                self.begin()
                topic.parts[partition].added = success
                topic.parts[partition].adding = False
                self.news = True
                self.end()

    # -- what is told

    @property
    def unended(self) -> int:
        """Batches that are not acknowledged and have not failed."""
        cdef int64_t count = 0
        self.begin()
        cdef Batch* batch = self.oldest
        while batch != NULL:
            count += 1
            batch = batch.newer
        self.end()
        return count

    @property
    def used_bytes(self) -> int:
        """Of ``buffer_bytes``."""
        return self.used

    def partition_count(self, str topic not None) -> int:
        """Partitions of a topic, 0 if it is not known."""
        cdef Topic* found = self.known(topic)
        return 0 if found == NULL else found.count

    def led(self, str topic not None) -> list[int]:
        """Its partitions that have a leader."""
        cdef Topic* found = self.known(topic)
        return [] if found == NULL else [i for i in range(found.count) if found.parts[i].leader >= 0]

    def counts(self) -> dict[str, int]:
        """What was counted since the start, by name."""
        return self.counters
