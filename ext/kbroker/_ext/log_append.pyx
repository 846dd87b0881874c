"""The hot append: one checked batch, one ``pwrite``, now and then an index entry (see log_append.pxd).

Runs in the io worker that owns the partition. Per batch beyond checksum and record walk: one system call, no Python
object unless the batch carries a producer id (one dict look-up) or is refused. Rolling, syncing older segments and
everything about files but the write is ``storage.partition_log``'s.

A full disk refuses the batch (KAFKA_STORAGE_ERROR) after cutting the file back to its last good end, and the next
append tries again. Any other failure of a write or sync is final: the log refuses everything until it is reopened.
"""
import os

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EDQUOT, EINTR, ENOSPC, errno

from kbroker._ext.batch_repack cimport repacked_batch
from kbroker._ext.down_convert cimport DownConverter
from kbroker._ext.legacy_records cimport batch_of_message_set
from kbroker._ext.offset_index cimport INDEX_NO_ROOM
from kbroker._ext.partition_table cimport SlotData
from kbroker._ext.producer_state cimport (
    SEQUENCE_DUPLICATE, SEQUENCE_OK, SEQUENCE_OLD_EPOCH, SEQUENCE_OUT_OF_ORDER, ProducerBatch
)
from kbroker._ext.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BAD_CRC,
    BATCH_BAD_LENGTH,
    BATCH_BAD_MAGIC,
    BATCH_BAD_OFFSET_DELTA,
    BATCH_BAD_RECORD,
    BATCH_BAD_RECORD_COUNT,
    BATCH_BAD_SEQUENCE,
    BATCH_BAD_TIMESTAMP,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CONTROL_FROM_CLIENT,
    BATCH_DECOMPRESS_FAILED,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_OK,
    BATCH_TOO_LARGE_DECOMPRESSED,
    BATCH_TRAILING_BYTES,
    BATCH_TRUNCATED,
    BATCH_UNKNOWN_CODEC,
    check_produced_batch,
    check_stored_batch,
    patch_for_append,
    patch_log_append_time,
    patch_max_timestamp,
    read_batch_header,
)

from kbroker._ext.wire cimport load_i32

from kbroker._ext.legacy_records import MessageSetRefused
from kbroker.errors import StorageError
from kbroker.record.control import marker_batch
from kbroker.storage.record_faults import first_keyless, first_older_than


cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void* data, size_t size, long offset)
    int ftruncate(int fd, long size)
    int fdatasync(int fd)


cdef enum:
    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTION_COORDINATOR_FENCED = 52
    KAFKA_STORAGE_ERROR = 56
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87

    GIL_RELEASE_BYTES = 8192         # a write from this size on lets other threads run
    RELATIVE_OFFSET_MAX = 0x7FFFFFFF

cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF

# BatchStatus -> (error code, what is wrong with the batch)
cdef dict REFUSALS = {
    BATCH_TRUNCATED: (CORRUPT_MESSAGE, "the record batch ends before its length says"),
    BATCH_BAD_LENGTH: (CORRUPT_MESSAGE, "the record batch's length is smaller than its header"),
    BATCH_BAD_CRC: (CORRUPT_MESSAGE, "the record batch does not match its checksum"),
    BATCH_BAD_RECORD_COUNT: (INVALID_RECORD, "the record count does not match the batch's offsets"),
    BATCH_BAD_OFFSET_DELTA: (INVALID_RECORD, "the record's offset delta is not its place in the batch"),
    BATCH_BAD_RECORD: (INVALID_RECORD, "the record's lengths do not add up"),
    BATCH_BAD_TIMESTAMP: (INVALID_TIMESTAMP, "a timestamp out of range, or a producer that sets log append time"),
    BATCH_UNKNOWN_CODEC: (UNSUPPORTED_COMPRESSION_TYPE, "the compression type is not known"),
    BATCH_DECOMPRESS_FAILED: (INVALID_RECORD, "the records cannot be decompressed"),
    BATCH_TRAILING_BYTES: (INVALID_RECORD, "there are bytes after the last record, or more than one batch"),
    BATCH_CONTROL_FROM_CLIENT: (INVALID_RECORD, "clients may not write control records"),
    BATCH_BAD_SEQUENCE: (INVALID_RECORD, "a producer id needs a sequence number"),
}


