# Appends of a follower to its log: batches as they are in the leader's log, with offsets and leader epochs. Used in the
# io worker that owns the partition.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.record.record_batch cimport BatchInfo


cdef enum:
    FETCHED_RUN_MAX = 128        # BOUND: batches per write


# The reason why the next batch was not appended. A fault from FETCHED_BAD_LENGTH on may be in the leader's log or only
# in this copy of the batch: the caller fetches again before it marks the partition as failed.
cdef enum FetchedFault:
    FETCHED_ALL = 0              # nothing is left, or only part of a batch: `needed` is how many bytes it has
    FETCHED_CLOSED = 1           # the log directory failed
    FETCHED_NO_ROOM = 2          # the disk is full; LogAppender.error_text has the details
    FETCHED_BAD_LENGTH = 3       # shorter than a header, or its offsets do not fit in an int64
    FETCHED_BAD_MAGIC = 4
    FETCHED_BAD_CRC = 5
    FETCHED_BAD_COUNT = 6        # a negative number of records, or a last offset below the first
    FETCHED_OFFSET_BACK = 7      # it begins below the log end
    FETCHED_EPOCH_BACK = 8       # its leader epoch is lower than that of the batch before it
    FETCHED_EPOCH_AHEAD = 9      # its leader epoch is higher than the one that is followed


cdef struct Fetched:
    FetchedFault fault
    Py_ssize_t taken             # bytes appended
    Py_ssize_t needed            # size of the next batch, or of the part of its header that has the size
    # The batch at fault.
    int64_t base_offset
    int32_t leader_epoch
    uint32_t stored_crc
    uint32_t computed_crc


# Append the complete batches at the start of `data`, in order, with one write for each run of them in one segment; they
# are not copied, stamped or walked. Each is checked: length, format, checksum, increasing offsets (compaction leaves
# gaps), and leader epochs that do not decrease and are not above leader_epoch, the epoch that is followed. Messages of
# formats 0 and 1 have no leader epochs, and after one the log has none of before. Updates the log's epochs, producers, transactions and indexes. Stops at a batch at fault; the batches before it have been appended.
# Does not publish. Raises StorageError, after which appends are rejected, if the log directory fails.
cdef int append_fetched(
    LogAppender log, const uint8_t* data, Py_ssize_t size, int32_t leader_epoch, int64_t now_ms, Fetched* out
) except -1
