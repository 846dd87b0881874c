"""How long requests take, by API and stage, and the error codes of their responses, in shared memory.

Each process has a row and is its only writer: a cell is one aligned int64, which readers load as it is. What they read of
a histogram may be a few requests apart from each other. A row outlives its process: the next incarnation adds to it.

Buckets bound the relative error: from 16 us on, a value lies at most 1/16 above the lower bound of its bucket
(docs/decisions/0026-metrics.md).
"""
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from kbroker._ext.base.atomics cimport kb_load_relaxed_i64
from kbroker._ext.base.buffers cimport region_bytes

TOTAL, QUEUE, LOCAL, REMOTE = STAGE_TOTAL, STAGE_QUEUE, STAGE_LOCAL, STAGE_REMOTE
THROTTLE, RESPONSE_QUEUE, SEND = STAGE_THROTTLE, STAGE_RESPONSE_QUEUE, STAGE_SEND
FOLLOWER_ROW, FLUSH_ROW, ZOOKEEPER_ROW, ELECTION_ROW = ROW_FOLLOWER, ROW_FLUSH, ROW_ZOOKEEPER, ROW_ELECTION
ROW_COUNT = ROWS


def region_size(process_count: int) -> int:
    """Bytes of a region for so many processes; only what is used takes memory."""
    return process_count * PROCESS_CELLS * sizeof(int64_t)


