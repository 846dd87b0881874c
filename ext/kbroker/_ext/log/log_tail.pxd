# The tail of one partition's log: the active segment and the ends of the log. log_append adds the checks of an append.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.base.socket_api cimport iovec
from kbroker._ext.log.committed_queue cimport CommittedQueue
from kbroker._ext.log.log_transactions cimport LogTransactions
from kbroker._ext.log.offset_index cimport OffsetIndex, TimeIndex
from kbroker._ext.log.replica_set cimport ReplicaSet
from kbroker._ext.record.record_batch cimport BatchInfo
from kbroker._ext.shared.partition_table cimport LogEnd, PartitionTable


cdef class LogTail:
    cdef readonly int32_t slot
    cdef readonly bint needs_sync    # flush.messages reached: sync() before responding
    cdef readonly bint dirty         # changed since the last publish()
    cdef bint touched                # in the loop's list of logs with something to publish
    cdef readonly CommittedQueue committed   # the waiters for appends to be committed

    cdef PartitionTable table
    cdef object log                  # the PartitionLog: rolls; is notified of the first unflushed append and of failures
    cdef int fd                      # of the active segment, owned by `log`; -1 when appends are rejected
    cdef OffsetIndex offset_index
    cdef TimeIndex time_index
    cdef LogTransactions transactions

    # The active segment and the ends of the log. Positions are bytes in the active segment's file.
    cdef readonly int64_t base_offset
    cdef readonly int64_t position
    cdef readonly int64_t next_offset
    cdef readonly int64_t max_timestamp          # of the active segment, -1 without timestamps
    cdef readonly int64_t max_timestamp_offset   # last offset of the batch that has it
    cdef readonly int64_t first_timestamp        # largest timestamp of the segment's first batch, -1 if empty
    cdef int64_t created_ms
    cdef int64_t bytes_since_index
    cdef int64_t log_start_offset
    cdef readonly int32_t leader_epoch           # stamped on appended batches
    cdef bint preallocated
    cdef bint segments_changed                   # the next publish increments segment_version
    cdef readonly bint high_watermark_held       # replication sets the high watermark; otherwise it follows the log end
    cdef LogEnd high_watermark
    cdef public ReplicaSet replicas              # of a leader that is not alone: they decide about the high watermark
    cdef int64_t checked_segment                 # readers check the batches before this place themselves
    cdef int64_t checked_position
    cdef bint gapless

    # Flushing.
    cdef readonly int64_t unflushed_messages
    cdef readonly int64_t flushed_offset         # everything below has been synced by this process
    cdef bint announced                          # log.on_first_unflushed() has been called since the last flush
    cdef bint older_unsynced                     # a sealed segment still has to be synced: log.sync_sealed()

    # Limits from the topic's configuration; LogAppender.configure sets them.
    cdef int64_t segment_bytes
    cdef int64_t segment_ms                      # after subtracting jitter
    cdef int64_t index_interval_bytes
    cdef int64_t flush_messages

    # One append is roll_if_due, write, note_appended. The first two return None, or why the disk has no room; the log
    # end then does not change. They raise StorageError, after which appends are rejected, if the log directory fails.
    cdef object roll_if_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms)
    # Write bytes at the end of the active segment; they are not part of the log before note_appended. header: written
    # in place of the first BATCH_HEADER_BYTES of the batch; NULL: write the batch as it is.
    cdef object write(self, const uint8_t* batch, Py_ssize_t size, const uint8_t* header)
    cdef bint write_run(self, const iovec* pieces, int count, Py_ssize_t size) except -1
    # Cut off bytes that were written but not noted.
    cdef int cut_back(self) except -1
    # The batch is in the log: move the log end, and add an index entry now and then. timestamp: its largest.
    cdef int note_appended(self, const BatchInfo* info, Py_ssize_t size, int64_t timestamp) except -1

    # If flush.messages requires it, sync the log before the next response: an earlier process may have been killed
    # before it synced its appends.
    cdef void sync_if_due(self) noexcept nogil
    # fdatasync of everything appended so far; StorageError takes the log directory offline.
    cdef int sync(self) except -1
    # Raise the high watermark as far as `replicas` allow; everything up to the log end is synced if it has to be.
    cdef int raise_high_watermark(self, int64_t now_ms) except -1
    # Publish the new log end (and high watermark) in the slot; returns the partition_table.Waiters it concerns.
    cdef int publish(self) except -1

    cdef bint roll_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms) noexcept nogil
    cdef int find_stable(self, LogEnd* out) except -1
