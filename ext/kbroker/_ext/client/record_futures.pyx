"""Futures of records. They know their batch, which ends once for all of its records."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free

cimport cython

from kbroker._ext.base.growing cimport grow
from kbroker._ext.client.accumulator cimport Accumulator
from kbroker._ext.client.producer_batch cimport (
    BATCH_DONE,
    BATCH_FAILED,
    BATCH_SPLIT,
    Batch,
    batch_of,
    hold,
    release,
)
from kbroker._ext.client.threads cimport deadline_us, monotonic_us


cdef double FOREVER = float("inf")


cdef object error_of(Batch* batch):
    return <object>batch.error if batch.state == BATCH_FAILED else None


# Whether a batch has ended, or was split, before until_us. It is held meanwhile: another thread may move its futures on
# to its parts.
cdef bint ended_before(Accumulator owner, Batch* batch, int64_t until_us) except -1:
    hold(batch)
    try:
        return owner.wait_for(batch, until_us)
    finally:
        release(batch)


@cython.freelist(256)
@cython.no_gc
cdef class RecordFuture:
    """The future of one record, with the interface of ``concurrent.futures.Future``.

    It ends when the record is acknowledged, or is given up after ``delivery.timeout.ms`` at the latest.
    It cannot be cancelled.
    """

    def __dealloc__(self):
        if self.batch != NULL:
            release(self.batch)

    @staticmethod
    def refused(error not None) -> RecordFuture:
        """The future of a record that was not taken."""
        cdef RecordFuture made = RecordFuture.__new__(RecordFuture)
        made.error = error
        return made

    # Move on to the part that has the record, if its batch was split.
    cdef bint follow(self) noexcept:
        cdef Batch* before = self.batch
        if before == NULL or before.state != BATCH_SPLIT:
            return False
        self.batch = batch_of(before, &self.index)
        hold(self.batch)
        release(before)
        return True

    @property
    def batch_number(self) -> int:
        """Records with the same number are in one batch, and all of one producer with none of another; parts of
        a batch that was split share it. -1: the record was refused."""
        return -1 if self.batch == NULL else self.batch.number

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        self.follow()
        return self.batch == NULL or self.batch.state >= BATCH_DONE

    def running(self) -> bool:
        return not self.done()

    def cancel(self) -> bool:
        """Does nothing: a record that was taken is sent."""
        return False

    def cancelled(self) -> bool:
        return False

    cdef bint _wait(self, timeout) except -1:
        cdef double seconds = FOREVER if timeout is None else timeout
        cdef int64_t until_us = deadline_us(monotonic_us(), seconds)
        if self.batch == NULL:
            return True
        self.follow()
        while True:
            if not ended_before(self.owner, self.batch, until_us):
                raise TimeoutError(f"the record was not acknowledged within {seconds:.3g} s")
            if not self.follow() and self.batch.state >= BATCH_DONE:
                return True

    def exception(self, timeout=None):
        """Why the record has failed, None if it has not. Raises TimeoutError after ``timeout`` seconds."""
        self._wait(timeout)
        return self.error if self.batch == NULL else error_of(self.batch)

    def result(self, timeout=None):
        """The ``RecordMetadata``. Raises why the record has failed; TimeoutError after ``timeout`` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        cdef Batch* batch = self.batch
        return self.owner.metadata(
            <object>batch.part.topic.name,
            batch.part.index,
            -1 if batch.base_offset < 0 else batch.base_offset + self.index,
            batch.append_time if batch.append_time >= 0 else self.timestamp,
            self.key_size,
            self.value_size,
        )

    def get(self, timeout=None):
        """The same as ``result``, under kafka-python's name."""
        return self.result(timeout)

    def add_done_callback(self, function) -> None:
        """Call ``function(future)`` once it is done: at once in this thread if it is, otherwise in the
        sender's, which must not be kept waiting."""
        cdef bint later = False
        # From here to where it is in the list, nothing may run that gives up the GIL, as collecting garbage may.
        cdef tuple entry = (self, function)
        cdef list callbacks = []
        self.follow()
        if self.batch != NULL:
            self.owner.begin()
            if self.batch.state < BATCH_DONE:
                later = True
                if self.batch.callbacks == NULL:
                    Py_INCREF(callbacks)
                    self.batch.callbacks = <PyObject*>callbacks
            self.owner.end()
        if later:
            # The sender's thread takes the list with the GIL, after this.
            (<list>self.batch.callbacks).append(entry)
        else:
            function(self)