cdef int64_t lower_bound(int bucket) noexcept nogil:
    if bucket < SUB_BUCKETS:
        return bucket
    return <int64_t>(SUB_BUCKETS + bucket % SUB_BUCKETS) << (bucket // SUB_BUCKETS - 1)


cdef class RequestTimes:
    """The row of one process, its only writer. process: its index in the process table."""

    def __cinit__(self, region, int process):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        if process < 0 or size < <Py_ssize_t>((process + 1) * PROCESS_CELLS * sizeof(int64_t)):
            raise ValueError(f"a region of {size} bytes has no row for process {process}")
        self._region = region
        self.cells = <int64_t*>start + process * <Py_ssize_t>PROCESS_CELLS

    def note(self, int row, int stage, int64_t ns):
        """Python face of record."""
        if not 0 <= row < ROWS or not 0 <= stage < STAGES:
            raise IndexError(f"no histogram {row}, {stage}")
        self.record(row, <Stage>stage, ns)

    def note_error(self, int api_key, int error_code, int64_t count=1):
        """``count`` results of an API had this error code; 0 is none."""
        self.count_error(row_of(api_key), error_code, count)


cdef class TimesView:
    """All rows of a region as one, for who reads them."""

    cdef object _region
    cdef int64_t* cells
    cdef int processes

    def __cinit__(self, region, int process_count):
        cdef Py_ssize_t size = 0
        self.cells = <int64_t*>region_bytes(region, &size)
        if size < <Py_ssize_t>(process_count * PROCESS_CELLS * sizeof(int64_t)):
            raise ValueError(f"a region of {size} bytes has no rows for {process_count} processes")
        self._region = region
        self.processes = process_count

    cdef const int64_t* histogram_of(self, int process, int row, int stage) noexcept nogil:
        return self.cells + process * <Py_ssize_t>PROCESS_CELLS + (row * STAGES + stage) * HISTOGRAM_CELLS

    def count(self, int row, int stage) -> int:
        """The number of values in a histogram."""
        cdef int process
        cdef int64_t found = 0
        if not 0 <= row < ROWS or not 0 <= stage < STAGES:
            raise IndexError(f"no histogram {row}, {stage}")
        for process in range(self.processes):
            found += kb_load_relaxed_i64(self.histogram_of(process, row, stage) + CELL_COUNT)
        return found

    def histogram(self, int row, int stage) -> bytes:
        """The cells of a histogram, for ``summary``."""
        cdef int64_t found[HISTOGRAM_CELLS]
        cdef const int64_t* cells
        cdef int process, i
        cdef int64_t largest
        if not 0 <= row < ROWS or not 0 <= stage < STAGES:
            raise IndexError(f"no histogram {row}, {stage}")
        memset(found, 0, sizeof(found))
        for process in range(self.processes):
            cells = self.histogram_of(process, row, stage)
            if kb_load_relaxed_i64(cells + CELL_COUNT) == 0:
                continue
            largest = max(found[CELL_MAX], kb_load_relaxed_i64(cells + CELL_MAX))
            for i in range(HISTOGRAM_CELLS):
                found[i] += kb_load_relaxed_i64(cells + i)
            found[CELL_MAX] = largest
        return PyBytes_FromStringAndSize(<const char*>found, sizeof(found))

    def errors(self, int row) -> list:
        """[(error code, results that had it)...] of an API."""
        return self._counts(row, FIRST_ERROR, ERROR_CELLS, -1)

    def versions(self, int row) -> list:
        """[(API version, its requests)...] of an API; there are as many in all as total times."""
        return self._counts(row, FIRST_VERSION, VERSION_CELLS, 0)

    cdef list _counts(self, int row, Py_ssize_t first, int count, int lowest):
        """What all processes have counted of an API, by number from ``lowest`` on; none is zero."""
        cdef int process, i
        cdef int64_t total
        cdef list found = []
        if not 0 <= row < ROWS:
            raise IndexError(f"no API {row}")
        for i in range(count):
            total = 0
            for process in range(self.processes):
                total += kb_load_relaxed_i64(
                    self.cells + process * <Py_ssize_t>PROCESS_CELLS + first + row * count + i)
            if total:
                found.append((lowest + i, total))
        return found


def summary(bytes now not None, bytes before=None, tuple quantiles=(), int64_t count=-1) -> tuple:
    """(number of values, mean, [value at each quantile]) of what a histogram got since ``before``, in microseconds.

    count: how many values there were in all, if zeros were not recorded. A value is the middle of its bucket.
    """
    cdef int64_t cells[HISTOGRAM_CELLS]
    cdef const int64_t* earlier
    cdef int64_t recorded = 0, zeros = 0, wanted, reached
    cdef int i, bucket = 0
    cdef double quantile
    cdef list found = []
    if PyBytes_GET_SIZE(now) != sizeof(cells) or (before is not None and PyBytes_GET_SIZE(before) != sizeof(cells)):
        raise ValueError("not the cells of a histogram")
    memcpy(cells, PyBytes_AS_STRING(now), sizeof(cells))
    if before is not None:
        earlier = <const int64_t*>PyBytes_AS_STRING(before)
        cells[CELL_SUM] -= earlier[CELL_SUM]
        for i in range(FIRST_BUCKET, HISTOGRAM_CELLS):
            cells[i] -= earlier[i]
    for i in range(FIRST_BUCKET, HISTOGRAM_CELLS):
        recorded += cells[i]
    if count > recorded:
        zeros = count - recorded
    else:
        count = recorded
    if count == 0:
        return 0, 0.0, [0.0] * len(quantiles)
    for quantile in quantiles:
        wanted = max(<int64_t>1, min(count, <int64_t>(quantile * <double>count + 0.9999999)))
        reached = zeros
        bucket = -1
        while reached < wanted and bucket < BUCKETS - 1:
            bucket += 1
            reached += cells[FIRST_BUCKET + bucket]
        found.append(0.0 if bucket < 0 else middle_of(bucket))
    return count, <double>cells[CELL_SUM] / <double>count, found


cdef double middle_of(int bucket) noexcept:
    if bucket < SUB_BUCKETS:
        return bucket
    return (<double>lower_bound(bucket) + <double>lower_bound(bucket + 1)) / 2


def powers(bytes cells not None) -> tuple:
    """(sum in microseconds, [how many values are below 16 us, 32 us, ... 2**31 us]) of a histogram."""
    cdef const int64_t* of = <const int64_t*>PyBytes_AS_STRING(cells)
    cdef int64_t below = 0
    cdef int group, i
    cdef list found = []
    if PyBytes_GET_SIZE(cells) != HISTOGRAM_CELLS * <Py_ssize_t>sizeof(int64_t):
        raise ValueError("not the cells of a histogram")
    for group in range(GROUPS_OF_BUCKETS):
        for i in range(SUB_BUCKETS):
            below += of[FIRST_BUCKET + group * SUB_BUCKETS + i]
        found.append(below)
    return of[CELL_SUM], found


def bounds() -> list:
    """The upper bound of each bucket in microseconds, exclusive."""
    return [lower_bound(bucket + 1) for bucket in range(BUCKETS)]


def bucket_number(int64_t us) -> int:
    """The bucket of a value, for tests."""
    return bucket_of(<uint64_t>us)