cdef class LogAppender:
    """Appends to one log. Made, attached to each new active segment and closed by its ``PartitionLog``."""

    def __cinit__(self):
        self.fd = -1
        self.slot = -1
        self.max_timestamp = -1
        self.first_timestamp = -1
        self.verifications = {}
        self.unreplicated = []
        self.stored_magic = 2

    def __init__(self, PartitionTable table not None, int32_t slot, log, ProducerState producers not None):
        table.check_slot(slot)
        self.table = table
        self.slot = slot
        self.log = log
        self.producers = producers

    # ---- set up by PartitionLog --------------------------------------------------------------------------------

    def configure(
        self, *, int64_t message_bytes_max, int64_t decompressed_bytes_max, int64_t segment_bytes, int64_t segment_ms,
        int64_t index_interval_bytes, int64_t flush_messages, int64_t timestamp_before_max_ms,
        int64_t timestamp_after_max_ms, bint log_append_time, bint compacted, int codec=-1, level=None,
        int stored_magic=2
    ) -> None:
        """Limits of the topic's configuration; may be called again at any time. segment_ms: jitter taken off.

        codec: what every batch is stored with, -1: as its producer sent it. level: None or of that codec.
        stored_magic: the message format that what clients send is stored in.
        """
        self.message_bytes_max = message_bytes_max
        self.decompressed_bytes_max = decompressed_bytes_max
        self.segment_bytes = segment_bytes
        self.segment_ms = segment_ms
        self.index_interval_bytes = index_interval_bytes
        self.flush_messages = flush_messages
        self.timestamp_before_max_ms = timestamp_before_max_ms
        self.timestamp_after_max_ms = timestamp_after_max_ms
        self.log_append_time = log_append_time
        self.compacted = compacted
        self.codec = codec
        self.level = level
        self.stored_magic = <int8_t>stored_magic

    def attach(
        self, *, int fd, OffsetIndex offset_index not None, TimeIndex time_index not None, int64_t base_offset,
        int64_t position, int64_t next_offset, int64_t created_ms, int64_t max_timestamp=-1,
        int64_t max_timestamp_offset=-1, int64_t first_timestamp=-1, int64_t bytes_since_index=0,
        bint preallocated=False
    ) -> None:
        """Append to this segment from now on. The descriptor and the indexes stay the log's to close."""
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
        """Go on in other files with the same content as those of the active segment."""
        self.fd = fd
        self.offset_index = offset_index
        self.time_index = time_index
        self.preallocated = preallocated
        self.segments_changed = True
        self.dirty = True

    def set_producers(self, ProducerState producers not None) -> None:
        self.producers = producers

    def set_leader_epoch(self, int32_t leader_epoch) -> None:
        self.leader_epoch = leader_epoch

    def set_log_start_offset(self, int64_t log_start_offset) -> None:
        """Takes effect for readers at the next publish()."""
        self.log_start_offset = log_start_offset
        self.dirty = True

    def set_high_watermark(self, int64_t offset, int64_t segment_base_offset, int64_t position) -> None:
        """From now on the high watermark is what replication says; published at the next publish()."""
        self.high_watermark_held = True
        self.high_watermark.offset = offset
        self.high_watermark.segment_base_offset = segment_base_offset
        self.high_watermark.position = position
        self.dirty = True

    def follow_log_end(self) -> None:
        """The high watermark is the log end again: this is the only replica."""
        self.high_watermark_held = False
        self.dirty = True

    def mark_segments_changed(self) -> None:
        """Readers must look at the directory again after the next publish()."""
        self.segments_changed = True
        self.dirty = True

    def mark_older_unsynced(self, bint unsynced) -> None:
        self.older_unsynced = unsynced

    def mark_flushed(self, int64_t end_offset, int64_t messages) -> None:
        """A flush made elsewhere covered everything below ``end_offset``, ``messages`` of them.

        The caller sees to what was appended since (next_offset > flushed_offset): it is not announced again.
        """
        if end_offset > self.flushed_offset:
            self.flushed_offset = end_offset
        self.unflushed_messages = max(self.unflushed_messages - messages, 0)
        self.announced = self.next_offset > self.flushed_offset
        if not self.announced:
            self.unflushed_messages = 0

    def set_flushed_offset(self, int64_t offset) -> None:
        self.flushed_offset = offset

    def refuse_all(self) -> None:
        """Refuse appends from now on."""
        self.fd = -1

    def close(self) -> None:
        """Refuse appends and let go of the log; nothing is left to publish or sync. Safe to call twice."""
        self.fd = -1
        self.dirty = False
        self.needs_sync = False
        self.log = None
        self.offset_index = None
        self.time_index = None

    @property
    def closed(self) -> bool:
        return self.fd < 0

    # ---- the append --------------------------------------------------------------------------------------------

    cdef int append(
        self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1:
        cdef BatchInfo info
        cdef BatchStatus status
        cdef int32_t bad_index = -1
        cdef bytearray repacked = None
        if self.refuse_unread(size, result):
            return 0
        if self.codec >= 0 and size >= BATCH_HEADER_BYTES and (
            batch[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_CODEC_MASK != self.codec
        ):
            repacked = repacked_batch(
                batch, size, self.decompressed_bytes_max, self.codec, self.level, &info, &status, &bad_index)
        else:
            status = check_produced_batch(batch, size, self.decompressed_bytes_max, &info, &bad_index)
        if status != BATCH_OK:
            return self.refuse_status(result, status, &info, size, bad_index)
        if repacked is None:
            return self.append_walked(batch, size, &info, now_ms, result, verification)
        return self.append_made(repacked, &info, now_ms, result, verification)

    cdef int append_message_set(
        self, const uint8_t* data, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1:
        cdef BatchInfo info
        cdef bytearray batch
        if self.refuse_unread(0, result):  # the limit is for each of its messages, and for the batch
            return 0
        try:
            batch = batch_of_message_set(
                data, size, self.message_bytes_max, self.decompressed_bytes_max, self.codec, self.level, &info)
        except MessageSetRefused as refused:
            code, text, bad_index = refused.args
            return self.refuse(result, code, bad_index, text)
        return self.append_made(batch, &info, now_ms, result, NO_QUESTION)

    cdef int append_made(
        self, bytearray batch, const BatchInfo* info, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1:
        """Append a batch that was made here of what a client sent; its records are known to be sound."""
        cdef Py_ssize_t size = len(batch)
        if size > self.message_bytes_max:
            return self.refuse(
                result, MESSAGE_TOO_LARGE, -1,
                f"the record batch is {size} bytes as it is stored, max.message.bytes of the topic is "
                f"{self.message_bytes_max}")
        return self.append_walked(<uint8_t*>PyByteArray_AS_STRING(batch), size, info, now_ms, result, verification)

    cdef int refuse_unread(self, Py_ssize_t size, AppendResult* result) except -1:
        """Begin *result; 1 when nothing of that size is taken."""
        result.error_code = 0
        result.bad_record_index = -1
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = self.log_start_offset
        self.error_text = None
        if self.fd < 0:
            self.refuse(result, KAFKA_STORAGE_ERROR, -1, "the log is closed: its log directory failed")
        elif size > self.message_bytes_max:
            self.refuse(
                result, MESSAGE_TOO_LARGE, -1,
                f"the record batch is {size} bytes, max.message.bytes of the topic is {self.message_bytes_max}")
        return result.error_code != 0

    cdef int append_walked(
        self, uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result,
        int64_t verification
    ) except -1:
        """Append a batch whose bytes are sound, if the topic, the clock and its producer allow it."""
        if size > self.segment_bytes:
            return self.refuse(
                result, RECORD_LIST_TOO_LARGE, -1,
                f"the record batch is {size} bytes, segment.bytes of the topic is {self.segment_bytes}")
        if self.compacted and info.keyless_count > 0:
            return self.refuse(
                result, INVALID_RECORD, self.find_record(batch, size, first_keyless, 0),
                "a compacted topic needs a key on every record")
        if info.attributes & ATTRIBUTE_TRANSACTIONAL and info.producer_id < 0:
            return self.refuse(result, INVALID_RECORD, -1, "a transactional batch needs a producer id")
        if self.stored_magic < 2 and info.producer_id >= 0:
            return self.refuse(
                result, UNSUPPORTED_FOR_MESSAGE_FORMAT, -1,
                "the message.format.version of the topic has no idempotent producers and no transactions")
        if not self.log_append_time and self.check_timestamps(batch, size, info, now_ms, result):
            return 0
        if info.producer_id >= 0 and self.check_producer(info, verification, result):
            return 0
        return self.append_checked(batch, size, info, now_ms, result)

    cdef int append_checked(
        self, uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1:
        cdef int64_t timestamp
        timestamp = now_ms if self.log_append_time else info.walked_max_timestamp
        if self.stored_magic < 2 and not info.attributes & ATTRIBUTE_CONTROL:
            return self.append_older(batch, size, info, timestamp, now_ms, result)
        text = self.roll_if_due(size, self.next_offset + info.last_offset_delta, timestamp, now_ms)
        if text is not None:
            return self.refuse(result, KAFKA_STORAGE_ERROR, -1, text)
        # Stamped last: a batch that was refused is as the client sent it.
        if self.log_append_time:
            patch_log_append_time(batch, size, now_ms)
            result.log_append_time_ms = now_ms
        elif info.walked_max_timestamp != info.max_timestamp:
            patch_max_timestamp(batch, size, info.walked_max_timestamp)
        patch_for_append(batch, self.next_offset, self.leader_epoch)
        if self.write(batch, size, result):
            return 0
        result.base_offset = self.next_offset
        return self.note_appended(info, size, timestamp)

    cdef int append_older(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t timestamp, int64_t now_ms,
        AppendResult* result
    ) except -1:
        """Append the records as messages of format 0 or 1, which the topic asks for."""
        cdef bytearray copy = bytearray(PyBytes_FromStringAndSize(<const char*>batch, size))
        cdef uint8_t* stamped = <uint8_t*>PyByteArray_AS_STRING(copy)
        cdef Py_ssize_t made
        cdef int16_t code
        if self.log_append_time:
            patch_log_append_time(stamped, size, now_ms)
        elif info.walked_max_timestamp != info.max_timestamp:
            patch_max_timestamp(stamped, size, info.walked_max_timestamp)
        patch_for_append(stamped, self.next_offset, self.leader_epoch)
        if self.older is None:
            self.older = DownConverter.__new__(DownConverter)
        try:
            code = self.older.convert_batch(stamped, size, self.stored_magic)
            made = self.older.out.size
            if code != 0:
                return self.refuse(
                    result, code, -1,
                    "the message.format.version of the topic has "
                    f"{'no record headers' if code == UNSUPPORTED_FOR_MESSAGE_FORMAT else 'no such compression type'}")
            if made > self.segment_bytes:
                return self.refuse(
                    result, RECORD_LIST_TOO_LARGE, -1,
                    f"the messages are {made} bytes, segment.bytes of the topic is {self.segment_bytes}")
            text = self.roll_if_due(made, self.next_offset + info.last_offset_delta, timestamp, now_ms)
            if text is not None:
                return self.refuse(result, KAFKA_STORAGE_ERROR, -1, text)
            if self.write(self.older.out.data, made, result):
                return 0
        finally:
            self.older.clear()
        if self.log_append_time:
            result.log_append_time_ms = now_ms
        result.base_offset = self.next_offset
        return self.note_appended(info, made, timestamp if self.stored_magic > 0 else -1)

    cdef int check_timestamps(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1:
        """1 when a record's create time is too far from now. -1 ("no timestamp") is always accepted."""
        cdef int64_t bad
        if (
            self.timestamp_after_max_ms != NO_LIMIT
            and info.walked_max_timestamp > now_ms
            and info.walked_max_timestamp - now_ms > self.timestamp_after_max_ms
        ):
            bad = info.walked_max_timestamp_offset_delta
            self.refuse(
                result, INVALID_TIMESTAMP, <int32_t>bad,
                f"timestamp {info.walked_max_timestamp} is more than message.timestamp.after.max.ms "
                f"({self.timestamp_after_max_ms}) after the broker's {now_ms}")
            return 1
        if (
            self.timestamp_before_max_ms != NO_LIMIT
            and info.walked_min_timestamp != -1
            and info.walked_min_timestamp < now_ms - self.timestamp_before_max_ms
        ):
            self.refuse(
                result, INVALID_TIMESTAMP,
                self.find_record(batch, size, first_older_than, now_ms - self.timestamp_before_max_ms),
                f"timestamp {info.walked_min_timestamp} is more than message.timestamp.before.max.ms "
                f"({self.timestamp_before_max_ms}) before the broker's {now_ms}")
            return 1
        return 0

    cdef int32_t find_record(self, const uint8_t* batch, Py_ssize_t size, find, int64_t limit) except? -2:
        # Only for a batch that is refused and passed the walk: name the record at fault.
        return find(PyBytes_FromStringAndSize(<const char*>batch, size), self.decompressed_bytes_max, limit)

    cdef int check_producer(self, const BatchInfo* info, int64_t verification, AppendResult* result) except -1:
        """1 when *result is final: a duplicate (answered with its original offset) or a refused sequence."""
        cdef ProducerBatch found
        cdef Verification asked
        cdef int outcome = self.producers.check(
            info.producer_id, info.producer_epoch, info.base_sequence, info.last_offset_delta, &found)
        if outcome == SEQUENCE_DUPLICATE:
            result.base_offset = found.last_offset - found.offset_delta
            if self.log_append_time:
                result.log_append_time_ms = found.timestamp
            return 1
        if outcome == SEQUENCE_OLD_EPOCH:
            self.refuse(
                result, INVALID_PRODUCER_EPOCH, -1,
                f"producer {info.producer_id} has a newer epoch than {info.producer_epoch}")
            return 1
        entry = self.producers.entries.get(info.producer_id)
        if self.check_transaction(info, entry, verification, result):
            return 1
        if self.verifications:
            asked = self.verifications.get(info.producer_id)
            if asked is not None and (
                (asked.starts_at_zero and info.base_sequence != 0 and (entry is None or entry.batch_count == 0))
                or info.base_sequence > asked.lowest_sequence
            ):
                # An earlier batch of the transaction was refused and will be sent again: it must come first.
                outcome = SEQUENCE_OUT_OF_ORDER
        if outcome == SEQUENCE_OK:
            return 0
        self.refuse(
            result, OUT_OF_ORDER_SEQUENCE_NUMBER, -1,
            f"sequence {info.base_sequence} of producer {info.producer_id} does not follow its last batch")
        return 1

    cdef int check_transaction(
        self, const BatchInfo* info, ProducerEntry entry, int64_t verification, AppendResult* result
    ) except -1:
        """1 when the batch does not fit the producer's open transaction, or the lack of one."""
        cdef bint is_open = entry is not None and entry.current_txn_first_offset >= 0
        cdef Verification asked
        if not info.attributes & ATTRIBUTE_TRANSACTIONAL:
            if is_open:
                self.refuse(
                    result, INVALID_TXN_STATE, -1,
                    f"producer {info.producer_id} has a transaction open here; this batch is not part of it")
            return is_open
        if verification == NO_QUESTION or (is_open and entry.producer_epoch == info.producer_epoch):
            return 0
        asked = self.verifications.get(info.producer_id)
        if verification > 0 and asked is not None and asked.number == verification:
            return 0
        self.refuse(
            result, INVALID_TXN_STATE, -1, f"the batch is not part of an ongoing transaction of producer {info.producer_id}")
        return 1

    cdef int check_coordinator_producer(self, const BatchInfo* info, AppendResult* result) except -1:
        """As check_producer, for a batch that a coordinator of this broker made: it has no sequence number."""
        cdef ProducerEntry entry = self.producers.entries.get(info.producer_id)
        if entry is not None and info.producer_epoch < entry.producer_epoch:
            self.refuse(
                result, INVALID_PRODUCER_EPOCH, -1,
                f"producer {info.producer_id} has a newer epoch than {info.producer_epoch}")
            return 1
        return self.check_transaction(info, entry, NO_QUESTION, result)

    cdef int64_t begin_verification(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint starts_at_zero, int64_t now_ms
    ) except? -2:
        cdef ProducerEntry entry = self.producers.entries.get(producer_id)
        cdef Verification asked
        if entry is not None and (
            epoch < entry.producer_epoch or (epoch == entry.producer_epoch and entry.current_txn_first_offset >= 0)
        ):
            return NO_QUESTION
        asked = self.verifications.get(producer_id)
        if asked is None:
            asked = Verification.__new__(Verification)
            self.last_verification += 1
            asked.number = self.last_verification
            asked.started_ms = now_ms
            asked.producer_epoch = epoch
            asked.lowest_sequence = base_sequence
            self.verifications[producer_id] = asked
        elif epoch > asked.producer_epoch:
            asked.producer_epoch = epoch
            asked.lowest_sequence = base_sequence
        elif epoch == asked.producer_epoch and base_sequence < asked.lowest_sequence:
            asked.lowest_sequence = base_sequence
        asked.starts_at_zero = starts_at_zero
        return asked.number

    cdef object roll_if_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms):
        # None, or why there is no room: the disk is too full for a new segment. Raises StorageError.
        if self.roll_due(size, last_offset, timestamp, now_ms):
            return self.log.roll(now_ms)
        return None

    cdef bint roll_due(self, Py_ssize_t size, int64_t last_offset, int64_t timestamp, int64_t now_ms) noexcept nogil:
        # (a) size (b) age by timestamps, by the clock without them (c) an index is full (d) relative offsets
        cdef int64_t waited
        if self.position == 0:
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        if self.position > self.segment_bytes - size:
            return True
        waited = timestamp - self.first_timestamp if self.first_timestamp >= 0 else now_ms - self.created_ms
        return (
            waited > self.segment_ms
            or self.offset_index.is_full()
            or self.time_index.is_full()
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    cdef int write(self, const uint8_t* batch, Py_ssize_t size, AppendResult* result) except -1:
        """1 when the disk is full and *result says so; StorageError for any other failure."""
        cdef Py_ssize_t done = 0
        cdef ssize_t wrote
        cdef int code
        while done < size:
            if size - done >= GIL_RELEASE_BYTES:
                with nogil:
                    wrote = pwrite(self.fd, batch + done, <size_t>(size - done), self.position + done)
                    code = errno
            else:
                wrote = pwrite(self.fd, batch + done, <size_t>(size - done), self.position + done)
                code = errno
            if wrote > 0:
                done += wrote
                continue
            if wrote < 0 and code == EINTR:
                continue
            if wrote == 0:
                code = ENOSPC
            if code != ENOSPC and code != EDQUOT:
                self.fail(code, "write")
            # Readers never go past the published end, so nobody looks at what is cut here.
            if done > 0 and not self.preallocated and ftruncate(self.fd, self.position) != 0:
                self.fail(errno, "ftruncate")
            self.refuse(result, KAFKA_STORAGE_ERROR, -1, self.log.full_disk_text())
            return 1
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
            # A disk too full for an entry only makes lookups walk further.
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
            self.producers.update(
                info.producer_id, info.producer_epoch, info.base_sequence, info.last_offset_delta, last_offset,
                timestamp, info.attributes & ATTRIBUTE_TRANSACTIONAL != 0, &place)
            if self.verifications and info.attributes & ATTRIBUTE_TRANSACTIONAL:
                self.verifications.pop(info.producer_id, None)  # the open transaction speaks for itself now
        self.producers.end_offset = self.next_offset
        self.dirty = True
        self.unflushed_messages += info.record_count
        if self.unflushed_messages >= self.flush_messages:
            self.needs_sync = True
        if not self.announced:
            self.announced = True
            self.log.on_first_unflushed()
        return 0

    cdef int refuse(self, AppendResult* result, int code, int32_t bad_index, object text) except -1:
        result.error_code = <int16_t>code
        result.bad_record_index = bad_index
        result.base_offset = -1
        self.error_text = text
        return 0

    cdef int refuse_status(
        self, AppendResult* result, BatchStatus status, const BatchInfo* info, Py_ssize_t size, int32_t bad_index
    ) except -1:
        if size == 0:
            return self.refuse(result, INVALID_RECORD, -1, "a produce needs one record batch")
        if status == BATCH_BAD_MAGIC:
            if info.magic == 0 or info.magic == 1:
                return self.refuse(result, INVALID_RECORD, -1, "this version of Produce carries message format 2 only")
            return self.refuse(result, CORRUPT_MESSAGE, -1, f"message format {info.magic} does not exist")
        if status == BATCH_TOO_LARGE_DECOMPRESSED:
            return self.refuse(
                result, MESSAGE_TOO_LARGE, -1,
                f"the records decompress to more than {self.decompressed_bytes_max} bytes")
        code, text = REFUSALS[status]
        if code != INVALID_RECORD or bad_index >= info.record_count:
            bad_index = -1
        return self.refuse(result, code, bad_index, text)

    def fail(self, int code, str what):
        """Take the log out of service for good and raise StorageError."""
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
            # Never again: a second fsync after a failed one reports success for pages that are gone.
            self.fail(code, "fdatasync")
        self.needs_sync = False
        self.flushed_offset = self.next_offset
        self.unflushed_messages = 0
        self.announced = False
        return 0

    cdef int publish(self) except -1:
        cdef SlotData* data
        cdef LogEnd stable
        if self.slot < 0:
            return 0
        if not self.high_watermark_held:
            self.high_watermark.offset = self.next_offset
            self.high_watermark.segment_base_offset = self.base_offset
            self.high_watermark.position = self.position
        self.last_stable(&stable)
        data = self.table.begin_write(self.slot)
        data.log_start_offset = self.log_start_offset
        data.leader_epoch = self.leader_epoch
        data.log_end.offset = self.next_offset
        data.log_end.segment_base_offset = self.base_offset
        data.log_end.position = self.position
        data.high_watermark = self.high_watermark
        data.last_stable = stable
        data.aborted_version = self.aborted_version
        if self.segments_changed:
            data.segment_version += 1
        self.table.end_write(self.slot)
        self.segments_changed = False
        self.dirty = False
        return 0

    cdef int last_stable(self, LogEnd* out) except -1:
        """Where readers of committed records end: before the first record whose fate they cannot know.

        That is (a) of an open transaction, or (b) of one whose marker is not below the high watermark.
        """
        cdef ProducerEntry entry
        cdef int64_t watermark = self.high_watermark.offset
        out[0] = self.high_watermark
        if self.producers.open_transactions:
            entry = self.producers.oldest_open()
            if entry.transaction_place.segment_base_offset < 0 or entry.transaction_place.offset < self.log_start_offset:
                # Read from a snapshot, or its first records were deleted.
                place = self.log.place_of(max(entry.current_txn_first_offset, self.log_start_offset))
                self.producers.place_transaction(entry.producer_id, *place)
            if entry.transaction_place.offset < out.offset:
                out[0] = entry.transaction_place
        if self.unreplicated:
            if not self.high_watermark_held:
                self.unreplicated.clear()
                return 0
            self.unreplicated = [ended for ended in self.unreplicated if ended[1] >= watermark]
            for place, _ in self.unreplicated:
                if place[0] < self.log_start_offset:
                    place = self.log.place_of(self.log_start_offset)
                if place[0] < out.offset:
                    out.offset, out.segment_base_offset, out.position = place
        return 0

    # ---- transactions ------------------------------------------------------------------------------------------

    def append_marker(
        self, int64_t producer_id, int16_t producer_epoch, bint commit, int32_t coordinator_epoch, int64_t now_ms,
        int transaction_version=0
    ) -> tuple[int, int]:
        """End the producer's transaction: (error code, offset of the marker or -1). Does not publish.

        A marker without an open transaction is written too: it makes the producer's older epochs void here. From
        transaction version 2 on a marker's epoch is above that of the transaction it ends, so one that comes late ends
        no other; the same once more is written once more and changes nothing. StorageError as for an append.
        """
        cdef BatchInfo info
        cdef AppendResult result
        cdef uint8_t[::1] view
        cdef ProducerEntry entry = self.producers.entries.get(producer_id)
        cdef bint is_open = entry is not None and entry.current_txn_first_offset >= 0
        self.error_text = None
        if self.fd < 0:
            self.error_text = "the log is closed: its log directory failed"
            return KAFKA_STORAGE_ERROR, -1
        if entry is not None:
            if producer_epoch < entry.producer_epoch or (
                transaction_version >= 2 and producer_epoch == entry.producer_epoch and is_open
            ):
                self.error_text = f"producer {producer_id} has epoch {entry.producer_epoch}, the marker {producer_epoch}"
                return INVALID_PRODUCER_EPOCH, -1
            if coordinator_epoch < entry.coordinator_epoch:
                self.error_text = f"a coordinator of epoch {entry.coordinator_epoch} has ended transactions here"
                return TRANSACTION_COORDINATOR_FENCED, -1
        marker = marker_batch(producer_id, producer_epoch, commit, coordinator_epoch, now_ms)
        text = self.roll_if_due(len(marker), self.next_offset, now_ms, now_ms)
        if text is not None:
            self.error_text = text
            return KAFKA_STORAGE_ERROR, -1
        view = marker
        if self.log_append_time:
            patch_log_append_time(&view[0], view.shape[0], now_ms)
        patch_for_append(&view[0], self.next_offset, self.leader_epoch)
        if self.write(&view[0], view.shape[0], &result):
            return KAFKA_STORAGE_ERROR, -1
        if is_open and not commit:
            # INVARIANT: before the last stable offset passes the aborted records their entry can be read.
            text = self.log.add_aborted(
                producer_id, entry.current_txn_first_offset, self.next_offset,
                self.producers.stable_without(producer_id, self.next_offset + 1))
            if text is not None:
                if not self.preallocated and ftruncate(self.fd, self.position) != 0:
                    self.fail(errno, "ftruncate")
                self.error_text = text
                return KAFKA_STORAGE_ERROR, -1
        read_batch_header(&view[0], view.shape[0], &info)
        info.producer_id = -1  # not a batch of the producer's own
        self.note_marker(
            producer_id, producer_epoch, coordinator_epoch, now_ms, self.next_offset, is_open and not commit)
        self.note_appended(&info, view.shape[0], now_ms)
        return 0, self.next_offset - 1

    cdef int note_marker(
        self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp, int64_t offset,
        bint aborted
    ) except -1:
        cdef ProducerEntry entry = self.producers.entries.get(producer_id)
        if entry is not None and entry.current_txn_first_offset >= 0 and self.high_watermark_held:
            self.unreplicated.append((
                (
                    entry.transaction_place.offset, entry.transaction_place.segment_base_offset,
                    entry.transaction_place.position,
                ),
                offset,
            ))
        self.producers.end_transaction(producer_id, producer_epoch, coordinator_epoch, timestamp)
        self.verifications.pop(producer_id, None)
        if aborted:
            self.aborted_version += 1
        return 0

    def expire_producers(self, int64_t now_ms, int64_t expiration_ms) -> int:
        """``ProducerState.expire``, and forget verifications as old that led to nothing."""
        cdef Verification asked
        for producer_id, asked in list(self.verifications.items()):
            if now_ms - asked.started_ms >= expiration_ms:
                del self.verifications[producer_id]
        return self.producers.expire(now_ms, expiration_ms)

    def set_aborted_version(self, uint32_t version) -> None:
        """0 as long as the log has no aborted transaction at all."""
        self.aborted_version = version

    @property
    def last_stable_offset(self) -> int:
        cdef LogEnd stable
        if not self.high_watermark_held:
            self.high_watermark.offset = self.next_offset
            self.high_watermark.segment_base_offset = self.base_offset
            self.high_watermark.position = self.position
        self.last_stable(&stable)
        return stable.offset

    # ---- Python faces ------------------------------------------------------------------------------------------

    cdef int append_coordinated(self, uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result) except -1:
        """Append what a coordinator of this broker wrote in a transaction: records without a sequence number.

        That the transaction goes on is for the coordinator to know. COMPAT: the epoch is checked, nothing else of the
        producer, as with Kafka's appends of coordinators.
        """
        cdef BatchInfo info
        cdef int32_t bad_index = -1
        cdef BatchStatus status = check_stored_batch(batch, size, self.decompressed_bytes_max, &info, &bad_index)
        result.error_code = 0
        result.bad_record_index = -1
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = self.log_start_offset
        self.error_text = None
        if self.fd < 0:
            return self.refuse(result, KAFKA_STORAGE_ERROR, -1, "the log is closed: its log directory failed")
        if status == BATCH_OK and info.batch_length + BATCH_LENGTH_END != size:
            status = BATCH_TRAILING_BYTES
        if status != BATCH_OK:
            return self.refuse_status(result, status, &info, size, bad_index)
        if info.record_count <= 0 or info.producer_id < 0 or info.attributes & ATTRIBUTE_CONTROL:
            return self.refuse(result, INVALID_RECORD, -1, "these are no records of a transaction")
        if size > self.message_bytes_max or size > self.segment_bytes:
            return self.refuse(result, RECORD_LIST_TOO_LARGE, -1, f"a batch of {size} bytes is too large for this log")
        if self.check_coordinator_producer(&info, result):
            return 0
        return self.append_checked(batch, size, &info, now_ms, result)

    def verify(
        self, int64_t producer_id, int epoch, int base_sequence, int64_t now_ms, *, bint starts_at_zero=False
    ) -> int:
        """Python face of begin_verification, for tests."""
        return self.begin_verification(producer_id, <int16_t>epoch, base_sequence, starts_at_zero, now_ms)

    def append_batch(self, batch, int64_t now_ms, int64_t verification=NO_QUESTION):
        """Append a copy of one batch; (error code, base offset, append time, log start offset, bad record index).

        For coordinators and tests; ``error_text`` has the words. Does not publish. verification: of what a client sent.
        A transactional batch without a sequence number is a coordinator's.
        """
        cdef bytearray copy = bytearray(batch)
        cdef uint8_t[::1] view
        cdef uint8_t nothing = 0
        cdef AppendResult result
        if len(copy) == 0:
            self.append(&nothing, 0, now_ms, &result, verification)
        else:
            view = copy
            if (
                view.shape[0] >= BATCH_HEADER_BYTES
                and view[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_TRANSACTIONAL
                and load_i32(&view[BATCH_BASE_SEQUENCE_AT]) < 0
            ):
                self.append_coordinated(&view[0], view.shape[0], now_ms, &result)
            else:
                self.append(&view[0], view.shape[0], now_ms, &result, verification)
        return (
            result.error_code, result.base_offset, result.log_append_time_ms, result.log_start_offset,
            result.bad_record_index,
        )

    def append_set(self, data, int64_t now_ms):
        """Append a message set of format 0 or 1; answers as append_batch."""
        cdef bytes copy = bytes(data)
        cdef AppendResult result
        self.append_message_set(<const uint8_t*><const char*>copy, len(copy), now_ms, &result)
        return (
            result.error_code, result.base_offset, result.log_append_time_ms, result.log_start_offset,
            result.bad_record_index,
        )

    def sync_now(self) -> None:
        """Python face of sync."""
        self.sync()

    def publish_now(self) -> None:
        """Python face of publish."""
        self.publish()

    @property
    def start_offset(self) -> int:
        return self.log_start_offset

    @property
    def high_watermark_offset(self) -> int:
        return self.high_watermark.offset if self.high_watermark_held else self.next_offset
