# The append side of one partition's log, used by produce_engine in the io worker that owns the partition.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.down_convert cimport DownConverter
from kbroker._ext.offset_index cimport OffsetIndex, TimeIndex
from kbroker._ext.partition_table cimport LogEnd, PartitionTable
from kbroker._ext.producer_state cimport ProducerEntry, ProducerState
from kbroker._ext.record_batch cimport BatchInfo, BatchStatus


cdef struct AppendResult:
    int16_t error_code           # 0, or the Kafka error code of this batch alone
    int32_t bad_record_index     # -1, or the record at fault
    int64_t base_offset          # -1 on error; the original offset for a duplicate batch
    int64_t log_append_time_ms   # -1 unless the topic stamps log append time
    int64_t log_start_offset


# How an append of a transactional batch was verified, beside the numbers that begin_verification gives out (KIP-890).
cdef enum:
    NOT_ASKED = 0                # not at all: its transaction must be open in this log already
    NO_QUESTION = -1             # verification is switched off, or the caller has seen to it


# A producer whose next transactional batch waits for the word of the transaction coordinator.
cdef class Verification:
    cdef int64_t number          # of this verification; a marker in between makes it void
    cdef int64_t started_ms
    cdef int32_t lowest_sequence
    cdef int16_t producer_epoch
    cdef bint starts_at_zero     # the batch also adds the partition to the transaction


cdef class LogAppender:
    cdef readonly int32_t slot
    cdef readonly bint needs_sync    # flush.messages reached: sync() before answering
    cdef readonly bint dirty         # appended since the last publish()
    cdef readonly object error_text  # str of the last failed append, else None

    cdef PartitionTable table
    cdef object log                  # the PartitionLog: rolls, is told of the first unflushed append and of failures
    cdef int fd                      # of the active segment, owned by `log`; -1 when appends are refused
    cdef OffsetIndex offset_index
    cdef TimeIndex time_index
    cdef readonly ProducerState producers

    # The active segment and the ends of the log. Positions are bytes in the active segment's file.
    cdef readonly int64_t base_offset
    cdef readonly int64_t position
    cdef readonly int64_t next_offset
    cdef readonly int64_t max_timestamp          # of the active segment, -1 without one
    cdef readonly int64_t max_timestamp_offset   # last offset of the batch that has it
    cdef readonly int64_t first_timestamp        # largest timestamp of the segment's first batch, -1 when empty
    cdef int64_t created_ms
    cdef int64_t bytes_since_index
    cdef int64_t log_start_offset
    cdef int32_t leader_epoch
    cdef bint preallocated
    cdef bint segments_changed                   # the next publish raises segment_version
    cdef bint high_watermark_held                # replication sets the high watermark; else it follows the log end
    cdef LogEnd high_watermark

    # Transactions.
    cdef dict verifications                      # producer id -> Verification
    cdef int64_t last_verification
    cdef list unreplicated                       # (LogEnd of its start as tuple, offset of its marker): ended transactions
    cdef uint32_t aborted_version                # see SlotData

    # Flushing.
    cdef readonly int64_t unflushed_messages
    cdef readonly int64_t flushed_offset         # everything below has been synced by this process
    cdef bint announced                          # log.on_first_unflushed() was called since the last flush
    cdef bint older_unsynced                     # a sealed segment still has to be synced: log.sync_sealed()

    # Limits, from the topic's configuration.
    cdef int64_t message_bytes_max
    cdef int64_t decompressed_bytes_max
    cdef int64_t segment_bytes
    cdef int64_t segment_ms                      # jitter already taken off
    cdef int64_t index_interval_bytes
    cdef int64_t flush_messages
    cdef int64_t timestamp_before_max_ms
    cdef int64_t timestamp_after_max_ms
    cdef bint log_append_time
    cdef bint compacted
    cdef int codec                               # what batches are stored with, -1: as they were sent
    cdef object level                            # of that codec, or None
    cdef int8_t stored_magic                     # the message format of what clients send from now on
    cdef DownConverter older                     # to formats 0 and 1, None until it is needed

    # Check the batch in place (CRC, records, sizes, timestamps, sequence numbers), patch base offset and leader epoch,
    # write it, index it. Raises nothing for bad input or a full disk: those are error codes in *result. StorageError,
    # after which appends are refused, when the log directory fails.
    # verification: NOT_ASKED, NO_QUESTION or what begin_verification gave out.
    cdef int append(
        self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1
    # The same for a message set of format 0 or 1, which is stored as a batch of format 2.
    cdef int append_message_set(
        self, const uint8_t* data, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1
    # Whether a client's transactional batch has to be verified before it is appended: NO_QUESTION if not (its transaction
    # is open, or the append will refuse it), else the number to append it with.
    cdef int64_t begin_verification(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint starts_at_zero, int64_t now_ms
    ) except? -2
    # fdatasync of everything appended so far; StorageError takes the log directory offline.
    cdef int sync(self) except -1
    # Publish the new log end (and high watermark) in the slot.
    cdef int publish(self) except -1

    cdef int refuse(self, AppendResult* result, int code, int32_t bad_index, object text) except -1
    cdef int refuse_status(
        self, AppendResult* result, BatchStatus status, const BatchInfo* info, Py_ssize_t size, int32_t bad_index
    ) except -1
    cdef int check_timestamps(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int32_t find_record(self, const uint8_t* batch, Py_ssize_t size, find, int64_t limit) except? -2
    cdef int check_producer(self, const BatchInfo* info, int64_t verification, AppendResult* result) except -1
    cdef int check_coordinator_producer(self, const BatchInfo* info, AppendResult* result) except -1
    cdef int check_transaction(
        self, const BatchInfo* info, ProducerEntry entry, int64_t verification, AppendResult* result
    ) except -1
    cdef int refuse_unread(self, Py_ssize_t size, AppendResult* result) except -1
    cdef int append_made(
        self, bytearray batch, const BatchInfo* info, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1
    cdef int append_walked(
        self, uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result,
        int64_t verification
    ) except -1
    cdef int append_checked(
        self, uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int append_older(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t timestamp, int64_t now_ms,
        AppendResult* result
    ) except -1
    cdef int append_coordinated(
        self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int note_marker(
        self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp, int64_t offset,
        bint aborted
    ) except -1
    cdef int last_stable(self, LogEnd* out) except -1
    cdef object roll_if_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms)
    cdef bint roll_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms) noexcept nogil
    cdef int write(self, const uint8_t* batch, Py_ssize_t size, AppendResult* result) except -1
    cdef int note_appended(self, const BatchInfo* info, Py_ssize_t size, int64_t timestamp) except -1
