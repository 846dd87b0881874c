"""Counts records, and the bytes of their keys and values, by time buckets.

One pass over the records; keys, values and headers are not read.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._ext.record.record_cursor cimport (
    DAMAGE_RECORD,
    ROW_NONE,
    ROW_OK,
    RUN_DAMAGED,
    RUN_NEEDS_GIL,
    RUN_READY,
    RecordCursor,
    Row,
    RowStatus,
    Run,
    RunStatus,
    next_row,
)

from kbroker._ext.record.record_cursor import RecordsDamaged, damage_words

cdef enum Counted:
    COUNT_NO_MEMORY = -2
    COUNT_DAMAGED = -1
    COUNT_DONE = 0
    COUNT_NEEDS_GIL = 1

cdef enum:
    NO_TIMESTAMP = -1

cdef struct Bucket:
    int64_t start
    int64_t records      # 0: the bucket is unused
    int64_t size


cdef class RecordCounter:
    """Counts the records with offsets in ``[start, end)`` in record sets, by their timestamps.

    bucket_ms: width of a bucket. Records without a timestamp have their own bucket, -1.
    """

    cdef:
        RecordCursor _cursor
        int64_t _bucket_ms
        Bucket* _buckets          # a hash table: _room is a power of two, at most half of it is used
        int64_t _room, _used
        Bucket* _last

    def __cinit__(
        self, int64_t start, int64_t end, int64_t bucket_ms, *, int64_t decompressed_max=1 << 30, bint check_crcs=True
    ):
        if bucket_ms < 1:
            raise ValueError("a bucket must be at least 1 ms wide")
        self._bucket_ms = bucket_ms
        self._cursor = RecordCursor(start, end, decompressed_max, check_crcs)
        self._room = 64
        self._buckets = <Bucket*>calloc(<size_t>self._room, sizeof(Bucket))
        if self._buckets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._buckets)

    @property
    def next_offset(self) -> int:
        return min(self._cursor.next_offset, self._cursor.end)

    def count(self, records, aborted=()) -> None:
        """Count the records in a record set. Raises RecordsDamaged."""
        cdef Counted status
        self._cursor.load(records, aborted)
        try:
            while True:
                with nogil:
                    status = self._count()
                if status == COUNT_NO_MEMORY:
                    raise MemoryError
                if status == COUNT_DAMAGED or status == COUNT_NEEDS_GIL and not self._cursor.open_run():
                    raise RecordsDamaged(self._cursor.damaged_at, damage_words(self._cursor.damage))
                if status == COUNT_DONE:
                    return
                with nogil:
                    status = self._count_run()
                if status == COUNT_NO_MEMORY:
                    raise MemoryError
                if status != COUNT_DONE:
                    raise RecordsDamaged(self._cursor.damaged_at, damage_words(self._cursor.damage))
        finally:
            self._cursor.unload()

    def buckets(self) -> dict:
        """{start in ms: (records, bytes)}"""
        cdef int64_t i
        return {
            self._buckets[i].start: (self._buckets[i].records, self._buckets[i].size)
            for i in range(self._room) if self._buckets[i].records
        }

    cdef Counted _count(self) noexcept nogil:
        cdef RunStatus status
        cdef Counted counted
        while True:
            status = self._cursor.next_run()
            if status == RUN_READY:
                counted = self._count_run()
                if counted != COUNT_DONE:
                    return counted
            elif status == RUN_NEEDS_GIL:
                return COUNT_NEEDS_GIL
            elif status == RUN_DAMAGED:
                return COUNT_DAMAGED
            else:
                return COUNT_DONE

    cdef Counted _count_run(self) noexcept nogil:
        cdef:
            Row row
            RowStatus status
            Run* run = &self._cursor.run
            int64_t floor = self._cursor.next_offset
            int64_t end = self._cursor.end
            Bucket* bucket
        while True:
            status = next_row(run, &row)
            if status != ROW_OK:
                break
            if row.offset < floor:
                continue
            if row.offset >= end:
                run.next_offset = end
                status = ROW_NONE
                break
            bucket = self._bucket_of(row.timestamp)
            if bucket == NULL:
                return COUNT_NO_MEMORY
            bucket.records += 1
            bucket.size += (row.key_size if row.key_size > 0 else 0) + <int64_t>(row.value_size if row.value_size > 0 else 0)
        if status != ROW_NONE:
            self._cursor._damaged(DAMAGE_RECORD, run.base_offset)
            return COUNT_DAMAGED
        self._cursor.finish_run()
        return COUNT_DONE

    cdef Bucket* _bucket_of(self, int64_t timestamp) noexcept nogil:
        cdef int64_t start = timestamp
        cdef int64_t past
        if timestamp != NO_TIMESTAMP:
            past = timestamp % self._bucket_ms
            if past < 0:
                past += self._bucket_ms
            # Timestamps further in the past get buckets of their own, as the subtraction could overflow.
            start = timestamp - past if timestamp >= -(<int64_t>1 << 62) else timestamp
        if self._last != NULL and self._last.start == start:
            return self._last
        if 2 * self._used >= self._room and not self._grow():
            return NULL
        self._last = place_of(self._buckets, self._room, start)
        if self._last.records == 0:
            self._last.start = start
            self._used += 1
        return self._last

    cdef bint _grow(self) noexcept nogil:
        cdef Bucket* bigger = <Bucket*>calloc(<size_t>(2 * self._room), sizeof(Bucket))
        cdef int64_t i
        if bigger == NULL:
            return False
        for i in range(self._room):
            if self._buckets[i].records:
                place_of(bigger, 2 * self._room, self._buckets[i].start)[0] = self._buckets[i]
        free(self._buckets)
        self._buckets = bigger
        self._room *= 2
        self._last = NULL
        return True


# The place of a bucket, or the free place for it.
cdef Bucket* place_of(Bucket* buckets, int64_t room, int64_t start) noexcept nogil:
    cdef uint64_t at = (<uint64_t>start * <uint64_t>0x9E3779B97F4A7C15) >> 20
    while True:
        at &= <uint64_t>(room - 1)
        if buckets[at].records == 0 or buckets[at].start == start:
            return &buckets[at]
        at += 1
