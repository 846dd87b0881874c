"""Passes what a consumer has fetched on to a producer, without an object for each record.

Runs in clients that copy topics, in the thread that polls. Records are copied from the fetched set into the open
batches of their new partitions (COPY: once), with key, value, headers and timestamp. Where all records of a batch
have the same new partition and the batch may be sent as it is, it is copied as a whole and stays compressed.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._ext.base.murmur2 cimport murmur2_partition
from kbroker._ext.client.accumulator cimport (
    time_us,
    IS_CLOSED,
    NO_MEMORY,
    NO_PARTITION,
    NO_ROOM,
    SLICE_US,
    TAKEN,
    TAKEN_AND_FULL,
    Accumulator,
    Taken,
    take_whole,
)
from kbroker._ext.client.producer_batch cimport (
    BATCH_OPEN,
    RECORD_OVERHEAD_MAX,
    Batch,
    Part,
    Record,
    Topic,
    has_room,
    put_whole,
)
from kbroker._ext.client.record_futures cimport RecordFutures
from kbroker._ext.client.record_reader cimport RecordReader, well_formed
from kbroker._ext.client.threads cimport deadline_us, monotonic_us, unix_ms, wait_until_us
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    CODEC_NONE,
    BatchInfo,
)
from kbroker._ext.record.record_cursor cimport (
    DAMAGE_RECORD,
    ROW_NONE,
    ROW_OK,
    RUN_CLOSED,
    RUN_DAMAGED,
    RUN_NEEDS_GIL,
    RUN_READY,
    Row,
    RowStatus,
    RunStatus,
    next_row,
    unread,
)

cdef enum:
    # Records that are taken under one lock.
    RUN_MAX = 256
    # Runs of records that there is room for before the GIL is needed again.
    RUNS_AHEAD = 4096
    # A batch smaller than this part of batch.size is put together with others: compressed ones cost more to open.
    WHOLE_PLAIN_PART = 2
    WHOLE_PACKED_PART = 8
    # Where records of a batch go, if not to a partition.
    ANYWHERE = -1
    APART = -2

cdef enum Step:
    STEP_ON           # there may be more
    STEP_RUN          # next_run has returned `status`, which needs the GIL
    STEP_REFUSED      # the accumulator has returned `taken`
    STEP_FULL         # `full` is to be compressed
    STEP_TOO_LARGE    # the record of `size` bytes
    STEP_DAMAGED      # the record at the position


cdef class Forwarder:
    """pool: of the producer, which nobody else needs to use alone. keep_partitions: where the new topic has a partition
    of the same number, records keep it; otherwise their keys decide, as the producer has it. keep_codecs: a batch
    that is compressed in another way than the producer's may be passed on as it is.

    held: set it to pass nothing on for a while. is_full: whether the last call of ``forward`` stopped because the
    producer's memory was full, or it is held; missing: or because the producer does not know this topic. Counts
    records, their bytes, and those in whole batches.
    """

    cdef:
        Accumulator _pool
        bint _keep_partitions, _keep_codecs
        int64_t _whole_bytes_max
        Topic* _to
        Batch* _full
        int64_t _size
        Taken _taken
        RunStatus _status
        bint _wakes
        bint _fresh              # the open run was not read from, and may be passed on as a whole
        public bint held
        readonly bint is_full
        readonly object missing
        readonly int64_t records
        readonly int64_t bytes
        readonly int64_t whole_records

    def __cinit__(self, Accumulator pool not None, *, bint keep_partitions=False, bint keep_codecs=True,
                  int64_t whole_bytes_max=1 << 20):
        self._pool = pool
        self._keep_partitions = keep_partitions
        self._keep_codecs = keep_codecs
        self._whole_bytes_max = min(whole_bytes_max, pool.buffer_bytes)

    def forward(self, RecordReader reader not None, str topic not None) -> RecordFutures:
        """The futures of the records that were taken over, in their order.

        They are those before ``reader.position``; the set is used up, unless ``is_full``, ``missing`` or
        ``reader.error`` says something else. A record that is too large fails in the result. Raises why the
        producer is closed.
        """
        cdef RecordFutures futures = RecordFutures.__new__(RecordFutures)
        cdef Step step = STEP_ON
        futures.owner = self._pool
        futures.failed = {}
        self.is_full = self.held
        self.missing = None
        if self.held or reader.error is not None:
            return futures
        self._to = self._pool.known(topic)
        if self._to == NULL:
            self.missing = topic
            return futures
        self._fresh = False
        reader._cursor.keep_closed = True
        try:
            while True:
                futures.reserve(RUNS_AHEAD)
                self._wakes = False
                with nogil:
                    step = self._go(reader, futures)
                if self._wakes:
                    self._pool.ring()
                if not self._settle(step, reader, futures, topic):
                    return futures
        finally:
            reader._cursor.keep_closed = False

    # What needs the GIL between two steps. False: that was all.
    cdef bint _settle(self, Step step, RecordReader reader, RecordFutures futures, str topic) except -1:
        if step == STEP_FULL:
            self._pool.pack_batch(self._full)
        elif step == STEP_RUN:
            return self._open(reader)
        elif step == STEP_TOO_LARGE:
            futures.add_failed(self._pool.errors.too_large(self._size))
        elif step == STEP_DAMAGED:
            reader._cursor._damaged(DAMAGE_RECORD, reader._cursor.run.base_offset)
            reader._stop_at_damage()
            return False
        elif step == STEP_REFUSED:
            if self._taken == IS_CLOSED:
                raise self._pool.closed
            if self._taken == NO_MEMORY:
                raise MemoryError
            self.is_full = self._taken == NO_ROOM
            self.missing = topic if self._taken == NO_PARTITION else None
            return False
        return True

    cdef bint _open(self, RecordReader reader) except -1:
        cdef RunStatus status = self._status
        if status == RUN_NEEDS_GIL:
            status = RUN_READY if reader._cursor.open_run() else RUN_DAMAGED
        if status == RUN_READY:
            self._opened(reader)
            return True
        if status == RUN_DAMAGED:
            reader._stop_at_damage()
        else:
            reader.position = max(reader.position, reader._cursor.next_offset)  # what was skipped
            reader.leader_epoch = reader._cursor.leader_epoch
        return False

    cdef void _opened(self, RecordReader reader) noexcept nogil:
        reader._open = True
        reader.leader_epoch = reader._cursor.leader_epoch
        self._fresh = reader._cursor.run.magic == 2 and self._may_be_whole(&reader._cursor._info, reader.position)

    # -- without the GIL

    cdef Step _go(self, RecordReader reader, RecordFutures futures) noexcept nogil:
        cdef Step step = STEP_ON
        cdef int64_t to
        while step == STEP_ON and futures.run_count + RUN_MAX <= futures.run_room:
            if not reader._open:
                self._status = reader._cursor.next_run()
                if self._status == RUN_CLOSED:
                    if self._keeps(reader._partition) and self._may_be_whole(&reader._cursor._info, reader.position):
                        step = self._pass_whole(reader, futures, reader._partition)
                        continue
                    self._status = reader._cursor._open_batch()
                if self._status != RUN_READY:
                    return STEP_RUN
                self._opened(reader)
            if self._fresh:
                self._fresh = False
                to = self._common_partition(reader)
                if to != APART:
                    step = self._pass_whole(reader, futures, to)
                    continue
            step = self._pass_rows(reader, futures)
        return step

    cdef inline bint _keeps(self, int32_t partition) noexcept nogil:
        return self._keep_partitions and partition < self._to.count

    # Whether brokers accept the batch as it is, and it is worth it. A log may have gaps in its offsets, by compaction,
    # and times of its broker.
    cdef bint _may_be_whole(self, const BatchInfo* info, int64_t position) noexcept nogil:
        cdef int codec = info.attributes & ATTRIBUTE_CODEC_MASK
        cdef int64_t size = info.batch_length + BATCH_LENGTH_END
        cdef int part = WHOLE_PLAIN_PART if codec == CODEC_NONE else WHOLE_PACKED_PART
        if info.attributes & ~(ATTRIBUTE_CODEC_MASK | ATTRIBUTE_TRANSACTIONAL):
            return False
        if info.base_offset < position or info.record_count - 1 != info.last_offset_delta or info.first_timestamp < 0:
            return False
        if codec != self._pool.codec and not self._keep_codecs:
            return False
        return size * part >= self._pool.batch_bytes and size <= self._whole_bytes_max

    # Where all records of the open run go; it can be read from its beginning afterwards.
    cdef int64_t _common_partition(self, RecordReader reader) noexcept nogil:
        cdef Row row
        cdef RowStatus status
        cdef int64_t found = APART
        cdef int64_t to
        cdef int32_t count = self._to.count
        cdef const uint8_t* start = reader._cursor.run.pos
        cdef int32_t left = reader._cursor.run.left
        if count == 0 or self._pool.round_robin:
            return APART
        if self._keeps(reader._partition):
            return reader._partition
        while True:
            status = next_row(&reader._cursor.run, &row)
            if status != ROW_OK or (row.header_count and not well_formed(&row)):
                break
            if row.key_size < 0 or self._pool.ignore_keys:
                to = 0 if count == 1 else ANYWHERE
            else:
                to = murmur2_partition(row.key, row.key_size, count)
            if found == APART:
                found = to
            elif found != to:
                break
        reader._cursor.run.pos = start
        reader._cursor.run.left = left
        reader._cursor.run.previous_offset = -1
        return found if status == ROW_NONE else APART

    # Pass the cursor's batch on, which may be open.
    cdef Step _pass_whole(self, RecordReader reader, RecordFutures futures, int64_t to) noexcept nogil:
        cdef const BatchInfo* info = &reader._cursor._info
        cdef Batch* batch = NULL
        self._taken = self._take_whole(reader._cursor._batch, info, to, &batch)
        if self._taken > TAKEN_AND_FULL:
            # The batch is read again.
            reader._cursor._pos = reader._cursor._batch
            reader._open = False
            return STEP_REFUSED
        futures.add_whole(batch)
        self._pool.end()
        self.records += info.record_count
        self.whole_records += info.record_count
        self.bytes += info.batch_length + BATCH_LENGTH_END
        reader.leader_epoch = reader._cursor.leader_epoch
        reader._cursor.run.next_offset = info.base_offset + info.last_offset_delta + 1
        reader._cursor.finish_run()
        reader._open = False
        reader.position = max(reader.position, reader._cursor.next_offset)
        return STEP_FULL if self._taken == TAKEN_AND_FULL else STEP_ON

    # Takes the lock, and keeps it if the batch is taken.
    cdef Taken _take_whole(
        self, const uint8_t* data, const BatchInfo* info, int64_t to, Batch** taker
    ) noexcept nogil:
        cdef int64_t size = info.batch_length + BATCH_LENGTH_END
        cdef Taken taken = TAKEN
        cdef Record like
        cdef Part* part
        cdef Batch* batch
        like.key_size = -1
        like.size = size
        self._pool.begin()
        if self._pool.shut:
            taken = IS_CLOSED
        elif self._to.count == 0:
            taken = NO_PARTITION
        elif self._pool.used + size > self._pool.buffer_bytes:
            taken = NO_ROOM
        if taken != TAKEN:
            self._pool.end()
            return taken
        part = self._pool._part_of(self._to, to, &like)
        if part == NULL:
            self._pool.end()
            return NO_PARTITION
        batch = part.last
        if batch != NULL and batch.state == BATCH_OPEN and batch.count:
            taken = self._pool._close(batch)
            self._full = batch
            batch = NULL
        if batch == NULL or batch.state != BATCH_OPEN:
            batch = self._pool._new_batch(part, time_us(self._pool))
        if batch == NULL or not has_room(batch, size - BATCH_HEADER_BYTES, self._pool.batch_bytes):
            self._pool.end()
            return NO_MEMORY
        put_whole(batch, data, info)
        self._wakes = take_whole(self._pool, batch) or self._wakes
        taker[0] = batch
        return taken

    # Copy records of the open run, as many as are taken under one lock.
    cdef Step _pass_rows(self, RecordReader reader, RecordFutures futures) noexcept nogil:
        cdef Step step = STEP_ON
        cdef int64_t to = reader._partition if self._keeps(reader._partition) else ANYWHERE
        cdef Row row
        cdef RowStatus status
        cdef int32_t n
        self._pool.begin()
        for n in range(RUN_MAX):
            status = next_row(&reader._cursor.run, &row)
            if status == ROW_OK and row.offset < reader.position:
                continue
            if status == ROW_OK and (row.header_count == 0 or well_formed(&row)):
                step = self._pass_row(reader, futures, to, &row)
            elif status == ROW_NONE:
                reader._cursor.finish_run()
                reader._open = False
                reader.position = max(reader.position, reader._cursor.next_offset)
                break
            else:
                step = STEP_DAMAGED
            if step != STEP_ON:
                break
        self._pool.end()
        return step

    # With the lock.
    cdef Step _pass_row(self, RecordReader reader, RecordFutures futures, int64_t to, const Row* row) noexcept nogil:
        cdef Record record
        cdef Batch* batch = NULL
        record.key = row.key
        record.key_size = row.key_size
        record.value = row.value
        record.value_size = row.value_size
        record.headers_size = 0
        if row.header_count:
            # Their count is behind the value.
            record.headers = row.value + max(row.value_size, 0)
            record.headers_size = row.headers_end - record.headers
        record.timestamp = row.timestamp if row.timestamp >= 0 else unix_ms()
        record.size = RECORD_OVERHEAD_MAX + max(row.key_size, 0) + max(row.value_size, 0) + record.headers_size
        if record.size > self._pool.record_bytes_max:
            self._size = record.size
            reader.position = row.offset + 1
            return STEP_TOO_LARGE
        if self._to.count == 0:
            self._taken = NO_PARTITION
        else:
            self._taken = self._pool.take(self._to, to, &record, &batch, &self._full, &self._wakes)
        if self._taken > TAKEN_AND_FULL:
            unread(&reader._cursor.run, row)
            return STEP_REFUSED
        futures.add(batch)
        reader.position = row.offset + 1
        self.records += 1
        self.bytes += record.size - RECORD_OVERHEAD_MAX
        return STEP_FULL if self._taken == TAKEN_AND_FULL else STEP_ON

    # -- memory

    def wait_for_room(self, double seconds) -> None:
        """Wait until the producer has given memory back, ``seconds`` at most; batches do not linger meanwhile."""
        cdef Accumulator pool = self._pool
        cdef int64_t began_us = monotonic_us()
        cdef int64_t until_us = min(deadline_us(began_us, seconds), began_us + SLICE_US)
        with nogil:
            pool.begin()
            pool.starved += 1
            pool.news = True
            pool.asleep = False
            pool.end()
            pool.ring()
            pool.begin()
            if pool.oldest != NULL:
                wait_until_us(&pool.room, &pool.lock, until_us)
            pool.starved -= 1
            pool.counters.waited_us += monotonic_us() - began_us
            pool.end()
