# The network side of a produce: request bytes to descriptors, results to response bytes.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.base.wire cimport Reader
from kbroker._ext.fetch.topic_registry cimport Topic, TopicRegistry
from kbroker._ext.log.refused_batches cimport RefusedBatches
from kbroker._ext.shared.arena cimport Arena
from kbroker._ext.shared.descriptors cimport ProduceDescriptor, ProduceResult
from kbroker._ext.sockets.requests cimport ProducePart, ProduceTopic, Request, RequestTable
from kbroker._ext.sockets.verdicts cimport Verdicts


# Descriptors collected in one turn for one io worker.
cdef struct Bundle:
    ProduceDescriptor* items
    uint32_t count
    uint32_t capacity


cdef class ProducePath:
    cdef Arena arena
    cdef bint may_write_internal        # whether the client of the current request may write to internal topics
    cdef Verdicts access                # what else it may do
    cdef uint64_t quota_key             # of its time, and units a second; 0: there is no quota
    cdef double quota_rate
    cdef TopicRegistry topics
    cdef RequestTable requests
    cdef RefusedBatches refused         # by topic and partition: what no io worker has seen
    cdef int worker_count
    cdef Bundle* bundles
    # As of a FetchEncoder.
    cdef public object find_leaders
    cdef readonly uint32_t queued   # descriptors in all bundles
    cdef readonly int64_t bytes_in
    cdef int start(self, Request* request, Reader* body) except -1
    cdef int16_t transaction_error(self, const Request* request) except? -1
    cdef int16_t topic_error(self, Topic known, const ProduceTopic* topic) except? -1
    cdef int read_topics(self, Request* request, Reader* r) except -1
    # Reject a batch for a reason that passes, and what its producer has sent behind it.
    cdef int refuse(self, const Request* request, const ProducePart* part, const uint8_t* records, int32_t size) except -1
    # Whether the batch is behind one that was refused; then it has its error.
    cdef bint is_behind(self, const Request* request, ProducePart* part) except *
    cdef int read_partition(self, Request* request, Reader* r, object topic, int16_t error_code) except -1
    cdef int describe(self, const Request* request, int32_t ordinal) except -1
    cdef void take_back(self, const Request* request) noexcept nogil
    cdef int add_descriptor(self, int worker, const ProduceDescriptor* descriptor) except -1
    cdef int send_bundles(self, list lanes) except -1
    cdef void drop_bundle(self, int worker) noexcept nogil
    # Describe the open partitions of one io worker to its next incarnation; False if some had to fail instead.
    cdef bint repeat(self, Request* request, int worker) except *
    # Fail the open partitions of one io worker, which will not respond any more.
    cdef void fail(self, Request* request, int worker, int16_t error_code) noexcept nogil
    # Give the open partitions REQUEST_TIMED_OUT, whatever their results will be.
    cdef void note_timeout(self, Request* request) noexcept nogil
    cdef bint has_numbers(self, const ProducePart* part) noexcept nogil
    # Every open partition is appended: move what the response needs out of the request's arena block.
    cdef int leave_block(self, Request* request) except -1
    # Note a result; returns the request if it has all of them now, or if its bytes are not needed any more.
    cdef Request* take_result(self, const ProduceResult* result, const uint8_t* text) except? NULL
    # listener: index of the one that the client uses.
    cdef int encode(self, Request* request, int32_t throttle_ms, int listener) except -1
    cdef bytes add_leaders(self, Request* request, int listener)