cdef class RecordFutures:
    """The futures of a list of records, in its order."""

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.run_count):
            if self.runs[i].batch != NULL:
                release(self.runs[i].batch)
        free(self.runs)

    cdef int reserve(self, int64_t more) except -1:
        self.run_room = grow(&self.runs, self.run_room, self.run_count + more, sizeof(Run), 0)
        return 0

    # With the accumulator's lock; the room is reserved. The record is the last one of the batch.
    cdef void add(self, Batch* batch) noexcept nogil:
        cdef Run* last = NULL
        if self.run_count:
            last = &self.runs[self.run_count - 1]
        self.records += 1
        if last != NULL and last.batch == batch and last.first + last.count == batch.count - 1:
            last.count += 1
            return
        hold(batch)
        last = &self.runs[self.run_count]
        last.batch = batch
        last.first = batch.count - 1
        last.count = 1
        self.run_count += 1

    # The same for all records of a batch.
    cdef void add_whole(self, Batch* batch) noexcept nogil:
        cdef Run* run = &self.runs[self.run_count]
        hold(batch)
        run.batch = batch
        run.first = 0
        run.count = batch.count
        self.records += batch.count
        self.run_count += 1

    cdef int add_failed(self, error) except -1:
        self.failed[self.records] = error
        self.records += 1
        if self.run_count == 0 or self.runs[self.run_count - 1].batch != NULL:
            self.reserve(1)
            self.runs[self.run_count].batch = NULL
            self.runs[self.run_count].count = 0
            self.run_count += 1
        self.runs[self.run_count - 1].count += 1
        return 0

    def __len__(self) -> int:
        return self.records

    # Replace the runs of batches that were split by those of their parts. Whether there were any.
    cdef bint _follow(self) except -1:
        cdef Run* found = NULL
        cdef Run* before = self.runs
        cdef Run run
        cdef int64_t i
        cdef int64_t count = 0
        cdef int64_t room = 0
        cdef int64_t old_count = self.run_count
        cdef int32_t index
        cdef bint any_split = False
        for i in range(old_count):
            any_split = any_split or (before[i].batch != NULL and before[i].batch.state == BATCH_SPLIT)
        if not any_split:
            return False
        try:
            for i in range(old_count):
                run = before[i]
                while run.count > 0:
                    room = grow(&found, room, count + 1, sizeof(Run), 16)
                    found[count] = run
                    if run.batch != NULL:
                        index = run.first
                        found[count].batch = batch_of(run.batch, &index)
                        found[count].first = index
                        found[count].count = min(run.count, found[count].batch.count - index)
                    run.first += found[count].count
                    run.count -= found[count].count
                    count += 1
        except MemoryError:
            free(found)
            raise
        for i in range(count):
            if found[i].batch != NULL:
                hold(found[i].batch)
        self.runs = found
        self.run_count = count
        self.run_room = room
        for i in range(old_count):
            if before[i].batch != NULL:
                release(before[i].batch)
        free(before)
        return True

    def done(self) -> bool:
        """Whether every record was acknowledged or has failed."""
        cdef int64_t i
        self._follow()
        for i in range(self.run_count):
            if self.runs[i].batch != NULL and self.runs[i].batch.state < BATCH_DONE:
                return False
        return True

    def of_batches(self) -> list[RecordFuture]:
        """For each of their batches that has not ended the future of one record, for ``add_done_callback``."""
        cdef RecordFuture future
        cdef list found = []
        cdef int64_t i
        self._follow()
        for i in range(self.run_count):
            if self.runs[i].batch != NULL and self.runs[i].batch.state < BATCH_DONE:
                future = RecordFuture.__new__(RecordFuture)
                future.owner = self.owner
                hold(self.runs[i].batch)
                future.batch = self.runs[i].batch
                future.index = self.runs[i].first
                future.timestamp = future.key_size = future.value_size = -1
                found.append(future)
        return found

    cdef bint _wait(self, timeout) except -1:
        cdef double seconds = FOREVER if timeout is None else timeout
        cdef int64_t until_us = deadline_us(monotonic_us(), seconds)
        cdef int64_t i = 0
        cdef Run* seen = NULL
        cdef Batch* batch
        while True:
            self._follow()
            if self.runs != seen:
                # Here or in another thread runs were replaced.
                seen = self.runs
                i = 0
            if i == self.run_count:
                return True
            batch = self.runs[i].batch
            if batch != NULL and not ended_before(self.owner, batch, until_us):
                raise TimeoutError(f"not all records were acknowledged within {seconds:.3g} s")
            i += 1

    def exceptions(self, timeout=None) -> dict[int, Exception]:
        """Why records have failed, by their places in the list. Raises TimeoutError."""
        cdef dict found = {}
        cdef int64_t place = 0
        cdef int64_t i
        cdef int32_t n
        self._wait(timeout)
        for i in range(self.run_count):
            if self.runs[i].batch != NULL and self.runs[i].batch.state == BATCH_FAILED:
                for n in range(self.runs[i].count):
                    found[place + n] = error_of(self.runs[i].batch)
            place += self.runs[i].count
        found.update(self.failed)
        return found

    def result(self, timeout=None) -> list[tuple[str, int, int, int]]:
        """Where the records are: (topic, partition, offset of the first, count) for each run of records that
        follow one another in a partition; offsets are -1 with acks=0.

        Raises why the first one has failed that has; TimeoutError after ``timeout`` seconds.
        """
        cdef list found = []
        cdef Batch* batch
        cdef int64_t i
        cdef dict failed = self.exceptions(timeout)
        if failed:
            raise failed[min(failed)]
        for i in range(self.run_count):
            batch = self.runs[i].batch
            found.append((
                <object>batch.part.topic.name,
                batch.part.index,
                -1 if batch.base_offset < 0 else batch.base_offset + self.runs[i].first,
                self.runs[i].count,
            ))
        return found
