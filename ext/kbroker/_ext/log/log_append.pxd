# Appends to one partition's log, used by produce_intake in the io worker that owns the partition.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.log.log_tail cimport LogTail
from kbroker._ext.record.down_convert cimport DownConverter
from kbroker._ext.record.record_batch cimport BatchInfo, BatchStatus
from kbroker._ext.shared.descriptors cimport ProduceDescriptor


cdef enum:
    RUN_MAX = 32                 # BOUND: batches per write


cdef struct AppendResult:
    int16_t error_code           # 0, or the error code for this batch
    int32_t bad_record_index     # the record at fault, -1: none
    int64_t base_offset          # -1 on error; the original offset for a duplicate batch
    int64_t end_offset           # after the batch; only set if there is a base offset
    int64_t log_append_time_ms   # -1 unless the topic stamps log append time
    int64_t log_start_offset


# Whether the batch may be part of a run: it has format 2 and no producer id. ``batch``: at least BATCH_HEADER_BYTES.
cdef bint is_plain(const uint8_t* batch) noexcept nogil


cdef class LogAppender(LogTail):
    cdef readonly object error_text  # str of the last failed append, else None
    cdef readonly list more_bad_records  # indexes of bad records after its bad_record_index, or None

    # Limits from the topic's configuration, in addition to those of the tail.
    cdef int64_t message_bytes_max
    cdef int64_t decompressed_bytes_max
    cdef int64_t timestamp_before_max_ms
    cdef int64_t timestamp_after_max_ms
    cdef bint log_append_time
    cdef bint compacted
    cdef int codec                               # compression codec of stored batches, -1: the producer's
    cdef object level                            # compression level of that codec, or None
    cdef int8_t stored_magic                     # message format in which clients' batches are stored from now on
    cdef DownConverter older                     # to formats 0 and 1; None until it is needed

    # Check the batch in place (CRC, records, sizes, timestamps, sequence numbers), write it with its base offset and
    # the leader epoch, and index it. The batch is not modified: its bytes belong to the network process, which
    # describes them again if this process dies. Bad input and a full disk are error codes in *result. Raises
    # StorageError, after which appends are rejected, if the log directory fails.
    # verification: NOT_ASKED, NO_QUESTION or the number from begin_verification.
    cdef int append(
        self, const uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1
    # The same for up to RUN_MAX batches of format 2 without a producer id, in order and with one write. Returns how
    # many were appended: the run ends before the first that would be rejected, converted or start a segment, and is
    # empty if the disk is full. The caller passes the next batch to `append`, which handles these cases.
    cdef int append_run(
        self, const uint8_t* arena, const ProduceDescriptor* d, int count, int64_t now_ms, AppendResult* results
    ) except -1
    # The same as `append` for a message set of format 0 or 1, which is stored as a batch of format 2.
    cdef int append_message_set(
        self, const uint8_t* data, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int reject(self, AppendResult* result, int code, int32_t bad_index, object text) except -1
    cdef int reject_status(
        self, AppendResult* result, BatchStatus status, const BatchInfo* info, Py_ssize_t size, int32_t bad_index
    ) except -1
    cdef bint is_in_time(self, const BatchInfo* info, int64_t now_ms) noexcept nogil
    cdef int check_timestamps(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int reject_records(self, AppendResult* result, int code, list found, object text) except -1
    cdef int reject_unread(self, Py_ssize_t size, AppendResult* result) except -1
    cdef int append_made(
        self, bytearray batch, const BatchInfo* info, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1
    cdef int append_walked(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result,
        int64_t verification
    ) except -1
    cdef int append_checked(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1
    cdef int append_older(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t timestamp, int64_t now_ms,
        AppendResult* result
    ) except -1
    cdef void stamp(
        self, uint8_t* header, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms
    ) noexcept nogil
    cdef int append_coordinated(
        self, const uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1
