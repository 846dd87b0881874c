"""The tail of a log, where batches are appended: the active segment and the ends of the log (see log_tail.pxd).

Runs in the io worker that owns the partition. A batch costs one ``pwrite`` and now and then an index entry.
``storage.log.partition_log`` rolls, syncs older segments and does everything else with files; ``log_append`` checks
batches.

If the disk is full, the file is cut back to its last good end and the next append tries again. Any other failure of a
write or sync is final: the log rejects all appends until it is reopened.
"""
import os

from libc.errno cimport EDQUOT, EFBIG, EINTR, ENOSPC, errno
from libc.stdint cimport uint32_t

from kbroker._ext.base.socket_api cimport iovec
from kbroker._ext.log.offset_index cimport INDEX_NO_ROOM
from kbroker._ext.log.producer_state cimport ProducerState
from kbroker._ext.log.replica_set cimport RISES_UNPLACED, STAYS, HighWatermark
from kbroker._ext.record.record_batch cimport BATCH_HEADER_BYTES
from kbroker._ext.shared.partition_table cimport (
    SLOT_GAPLESS,
    WAIT_ALL,
    WAIT_COMMITTED,
    WAIT_WRITTEN,
    SlotData,
)

from kbroker.errors import StorageError


cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec* pieces, int count, long offset)


cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void* data, size_t size, long offset)
    int ftruncate(int fd, long size)
    int fdatasync(int fd)


cdef enum:
    GIL_RELEASE_BYTES = 8192         # writes of this size or more release the GIL
    RELATIVE_OFFSET_MAX = 0x7FFFFFFF


