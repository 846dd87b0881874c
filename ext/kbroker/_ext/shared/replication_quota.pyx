"""The quotas of replication (KIP-73) in shared memory: all processes of the broker add to one count, and see it.

A quota has a ring of counts, each the bytes of one period of the monotonic clock; PARTS of them are a sample. The rate is
that of all counts in the ring, over the time since the oldest of them began, but at least one sample: what was not used
lately may be used now, for as long as the ring remembers.

A count is one aligned uint64: the low 24 bits of its period's number, and 40 bits of bytes, so that it is exchanged for
the next period's as a whole.
"""
from libc.stdint cimport uint8_t

from kbroker._ext.base.atomics cimport kb_load_u64, kb_replace_u64
from kbroker._ext.base.buffers cimport region_bytes

LEADER, FOLLOWER = range(2)
QUOTAS = 2
SAMPLES_MAX = 100  # BOUND: every check of a quota reads all its counts

cdef enum:
    BYTES_BITS = 40
    PARTS = 8

cdef uint64_t BYTES_MAX = (<uint64_t>1 << BYTES_BITS) - 1
cdef uint64_t PERIOD_MAX = (<uint64_t>1 << (64 - BYTES_BITS)) - 1
cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF


def region_size(sample_count: int) -> int:
    """The bytes of a region with all quotas, of so many samples each."""
    return QUOTAS * min(sample_count, SAMPLES_MAX) * PARTS * sizeof(uint64_t)


cdef class ReplicationQuota:
    """which: LEADER or FOLLOWER. rate: bytes a second; no limit until it is set."""

    def __cinit__(self, region, int which, int64_t sample_ms):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        self.count = <int>(size // region_size(1)) * PARTS
        if self.count < 1 or sample_ms < 1 or not 0 <= which < QUOTAS:
            raise ValueError(f"no quota {which} with samples of {sample_ms} ms in {size} bytes")
        self._region = region
        self.counts = <uint64_t*>start + which * self.count
        self.sample_ms = sample_ms
        self.period_ms = max(sample_ms // PARTS, <int64_t>1)
        self.rate = NO_LIMIT

    cdef int64_t total(self, int64_t now_ms, int64_t* span_ms) noexcept nogil:
        """The bytes of the counts that are not too old, and the time that they are from: at least one sample."""
        cdef int64_t period = now_ms // self.period_ms
        cdef int64_t oldest = period
        cdef int64_t found = 0
        cdef int64_t age
        cdef uint64_t one
        cdef int i
        for i in range(self.count):
            one = kb_load_u64(&self.counts[i])
            age = <int64_t>((<uint64_t>period - (one >> BYTES_BITS)) & PERIOD_MAX)
            if one & BYTES_MAX and age < self.count:
                found += <int64_t>(one & BYTES_MAX)
                oldest = min(oldest, period - age)
        span_ms[0] = max(now_ms - oldest * self.period_ms, self.sample_ms)
        return found

    cdef bint exceeded(self, int64_t now_ms) noexcept nogil:
        cdef int64_t span_ms = 0
        cdef int64_t found
        if self.rate == NO_LIMIT:
            return False
        found = self.total(now_ms, &span_ms)
        return <double>found * 1000 > <double>self.rate * <double>span_ms

    cdef void record(self, int64_t size, int64_t now_ms) noexcept nogil:
        cdef int64_t period = now_ms // self.period_ms
        cdef uint64_t* place = &self.counts[period % self.count]
        cdef uint64_t number = <uint64_t>period & PERIOD_MAX
        cdef uint64_t before, after
        while True:
            before = kb_load_u64(place)
            after = before & BYTES_MAX if before >> BYTES_BITS == number else 0
            after = number << BYTES_BITS | min(after + <uint64_t>size, BYTES_MAX)
            # Atomic, since other processes record too; the bytes are a count and guard no other memory.
            if kb_replace_u64(place, before, after):
                return

    def is_exceeded(self, int64_t now_ms) -> bool:
        """Python face of exceeded."""
        return self.exceeded(now_ms)

    def add(self, int64_t size, int64_t now_ms) -> None:
        """Python face of record. size: bytes, at least 0."""
        if size > 0:
            self.record(size, now_ms)

    def wait_ms(self, int64_t now_ms) -> int:
        """How long it takes at most until the rate is within the quota, if nothing is added; 0 if it is."""
        cdef int64_t span_ms = 0
        cdef double found, needed
        if not self.exceeded(now_ms):
            return 0
        found = <double>self.total(now_ms, &span_ms)
        needed = found * 1000 / <double>max(self.rate, <int64_t>1) - <double>span_ms
        return <int64_t>min(max(needed, 1.0), <double>(self.count * self.period_ms))
