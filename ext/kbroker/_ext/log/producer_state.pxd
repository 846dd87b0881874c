# The state of each idempotent producer of a log: its epoch and last five batches, to detect duplicates and gaps.
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._ext.shared.partition_table cimport LogEnd

cdef enum:
    BATCHES_KEPT = 5       # COMPAT: a client has at most five batches in flight


cdef enum SequenceCheck:
    SEQUENCE_OK = 0
    SEQUENCE_DUPLICATE = 1       # seen before; the original offsets are in *found
    SEQUENCE_OUT_OF_ORDER = 2
    SEQUENCE_OLD_EPOCH = 3


cdef struct ProducerBatch:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta         # last offset - first offset; the same for sequence numbers


cdef class ProducerEntry:
    cdef readonly int64_t producer_id
    cdef readonly int64_t last_timestamp
    cdef readonly int64_t current_txn_first_offset   # -1: no open transaction
    cdef readonly int32_t coordinator_epoch
    cdef readonly int16_t producer_epoch
    cdef int batch_count
    cdef ProducerBatch[BATCHES_KEPT] batches         # oldest first
    # Place of the first batch of the open transaction, or the log start if that is above it. Segment -1: unknown.
    cdef LogEnd transaction_place
    cdef void add_batch(self, int16_t epoch, const ProducerBatch* batch) noexcept nogil
    cdef bint has_ended(self, const ProducerBatch* batch) noexcept nogil
    cdef int32_t last_sequence(self) noexcept nogil


cdef class ProducerState:
    cdef readonly dict entries                       # producer id -> ProducerEntry
    cdef readonly int64_t end_offset                 # the state covers all offsets below it
    cdef readonly bint abridged                      # from a snapshot, which has only the last batch of each producer
    cdef dict open_transactions                      # producer id -> ProducerEntry, in order of their first offsets
    cdef int check(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta, ProducerBatch* found
    ) except -1
    cdef int update(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta, int64_t last_offset,
        int64_t timestamp, bint transactional, const LogEnd* place
    ) except -1
    cdef int end_transaction(
        self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp
    ) except -1
    # The producer with the oldest open transaction; None if there is none.
    cdef ProducerEntry oldest_open(self)
    # First offset of the oldest open transaction of any other producer; `otherwise` if there is none.
    cdef int64_t stable_without(self, int64_t producer_id, int64_t otherwise) except -2