cdef class LogTail:
    """Created as a ``LogAppender`` by its ``PartitionLog``, which attaches it to each new segment and closes it."""

    def __cinit__(self):
        self.fd = -1
        self.slot = -1
        self.max_timestamp = -1
        self.first_timestamp = -1
        self.committed = CommittedQueue.__new__(CommittedQueue)

    def __init__(self, PartitionTable table not None, int32_t slot, log, ProducerState producers not None):
        table.check_slot(slot)
        self.table = table
        self.slot = slot
        self.log = log
        self.transactions = LogTransactions.__new__(LogTransactions, producers)

    # ---- set up by PartitionLog --------------------------------------------------------------------------------

    def attach(
        self, *, int fd, OffsetIndex offset_index not None, TimeIndex time_index not None, int64_t base_offset,
        int64_t position, int64_t next_offset, int64_t created_ms, int64_t max_timestamp=-1,
        int64_t max_timestamp_offset=-1, int64_t first_timestamp=-1, int64_t bytes_since_index=0,
        bint preallocated=False
    ) -> None:
        """Append to this segment from now on. The log remains responsible for closing the file and the indexes."""
        self.fd = fd
        self.offset_index = offset_index
        self.time_index = time_index
        self.base_offset = base_offset
        self.position = position
        self.next_offset = next_offset
        self.created_ms = created_ms
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self.first_timestamp = first_timestamp
        self.bytes_since_index = bytes_since_index
        self.preallocated = preallocated
        self.segments_changed = True
        self.dirty = True

    def change_files(
        self, *, int fd, OffsetIndex offset_index not None, TimeIndex time_index not None, bint preallocated=False
    ) -> None:
        """Continue in other files with the same content as those of the active segment."""
        self.fd = fd
        self.offset_index = offset_index
        self.time_index = time_index
        self.preallocated = preallocated
        self.segments_changed = True
        self.dirty = True

    def set_producers(self, ProducerState producers not None) -> None:
        self.transactions.producers = producers

    def set_aborted_version(self, uint32_t version) -> None:
        """version: 0 until the log has an aborted transaction."""
        self.transactions.aborted_version = version

    def set_leader_epoch(self, int32_t leader_epoch) -> None:
        self.leader_epoch = leader_epoch

    def set_log_start_offset(self, int64_t log_start_offset) -> None:
        """Takes effect for readers at the next publish()."""
        self.log_start_offset = log_start_offset
        self.dirty = True

    def set_checked_from(self, int64_t segment_base_offset, int64_t position) -> None:
        """This process has written or checked every batch from this place on; readers check earlier ones."""
        self.checked_segment = segment_base_offset
        self.checked_position = position
        self.dirty = True

    @property
    def checked_from(self) -> tuple:
        """(segment base offset, position)"""
        return self.checked_segment, self.checked_position

    def set_gapless(self, bint gapless) -> None:
        """gapless: each segment ends where the next one begins, because the log was never compacted."""
        self.gapless = gapless
        self.dirty = True

    def set_high_watermark(self, int64_t offset, int64_t segment_base_offset, int64_t position) -> None:
        """Set the high watermark, which replication decides from now on. Takes effect at the next publish()."""
        self.high_watermark_held = True
        self.high_watermark.offset = offset
        self.high_watermark.segment_base_offset = segment_base_offset
        self.high_watermark.position = position
        self.dirty = True

    def follow_log_end(self) -> None:
        """Let the high watermark follow the log end again: this is the only replica."""
        self.high_watermark_held = False
        self.dirty = True

    def mark_segments_changed(self) -> None:
        """Make readers list the directory again after the next publish()."""
        self.segments_changed = True
        self.dirty = True

    def mark_older_unsynced(self, bint unsynced) -> None:
        self.older_unsynced = unsynced

    def mark_flushed(self, int64_t end_offset, int64_t messages) -> None:
        """Note that a flush elsewhere has synced everything below ``end_offset``, ``messages`` messages.

        The caller takes care of what was appended since (next_offset > flushed_offset): it is not announced again.
        """
        if end_offset > self.flushed_offset:
            self.flushed_offset = end_offset
        self.unflushed_messages = max(self.unflushed_messages - messages, 0)
        self.announced = self.next_offset > self.flushed_offset
        if not self.announced:
            self.unflushed_messages = 0

    def set_flushed_offset(self, int64_t offset) -> None:
        self.flushed_offset = offset

    def reject_all(self) -> None:
        """Reject appends from now on."""
        self.fd = -1

    def close(self) -> None:
        """Reject appends from now on and release the log; nothing is left to publish or sync. May be called twice."""
        self.fd = -1
        self.dirty = False
        self.needs_sync = False
        self.log = None
        self.offset_index = None
        self.time_index = None

    @property
    def closed(self) -> bool:
        return self.fd < 0

    @property
    def producers(self) -> ProducerState:
        return self.transactions.producers

    @property
    def start_offset(self) -> int:
        return self.log_start_offset

    @property
    def high_watermark_offset(self) -> int:
        return self.high_watermark.offset if self.high_watermark_held else self.next_offset

    @property
    def last_stable_offset(self) -> int:
        cdef LogEnd stable
        self.find_stable(&stable)
        return stable.offset

    def expire_producers(self, int64_t now_ms, int64_t expiration_ms) -> int:
        """``ProducerState.expire``; also forgets verifications of that age that led to nothing."""
        return self.transactions.expire(now_ms, expiration_ms)

    # ---- adding a batch ----------------------------------------------------------------------------------------

    cdef object roll_if_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms):
        # None, or why there is no room for a new segment: the disk is full. Raises StorageError.
        if self.roll_due(size, last_offset, timestamp, now_ms):
            return self.log.roll(now_ms)
        return None

    cdef bint roll_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms) noexcept nogil:
        # (a) size (b) age by timestamps, or by the clock without them (c) an index is full (d) relative offsets
        cdef int64_t waited
        if self.position == 0:
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        if self.position > self.segment_bytes - size:
            return True
        waited = now_ms - self.created_ms
        if self.first_timestamp >= 0:
            # A timestamp is whatever the client says, also one far below zero.
            waited = max(timestamp, self.first_timestamp) - self.first_timestamp
        return (
            waited > self.segment_ms
            or self.offset_index.is_full()
            or self.time_index.is_full()
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    cdef object write(self, const uint8_t* batch, Py_ssize_t size, const uint8_t* header):
        cdef Py_ssize_t done = 0
        cdef ssize_t wrote
        cdef int code
        while done < size:
            if size - done >= GIL_RELEASE_BYTES:
                with nogil:
                    wrote = write_some(self.fd, batch, size, header, done, self.position)
                    code = errno
            else:
                wrote = write_some(self.fd, batch, size, header, done, self.position)
                code = errno
            if wrote > 0:
                done += wrote
                continue
            if wrote < 0 and code == EINTR:
                continue
            if wrote == 0:
                code = ENOSPC
            if code != ENOSPC and code != EDQUOT and code != EFBIG:
                self.fail(code, "write")
            if done > 0:
                self.cut_back()
            return self.log.full_disk_text(code)
        return None

    cdef bint write_run(self, const iovec* pieces, int count, Py_ssize_t size) except -1:
        """Write several batches with one call. False if not all could be written; then none of them is left."""
        cdef ssize_t wrote = -1
        cdef int code = EINTR
        while wrote < 0 and code == EINTR:
            if size >= GIL_RELEASE_BYTES:
                with nogil:
                    wrote = pwritev(self.fd, pieces, count, self.position)
                    code = errno
            else:
                wrote = pwritev(self.fd, pieces, count, self.position)
                code = errno
        if wrote == size:
            return True
        if wrote < 0 and code != ENOSPC and code != EDQUOT and code != EFBIG:
            self.fail(code, "write")
        if wrote > 0:
            self.cut_back()
        return False

    cdef int cut_back(self) except -1:
        # Readers never read past the published end, so they do not see the truncated part.
        if not self.preallocated and ftruncate(self.fd, self.position) != 0:
            self.fail(errno, "ftruncate")
        return 0

    cdef int note_appended(self, const BatchInfo* info, Py_ssize_t size, int64_t timestamp) except -1:
        cdef int64_t last_offset = self.next_offset + info.last_offset_delta
        cdef LogEnd place
        place.offset = self.next_offset
        place.segment_base_offset = self.base_offset
        place.position = self.position
        if self.position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > self.index_interval_bytes:
            # If the disk is too full for an entry, lookups only walk further.
            try:
                if self.offset_index.append(last_offset, self.position) != INDEX_NO_ROOM:
                    self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset, False)
            except OSError as error:
                raise self.log.fail(error) from error
            self.bytes_since_index = 0
        self.bytes_since_index += size
        self.position += size
        self.next_offset = last_offset + 1
        if info.producer_id >= 0:
            self.transactions.note_batch(info, last_offset, timestamp, &place)
        self.transactions.producers.end_offset = self.next_offset
        self.dirty = True
        self.unflushed_messages += info.record_count
        if self.unflushed_messages >= self.flush_messages:
            self.needs_sync = True
        if not self.announced:
            self.announced = True
            self.log.on_first_unflushed()
        return 0

    cdef void sync_if_due(self) noexcept nogil:
        if self.flush_messages <= self.next_offset - self.flushed_offset:
            self.needs_sync = True
            self.dirty = True

    def fail(self, int code, str what):
        """Take the log out of service permanently and raise StorageError."""
        raise self.log.fail(OSError(code, f"{what}: {os.strerror(code)}", self.log.path))

    # ---- publishing and syncing --------------------------------------------------------------------------------

    cdef int sync(self) except -1:
        cdef int outcome, code
        if self.fd < 0:
            raise StorageError(self.log.log_dir if self.log is not None else "?", "the log is closed")
        if self.older_unsynced:
            self.log.sync_sealed()
        with nogil:
            outcome = fdatasync(self.fd)
            code = errno
        if outcome != 0:
            # Do not retry: a second fsync after a failed one reports success for pages that are lost.
            self.fail(code, "fdatasync")
        self.needs_sync = False
        self.flushed_offset = self.next_offset
        self.unflushed_messages = 0
        self.announced = False
        return 0

    cdef int raise_high_watermark(self, int64_t now_ms) except -1:
        cdef LogEnd end, found
        cdef HighWatermark outcome
        end.offset = self.next_offset
        end.segment_base_offset = self.base_offset
        end.position = self.position
        outcome = self.replicas.find_high_watermark(
            &end, self.high_watermark.offset, self.table.slots[self.slot].data.segment_version, now_ms, &found)
        if outcome == STAYS:
            return 0
        if outcome == RISES_UNPLACED:
            found.offset, found.segment_base_offset, found.position = self.log.place_of(found.offset)
        self.high_watermark = found
        self.dirty = True
        return 0

    cdef int publish(self) except -1:
        cdef SlotData* data
        cdef LogEnd stable
        cdef int concerned = 0
        if self.slot < 0:
            return 0
        self.find_stable(&stable)
        data = self.table.begin_write(self.slot)
        if self.segments_changed or data.log_start_offset != self.log_start_offset:
            concerned = WAIT_ALL
        else:
            if data.log_end.offset != self.next_offset:
                concerned = WAIT_WRITTEN
            if data.high_watermark.offset != self.high_watermark.offset or data.last_stable.offset != stable.offset:
                concerned |= WAIT_COMMITTED
        data.log_start_offset = self.log_start_offset
        data.log_end.offset = self.next_offset
        data.log_end.segment_base_offset = self.base_offset
        data.log_end.position = self.position
        data.high_watermark = self.high_watermark
        data.last_stable = stable
        data.aborted_version = self.transactions.aborted_version
        data.checked_segment = self.checked_segment
        data.checked_position = self.checked_position
        data.flags = data.flags | SLOT_GAPLESS if self.gapless else data.flags & ~<uint32_t>SLOT_GAPLESS
        if self.segments_changed:
            data.segment_version += 1
        self.table.end_write(self.slot)
        if self.segments_changed:
            self.table.note_segments(self.slot)
        self.segments_changed = False
        self.dirty = False
        return concerned

    cdef int find_stable(self, LogEnd* out) except -1:
        if not self.high_watermark_held:
            self.high_watermark.offset = self.next_offset
            self.high_watermark.segment_base_offset = self.base_offset
            self.high_watermark.position = self.position
        return self.transactions.last_stable(
            &self.high_watermark, not self.high_watermark_held, self.log_start_offset, self.log, out)

    def sync_now(self) -> None:
        """Python face of sync."""
        self.sync()

    def publish_now(self) -> None:
        """Python face of publish."""
        self.publish()


cdef ssize_t write_some(
    int fd, const uint8_t* batch, Py_ssize_t size, const uint8_t* header, Py_ssize_t done, int64_t position
) noexcept nogil:
    """Write the rest of the batch after its first ``done`` bytes, as much as one call does. position: of the batch."""
    cdef iovec pieces[2]
    if header == NULL or done >= BATCH_HEADER_BYTES:
        return pwrite(fd, batch + done, <size_t>(size - done), position + done)
    pieces[0].iov_base = <void*>(header + done)
    pieces[0].iov_len = <size_t>(BATCH_HEADER_BYTES - done)
    pieces[1].iov_base = <void*>(batch + BATCH_HEADER_BYTES)
    pieces[1].iov_len = <size_t>(size - BATCH_HEADER_BYTES)
    return pwritev(fd, pieces, 2, position + done)
