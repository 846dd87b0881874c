# How long requests take, as histograms in shared memory, and how they end. See request_times.pyx.
from libc.stdint cimport int64_t, uint64_t

from kbroker._ext.base.api_keys cimport API_WIDTH


cdef extern from *:
    int __builtin_clzll(unsigned long long value) noexcept nogil


# The stages of a request. In Kafka's words: TotalTimeMs, RequestQueueTimeMs and so on.
cdef enum Stage:
    STAGE_TOTAL = 0
    STAGE_QUEUE = 1
    STAGE_LOCAL = 2
    STAGE_REMOTE = 3           # waiting for replicas, data or time; 0 is not recorded
    STAGE_THROTTLE = 4         # 0 is not recorded
    STAGE_RESPONSE_QUEUE = 5
    STAGE_SEND = 6
    STAGES = 7


cdef enum:
    # The API keys, each with a row, and one for the Fetch requests of followers. The last three have no requests: their
    # totals are how long syncs of logs took, requests to ZooKeeper, and elections of leaders.
    ROW_FOLLOWER = API_WIDTH
    ROW_FLUSH = API_WIDTH + 1
    ROW_ZOOKEEPER = API_WIDTH + 2
    ROW_ELECTION = API_WIDTH + 3
    ROWS = API_WIDTH + 4
    # Microseconds below 16 have a bucket each; above, every power of two has 16.
    SUB_BITS = 4
    SUB_BUCKETS = 16
    GROUPS_OF_BUCKETS = 28
    BUCKETS = GROUPS_OF_BUCKETS * SUB_BUCKETS
    # What precedes the buckets of a histogram: count, sum and maximum in microseconds; to a whole cache line.
    CELL_COUNT = 0
    CELL_SUM = 1
    CELL_MAX = 2
    FIRST_BUCKET = 8
    HISTOGRAM_CELLS = FIRST_BUCKET + BUCKETS
    # Error codes from -1 on; those outside share the last cell.
    ERROR_CELLS = 160
    # API versions from 0 on; later ones share the last cell.
    VERSION_CELLS = 32
    FIRST_ERROR = ROWS * STAGES * HISTOGRAM_CELLS
    FIRST_VERSION = FIRST_ERROR + ROWS * ERROR_CELLS
    PROCESS_CELLS = FIRST_VERSION + ROWS * VERSION_CELLS


cdef inline int bucket_of(uint64_t us) noexcept nogil:
    cdef int power
    if us < SUB_BUCKETS:
        return <int>us
    power = 63 - __builtin_clzll(us)
    if power >= GROUPS_OF_BUCKETS + SUB_BITS - 1:
        return BUCKETS - 1
    return (power - SUB_BITS + 1) * SUB_BUCKETS + <int>((us >> (power - SUB_BITS)) & (SUB_BUCKETS - 1))


cdef class RequestTimes:
    cdef object _region          # keeps the mapping alive
    cdef int64_t* cells          # of this process
    # row: an API key from 0 to API_WIDTH - 1, or ROW_FOLLOWER. A negative time counts as 0.
    cdef inline void record(self, int row, Stage stage, int64_t ns) noexcept nogil:
        cdef int64_t us = ns // 1000 if ns > 0 else 0
        cdef int64_t* cells = self.cells + (row * STAGES + <int>stage) * HISTOGRAM_CELLS
        cells[CELL_COUNT] += 1
        cells[CELL_SUM] += us
        if us > cells[CELL_MAX]:
            cells[CELL_MAX] = us
        cells[FIRST_BUCKET + bucket_of(<uint64_t>us)] += 1

    cdef inline void count_error(self, int row, int error_code, int64_t count=1) noexcept nogil:
        cdef int64_t* cells = self.cells + FIRST_ERROR + row * ERROR_CELLS
        cells[error_code + 1 if -1 <= error_code < ERROR_CELLS - 1 else ERROR_CELLS - 1] += count

    cdef inline void count_version(self, int row, int version) noexcept nogil:
        self.cells[FIRST_VERSION + row * VERSION_CELLS + (version if 0 <= version < VERSION_CELLS else VERSION_CELLS - 1)] += 1


cdef inline int row_of(int api_key) noexcept nogil:
    return api_key if 0 <= api_key < API_WIDTH else API_WIDTH - 1
