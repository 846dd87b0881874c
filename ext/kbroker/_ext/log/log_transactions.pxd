# Producers and transactions of one log: which batches may follow, what is open. See log_transactions.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from kbroker._ext.base.error_codes cimport DUPLICATE_SEQUENCE_NUMBER, OUT_OF_ORDER_SEQUENCE_NUMBER
from kbroker._ext.log.producer_state cimport ProducerBatch, ProducerEntry, ProducerState
from kbroker._ext.record.record_batch cimport BatchInfo
from kbroker._ext.shared.partition_table cimport LogEnd


cdef enum:
    # How an append of a transactional batch was verified, other than by a number of begin_verification (KIP-890).
    NOT_ASKED = 0                # not at all: its transaction must already be open in this log
    NO_QUESTION = -1             # verification is disabled, or the caller has taken care of it


# A producer whose next transactional batch waits for the transaction coordinator's response.
cdef class Verification:
    cdef int64_t number          # of this verification; a marker in the meantime invalidates it
    cdef int64_t started_ms
    cdef int32_t lowest_sequence
    cdef int16_t producer_epoch
    cdef bint starts_at_zero     # the batch also adds the partition to the transaction


cdef class LogTransactions:
    cdef ProducerState producers
    cdef dict verifications                      # producer id -> Verification
    cdef int64_t last_verification
    cdef list unreplicated                       # (LogEnd of its start as tuple, offset of its marker): ended transactions
    cdef uint32_t aborted_version                # see SlotData
    cdef object error_text                       # str of the last rejection

    # Whether a batch or marker may follow: 0, or a Kafka error code that `error_text` explains. Changes nothing else.
    # A client's batch; DUPLICATE_SEQUENCE_NUMBER: it is already in the log, *found says where.
    cdef int check_batch(self, const BatchInfo* info, int64_t verification, ProducerBatch* found) except -1
    # A batch of a coordinator of this broker: it has no sequence number.
    cdef int check_coordinated(self, const BatchInfo* info) except -1
    # A marker. entry: of its producer, or None.
    cdef int check_marker(
        self, ProducerEntry entry, int16_t producer_epoch, int32_t coordinator_epoch, int transaction_version
    ) except -1
    cdef int check_open(self, const BatchInfo* info, ProducerEntry entry, int64_t verification) except -1
    cdef int reject_epoch(self, const BatchInfo* info) except -1

    # Whether a client's transactional batch has to be verified before it is appended: NO_QUESTION if not (its
    # transaction is open, or the append will reject it), otherwise the number to pass to the append.
    cdef int64_t begin_verification(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint starts_at_zero, int64_t now_ms
    ) except? -2

    # Record an append. A batch with a producer id; place: where it begins.
    cdef int note_batch(
        self, const BatchInfo* info, int64_t last_offset, int64_t timestamp, const LogEnd* place
    ) except -1
    # A marker at `offset`. replicated: everything in the log is below the high watermark.
    cdef int note_marker(
        self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp, int64_t offset,
        bint aborted, bint replicated
    ) except -1

    # Find the last stable offset and its place. replicated: as for note_marker. log: the PartitionLog, for places.
    cdef int last_stable(
        self, const LogEnd* high_watermark, bint replicated, int64_t log_start_offset, object log, LogEnd* out
    ) except -1
    cdef int64_t expire(self, int64_t now_ms, int64_t expiration_ms) except -1
