# What a follower appends to its log: batches as the leader has them, with offsets and leader epochs. Used in the io worker
# that owns the partition.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.record.record_batch cimport BatchInfo


cdef enum:
    FETCHED_RUN_MAX = 128        # BOUND: batches of one write


# Why nothing of the next batch was taken. Of those from FETCHED_TRUNCATED_LENGTH on the leader is to be told from a bad copy
# of it: the caller fetches again before it gives the partition up.
cdef enum FetchedFault:
    FETCHED_ALL = 0              # nothing is left, or less than a batch: `needed` says what it takes
    FETCHED_CLOSED = 1           # the log directory failed
    FETCHED_NO_ROOM = 2          # the disk is full, LogAppender.error_text says how
    FETCHED_OLD_FORMAT = 3       # a message of format 0 or 1
    FETCHED_BAD_LENGTH = 4       # shorter than a header, or its offsets do not fit an int64
    FETCHED_BAD_MAGIC = 5
    FETCHED_BAD_CRC = 6
    FETCHED_BAD_COUNT = 7        # a negative number of records, or a last offset below the first
    FETCHED_OFFSET_BACK = 8      # it begins below the log end
    FETCHED_EPOCH_BACK = 9       # of an earlier leader epoch than what is in the log before it
    FETCHED_EPOCH_AHEAD = 10     # of a later leader epoch than the one that is followed


cdef struct Fetched:
    FetchedFault fault
    Py_ssize_t taken             # bytes that are in the log now
    Py_ssize_t needed            # bytes from there on that hold the next batch; the bytes before its length are 12
    # Of the batch that is at fault.
    int64_t base_offset
    int32_t leader_epoch
    uint32_t stored_crc
    uint32_t computed_crc


# Append the whole batches at the start of `data`, in order, with one write for a run of them in one segment: none of them is
# copied, stamped or walked. Each is checked: length, format, checksum, offsets that rise (gaps are compaction's), leader epochs
# that rise and are not above leader_epoch, in which the partition is followed. The log's epochs, producers, transactions and
# indexes follow. A batch at fault, and what comes after it, is left; what came before it is in the log. Does not publish.
# StorageError, after which appends are rejected, when the log directory fails.
cdef int append_fetched(
    LogAppender log, const uint8_t* data, Py_ssize_t size, int32_t leader_epoch, int64_t now_ms, Fetched* out
) except -1
