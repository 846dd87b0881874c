"""What clients have used of their quotas, in shared memory: all processes of the broker add to one count, and see it.

A client may use at once what its quota gives it in all samples but one (``quota.window.num - 1``), as with Kafka's rate, which is
that of at least as many samples. It is told to wait for as long as what it has used beyond that takes at its rate. That is
Kafka's throttle time, too, but Kafka forgets each sample some seconds later: what many clients use in excess while they
wait is never paid (8 % for a hundred that share a quota and send every second), and one that has used up its samples
stops until the first of them is forgotten, and then uses all of them up again.

A cell has a key and a time (us): when everything that was used so far would have been used at the rate of the quota; and how
much that was since its owner has it, for people. It belongs to one quota of one client, or of all that share it. All processes move the time by compare-and-exchange; a cell
for each process would spare that, but then every check would read as many cells.

BOUND: CELLS. A key is looked for in PROBES cells from its own place on; a new one takes one that is free, or whose time is
over, and which so is as good as new. If all are in use, it shares the first one with its owner: both are throttled as if they
were one client, and none escapes its quota. Where two processes give a cell to a key at the same time, it may have two until
the next period, in which both processes find the first one.
"""
from libc.stdint cimport uint8_t

from kbroker._ext.base.atomics cimport (
    kb_add_fetch_i64,
    kb_load_relaxed_i64,
    kb_load_u64,
    kb_replace_u64,
    kb_store_relaxed_i64,
)
from kbroker._ext.base.buffers cimport region_bytes

CELLS = 8192

cdef enum:
    PROBES = 16
    CELL_WORDS = 8  # key, time, amount: two cells have no cache line in common

cdef int64_t THROTTLE_MS_MAX = 0x7FFFFFFF
# BOUND: how much use in excess is remembered.
cdef int64_t AHEAD_US_MAX = 3600 * 1000000


def region_size(cells: int = CELLS) -> int:
    """The bytes of a table."""
    return cells * CELL_WORDS * sizeof(uint64_t)


cdef class QuotaTable:
    """region: of ``region_size()``, filled with zeros at first. samples: of Kafka's windows."""

    def __cinit__(self, region, int64_t samples, int64_t sample_ms):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        self._region = region
        self.words = <uint64_t*>start
        self.cells = size // region_size(1)
        if samples < 1 or sample_ms < 1 or self.cells < 1:
            raise ValueError(f"no quotas have {samples} samples of {sample_ms} ms in {size} bytes")
        self.sample_ms = sample_ms
        self.burst_ms = max(samples - 1, <int64_t>1) * sample_ms

    cdef uint64_t* find(self, uint64_t key, int64_t now_us) noexcept nogil:
        """The cell of a key."""
        cdef int64_t home = <int64_t>(key % <uint64_t>self.cells)
        cdef uint64_t* cell
        cdef uint64_t owner
        cdef int i, attempt, taken
        # A cell that was just taken is found by the next look, or one of another process before it.
        for attempt in range(3):
            for i in range(PROBES):
                cell = self.words + (home + i) % self.cells * CELL_WORDS
                if kb_load_u64(cell) == key:
                    return cell
            taken = 0
            for i in range(2 * PROBES):
                cell = self.words + (home + i % PROBES) % self.cells * CELL_WORDS
                owner = kb_load_u64(cell)
                if owner == 0 or (i >= PROBES and <int64_t>kb_load_u64(&cell[1]) <= now_us):
                    taken = kb_replace_u64(cell, owner, key)
                if taken:
                    kb_store_relaxed_i64(<int64_t*>&cell[2], 0)
                    break
        return self.words + home * CELL_WORDS

    cdef void locate(self, Limit* limit, int64_t now_ms) noexcept nogil:
        cdef int64_t period = now_ms // self.sample_ms
        if limit.cell == NULL or limit.period != period:
            limit.cell = self.find(limit.key, now_ms * 1000)
            limit.period = period

    cdef int64_t ahead_us(self, Limit* limit, int64_t now_ms) noexcept nogil:
        self.locate(limit, now_ms)
        return max(<int64_t>kb_load_u64(&limit.cell[1]) - now_ms * 1000, <int64_t>0)

    cdef int64_t excess_ms(self, Limit* limit, int64_t now_ms) noexcept nogil:
        cdef int64_t excess_us = self.ahead_us(limit, now_ms) - self.burst_ms * 1000
        if excess_us <= 0:
            return 0
        return min(max(excess_us // 1000, <int64_t>1), THROTTLE_MS_MAX)

    cdef int64_t burst_amount(self, const Limit* limit) noexcept nogil:
        return <int64_t>min(max(limit.rate * <double>self.burst_ms / 1000, 1.0), <double>0x7FFFFFFF)

    cdef void record(self, Limit* limit, int64_t amount, int64_t now_ms) noexcept nogil:
        cdef int64_t now_us = now_ms * 1000
        cdef uint64_t before
        cdef int64_t cost_us, due_us
        if amount <= 0:
            return
        cost_us = <int64_t>min(<double>amount * 1e6 / limit.rate, <double>limit.ahead_us_max)
        self.locate(limit, now_ms)
        kb_add_fetch_i64(<int64_t*>&limit.cell[2], amount)
        while True:
            before = kb_load_u64(&limit.cell[1])
            due_us = min(max(<int64_t>before, now_us) + cost_us, now_us + limit.ahead_us_max)
            # Atomic, since other processes count too; the time guards no other memory.
            if kb_replace_u64(&limit.cell[1], before, <uint64_t>due_us):
                return

    cdef void record_time(self, uint64_t key, double rate, int64_t spent_ns, int64_t now_ms) noexcept nogil:
        cdef Limit limit
        limit.key = key
        limit.rate = rate
        limit.ahead_us_max = 2 * self.burst_ms * 1000  # as that of a Quota which forgets
        limit.cell = NULL
        self.record(&limit, spent_ns, now_ms)


cdef class Quota:
    """A quota of a client; the Python face of a Limit.

    key: the client's, any hash that all processes of the broker agree on. rate: units a second. forgets: what is used in
    excess of more than another burst.
    """

    def __init__(self, QuotaTable table not None, key: int, double rate, bint forgets=False):
        self.table = table
        self.limit.key = <uint64_t>((key & 0xFFFFFFFFFFFFFFFF) or 1)
        self.limit.rate = max(rate, 1e-3)
        self.limit.ahead_us_max = table.burst_ms * 1000 + (table.burst_ms * 1000 if forgets else AHEAD_US_MAX)

    def add(self, int64_t amount, int64_t now_ms) -> None:
        self.table.record(&self.limit, amount, now_ms)

    def throttle_ms(self, int64_t now_ms) -> int:
        """How long its clients have to wait until they are within the quota, 0 if they are."""
        return self.table.excess_ms(&self.limit, now_ms)

    def ahead_ms(self, int64_t now_ms) -> int:
        """How long what they have used takes at their rate, from now on."""
        return self.table.ahead_us(&self.limit, now_ms) // 1000

    def used(self, int64_t now_ms) -> int:
        """What its clients have used since they have its cell."""
        self.table.locate(&self.limit, now_ms)
        return kb_load_relaxed_i64(<const int64_t*>&self.limit.cell[2])
