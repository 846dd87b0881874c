# The append side of one partition's log, used by produce_engine in the io worker that owns the partition.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.partition_table cimport PartitionTable


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

    # Check the batch in place (CRC, records, sizes, timestamps, sequence numbers), patch base offset and leader epoch,
    # write it, index it. Raises nothing for bad input or a full disk: those are error codes in *result.
    cdef int append(self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result) except -1
    # fdatasync of everything appended so far; StorageError takes the log directory offline.
    cdef int sync(self) except -1
    # Publish the new log end (and high watermark) in the slot.
    cdef int publish(self) except -1
