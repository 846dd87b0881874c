# Reads the partitions of one fetch: errors, offsets, and the places of their bytes.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memset

from kbroker._ext.fetch.fetch_aborted cimport AbortedList
from kbroker._ext.fetch.fetch_files cimport FileCache
from kbroker._ext.fetch.fetch_purgatory cimport FETCH_LOG_END, FETCH_TXN_COMMITTED, FetchTerms
from kbroker._ext.fetch.fetch_reply cimport PartitionResponse
from kbroker._ext.fetch.fetch_segments cimport FoundRange
from kbroker._ext.fetch.fetch_sessions cimport FetchPartition, FetchSession
from kbroker._ext.fetch.topic_registry cimport TopicRegistry
from kbroker._ext.shared.log_figures cimport LogFigures
from kbroker._ext.shared.partition_table cimport LogEnd, PartitionTable, SlotData
from kbroker._ext.shared.replication_quota cimport ReplicationQuota
from kbroker._ext.shared.request_times cimport RequestTimes


cdef struct PartitionResult:
    int32_t entry            # of the session
    PartitionResponse response   # its file carries a reference of this result while size is above 0
    int32_t aborted_start    # its first one in the reader's list


cdef inline void clear_offsets(PartitionResponse* response) noexcept:
    response.high_watermark = -1
    response.last_stable_offset = -1
    response.log_start_offset = -1


cdef inline void clear_response(PartitionResponse* response) noexcept:
    memset(response, 0, sizeof(PartitionResponse))
    response.file = -1
    response.aborted_count = -1
    response.diverging_epoch = response.preferred_replica = -1
    clear_offsets(response)


# Up to where a fetch reads.
cdef inline LogEnd* end_for(SlotData* slot, int8_t isolation) noexcept:
    if isolation == FETCH_LOG_END:
        return &slot.log_end
    return &slot.last_stable if isolation == FETCH_TXN_COMMITTED else &slot.high_watermark


cdef class PartitionReader:
    cdef PartitionTable table
    cdef TopicRegistry registry
    cdef FileCache files
    cdef list log_dirs
    cdef PartitionResult* results
    cdef int32_t result_count
    cdef int32_t result_capacity
    cdef AbortedList aborted          # of the results
    # Damage that is not reported yet: (slot, its incarnation, segment base offset, position, problem).
    cdef list damages
    cdef uint64_t starved_total       # evaluations that found no bytes because every place of `files` is in flight
    cdef SlotData slot                # of the partition that was read last
    # Ends of epochs before the last two of a log: (slot, its incarnation, its leader epoch, epoch) -> (epoch, end
    # offset).
    cdef dict epoch_ends
    cdef list epoch_questions         # such keys, for which owners have to be asked
    cdef set epochs_asked             # of those, the ones that are not answered yet
    cdef public ReplicationQuota quota  # of a leader (KIP-73); None: there is no limit
    cdef int32_t undecided            # partitions of the last evaluate() that wait for such an answer
    cdef bint has_lost_leaders        # another broker may lead one of its partitions
    # select(replicas, listener index, id of the most caught up) -> replica to read from, -1: this broker. None: always this one.
    cdef public object select
    cdef bytes rack                   # of the consumer whose partitions are evaluated; None: it reads here
    cdef readonly uint64_t redirected_total
    cdef readonly int64_t bytes_out   # of records in responses to consumers
    cdef readonly int64_t reads       # of partitions, and those that failed
    cdef readonly int64_t failed_reads
    cdef public LogFigures figures    # what is read of each partition; None: nobody wants to know
    cdef public RequestTimes times    # the error codes of responses; likewise
    cdef int count_read(self, const FetchPartition* entry, bint failed) except -1
    # The results are sent: count their bytes and error codes.
    cdef int count_sent(self, FetchSession session, const FetchTerms* terms) except -1
    # Whether the partition has no records for this follower now (KIP-73).
    cdef bint is_throttled(self, const FetchPartition* entry, const FetchTerms* terms) except -1
    cdef int count_throttled(self, FetchSession session) except -1
    cdef int make_results(self, int32_t count) except -1
    cdef int64_t evaluate(self, FetchSession session, FetchTerms* terms, bint* failed) except -1
    # The same for a consumer in this rack: it may be sent to other replicas.
    cdef int64_t evaluate_in_rack(self, FetchSession session, FetchTerms* terms, bytes rack, bint* failed) except -1
    cdef bint redirect(self, FetchPartition* entry, const FetchTerms* terms, PartitionResponse* response) except *
    cdef int drop_results(self) except -1
    cdef bint must_respond(self, const SlotData* slot, const FetchPartition* entry, const FetchTerms* terms) noexcept
    cdef int16_t read_partition(
        self, FetchPartition* entry, const FetchTerms* terms, int64_t bytes_max, bint at_least_one, PartitionResponse* response,
    ) except *
    cdef int16_t compare_epochs(self, FetchPartition* entry, PartitionResponse* response) except *
    cdef tuple epoch_end(self, FetchPartition* entry)
    cdef list take_epoch_questions(self)
    cdef int put_epoch_ends(self, list responses) except -1
    cdef int settle(self, FetchSession session, const FetchTerms* terms, int network_index) except -1
    cdef int16_t find_bytes(
        self, FetchPartition* entry, const FetchTerms* terms, SlotData* slot, LogEnd* end, int64_t bytes_max,
        bint at_least_one, FoundRange* found,
    ) except *
    cdef int16_t add_aborted(
        self, FetchPartition* entry, const SlotData* slot, const LogEnd* end, FoundRange* found
    ) except *
