# The fast path of offset commits through an io worker: from the bytes of a lane message to those of the response.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from kbroker._ext.base.growing cimport Bytes
from kbroker._ext.coordinator.offset_requests cimport Partition
from kbroker._ext.coordinator.offset_store cimport OffsetStore, Text
from kbroker._ext.log.committed_queue cimport Sink
from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.shared.lane cimport Lane
from kbroker._ext.shared.log_figures cimport LogFigures


cdef enum:
    # BOUND: limits of a request on the fast path; few clients commit more at once.
    TOPICS_MAX = 16
    PARTITIONS_MAX = 192
    BATCH_BYTES_MAX = 16384      # coordinator.offsets.batches.SURELY_FITS_BYTES


cdef struct Topic:
    Text name                    # found by its id, it is that of the image
    const uint8_t* id            # NULL before version 10
    Py_ssize_t known_count       # partitions it has
    int32_t first                # of its partitions in the request
    int32_t count


cdef struct Request:
    int version
    int32_t epoch
    Text group
    Text member
    Text instance                # data NULL: none
    int topic_count
    int partition_count
    Topic topics[TOPICS_MAX]
    Partition partitions[PARTITIONS_MAX]


# Precedes a response whose records are not committed yet.
cdef struct WaitingResponse:
    int64_t started_ns
    uint32_t peer                # incarnation of the network process that sent the request
    int32_t network


# The commits of one shard. Their responses wait in the queue of its log.
cdef class ShardCommits(Sink):
    cdef readonly object shard
    cdef object machine          # the owner of the next three
    cdef object offsets
    cdef dict groups
    cdef OffsetStore store
    cdef LogAppender appender
    cdef CommitPath path
    cdef str topic
    cdef int partition
    cdef bint serves(self, uint32_t incarnation) except *
    cdef bint finds_topics(self, Request* request) except *
    cdef bint admits(self, const Request* request) except *
    cdef int commit(
        self, int network, uint32_t peer, uint64_t token, const Request* request, int64_t now_ms
    ) except -1
    cdef int write_response(self, uint64_t token, const Request* request) except -1
    cdef void count(self, int records, Py_ssize_t size) noexcept
    cdef int take_records(self, const Request* request, int64_t base_offset, int64_t now_ms) except -1
    cdef int put_response(self, const WaitingResponse* head, const uint8_t* response, Py_ssize_t size) except -1
    cdef int put_error(self, const WaitingResponse* head, const uint8_t* response, object error) except -1


cdef class CommitPath:
    cdef object worker
    cdef object active
    cdef object error_text
    cdef list lanes
    cdef dict shards              # slot -> ShardCommits
    cdef Bytes* outboxes         # packed parts for each network process
    cdef int network_count
    cdef uint8_t* batch          # BATCH_BYTES_MAX
    cdef Bytes response            # the part that is being built
    # Set when a commit has set a timer that is due earlier than any before.
    cdef public bint timer_set
    # Errors have been put into outboxes since the last turn ended, perhaps outside a turn.
    cdef readonly bint has_errors
    cdef readonly int64_t commits
    cdef readonly int64_t commit_ns
    cdef readonly int64_t offsets_committed
    cdef readonly int64_t batches        # appended, and their bytes
    cdef readonly int64_t bytes_total
    cdef public LogFigures figures       # where these are counted by partition; None: nobody wants to know
    # Write the first part of a message, as a whole, and return the appender; None: it must take the slow path.
    cdef LogAppender take(self, Lane lane, const uint8_t* part, Py_ssize_t size, int64_t now_ms)
    # Send the responses that are ready; False when the lane is full.
    cdef bint send(self, Lane lane) except -1
    # The network process was restarted.
    cdef void forget(self, int network) noexcept


# Bytes of the first part of a message including its size field; all of the message when it is damaged.
cdef Py_ssize_t part_size(const uint8_t* message, Py_ssize_t size) noexcept
