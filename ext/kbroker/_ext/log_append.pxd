# The append side of one partition's log, used by produce_engine in the io worker that owns the partition.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.offset_index cimport OffsetIndex, TimeIndex
from kbroker._ext.partition_table cimport LogEnd, PartitionTable
from kbroker._ext.producer_state cimport ProducerState
from kbroker._ext.record_batch cimport BatchInfo, BatchStatus


cdef struct AppendResult:
    int16_t error_code           # 0, or the Kafka error code of this batch alone
    int32_t bad_record_index     # -1, or the record at fault
    int64_t base_offset          # -1 on error; the original offset for a duplicate batch
    int64_t log_append_time_ms   # -1 unless the topic stamps log append time
    int64_t log_start_offset


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

    # Check the batch in place (CRC, records, sizes, timestamps, sequence numbers), patch base offset and leader epoch,
    # write it, index it. Raises nothing for bad input or a full disk: those are error codes in *result. StorageError,
    # after which appends are refused, when the log directory fails.
    cdef int append(self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result) except -1
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
    cdef int check_producer(self, const BatchInfo* info, AppendResult* result) except -1
    cdef bint roll_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms) noexcept nogil
    cdef int write(self, const uint8_t* batch, Py_ssize_t size, AppendResult* result) except -1
    cdef int note_appended(self, const BatchInfo* info, Py_ssize_t size, int64_t timestamp) except -1
