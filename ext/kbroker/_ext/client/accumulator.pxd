# Records of a producer until they are acknowledged; see accumulator.pyx.
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.client.producer_batch cimport Batch, Part, Record, Topic
from kbroker._ext.client.producer_counts cimport Counters, Maxima
from kbroker._ext.client.threads cimport monotonic_us, pthread_cond_t, pthread_mutex_t

cdef enum:
    # BOUND: how long a signal waits for a thread that waits here.
    SLICE_US = 100000
    # BOUND: memory that is kept for the next batches: so many pieces, and so many bytes.
    SPARES_MAX = 64
    SPARE_BYTES_MAX = 16 << 20

cdef enum Taken:
    TAKEN = 0
    TAKEN_AND_FULL = 1     # and a batch is to be compressed
    NO_ROOM = 2
    NO_MEMORY = 3
    NO_PARTITION = 4
    IS_CLOSED = 5


cdef class Accumulator:
    cdef:
        pthread_mutex_t lock
        pthread_cond_t done          # a batch has ended
        pthread_cond_t room          # memory was given back
        object errors                # what makes the exceptions
        object metadata              # makes the result of a future
        dict index                   # topic -> its place
        Topic** topics
        int64_t topic_count, topic_room
        PyObject* last_name    # borrowed: of last_topic, whose topic owns it
        Topic* last_topic
        Part** active
        int64_t active_count, active_room
        Batch* oldest                # of all that have not ended
        Batch* newest
        int64_t next_number
        int64_t batch_bytes, buffer_bytes, record_bytes_max, linger_us, delivery_us, block_us
        int32_t in_flight_max        # batches of a partition
        int codec
        object level
        bint idempotent, transactional
        bint ignore_keys, adaptive, round_robin
        int64_t producer_id          # -1: not known yet
        int16_t producer_epoch
        uint64_t random
        int64_t used                 # bytes, of batches that have not ended
        uint8_t* spares[SPARES_MAX]  # memory of ended batches, of full size, for the next ones
        int64_t spare_count
        int32_t waiters              # for `done`
        readonly int32_t starved     # wait for `room`
        int32_t flushing             # callers of flush: open batches are full enough
        object closed                # the error that `append` raises
        bint shut                    # it does
        # Between appenders and the sender, which sleeps until sleeps_until_us if `asleep`. news: something can be sent
        # that the sender has not looked at.
        bint asleep, news, interrupted
        readonly int64_t sleeps_until_us
        int64_t simulated_us         # the time, where it is simulated; else 0
        int wake_fd
        Counters counters
        Maxima maxima

    cdef void begin(self) noexcept nogil
    cdef void end(self) noexcept nogil
    cdef void ring(self) noexcept nogil
    cdef bint is_news(self, int64_t due_us) noexcept nogil
    cdef Topic* known(self, str name) except? NULL
    cdef Topic* _add_topic(self, str name) except NULL
    cdef int _add_parts(self, Topic* topic, int32_t count) except -1
    cdef uint64_t _next_random(self) noexcept nogil
    cdef void _stick(self, Topic* topic) noexcept nogil
    cdef Part* _part_of(self, Topic* topic, int64_t partition, const Record* record) noexcept nogil
    cdef Taken _close(self, Batch* batch) noexcept nogil
    cdef Batch* _new_batch(self, Part* part, int64_t now_us) noexcept nogil
    cdef Taken take(
        self, Topic* topic, int64_t partition, const Record* record, Batch** taker, Batch** full, bint* wakes
    ) noexcept nogil
    cdef void activate(self, Part* part) noexcept nogil
    cdef void finish(self, Batch* batch) noexcept nogil
    cdef void drop_data(self, Batch* batch) noexcept nogil
    cdef void tell(self) noexcept nogil
    cdef int32_t limit_of(self, const Part* part) noexcept nogil
    cdef int pack_batch(self, Batch* batch) except -1
    cdef bint wait_for(self, Batch* batch, int64_t until_us) except -1


# Microseconds of the clock that the sender goes by.
cdef inline int64_t time_us(Accumulator pool) noexcept nogil:
    return pool.simulated_us if pool.simulated_us else monotonic_us()


# With the lock: count a whole batch, which is in its queue. Returns whether the sender is to be woken.
cdef inline bint take_whole(Accumulator pool, const Batch* batch) noexcept nogil:
    pool.used += batch.size
    pool.counters.batches += 1
    pool.counters.records += batch.count
    pool.counters.record_bytes += batch.size
    return batch.part.in_flight < pool.limit_of(batch.part) and pool.is_news(0)
