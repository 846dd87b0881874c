"""Appends to a log, one checked batch at a time (see log_append.pxd).

Runs in the io worker that owns the partition. Cost per batch beyond checksum and record walk: one system call, and no
Python object unless the batch has a producer id (dict lookups) or is rejected. ``log_tail`` writes the file;
``log_transactions`` decides whether the producer may send the batch.

If the disk is full, the batch is rejected (KAFKA_STORAGE_ERROR) and the next append tries again.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcpy

from kbroker._ext.base.error_codes cimport (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    KAFKA_STORAGE_ERROR,
    MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from kbroker._ext.base.socket_api cimport iovec
from kbroker._ext.base.wire cimport load_i32, load_i64
from kbroker._ext.log.log_transactions cimport (
    DUPLICATE_SEQUENCE_NUMBER,
    NO_QUESTION,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from kbroker._ext.log.producer_state cimport ProducerBatch, ProducerEntry
from kbroker._ext.record.batch_repack cimport repacked_batch
from kbroker._ext.record.down_convert cimport DownConverter
from kbroker._ext.record.legacy_records cimport batch_of_message_set
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_BAD_BASE_OFFSET,
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
    BATCH_MAGIC_AT,
    BATCH_OK,
    BATCH_PRODUCER_ID_AT,
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

from kbroker._ext.record.legacy_records import MessageSetRejected



cdef enum:
    # BOUND: bad records named in a response, so that their indexes fit into a lane message.
    BAD_RECORDS_MAX = 1000

cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF

# BatchStatus -> (error code, error message)
cdef dict REJECTIONS = {
    BATCH_TRUNCATED: (CORRUPT_MESSAGE, "the record batch is shorter than its length field says"),
    BATCH_BAD_LENGTH: (CORRUPT_MESSAGE, "the record batch's length is smaller than its header"),
    BATCH_BAD_CRC: (CORRUPT_MESSAGE, "the record batch does not match its checksum"),
    BATCH_BAD_RECORD_COUNT: (INVALID_RECORD, "the record count does not match the batch's offsets"),
    BATCH_BAD_OFFSET_DELTA: (INVALID_RECORD, "the record's offset delta does not match its position in the batch"),
    BATCH_BAD_RECORD: (INVALID_RECORD, "the record's lengths are inconsistent"),
    BATCH_BAD_TIMESTAMP: (INVALID_TIMESTAMP, "a timestamp is out of range, or the producer has set log append time"),
    BATCH_UNKNOWN_CODEC: (UNSUPPORTED_COMPRESSION_TYPE, "the compression type is unknown"),
    BATCH_DECOMPRESS_FAILED: (INVALID_RECORD, "the records cannot be decompressed"),
    BATCH_TRAILING_BYTES: (INVALID_RECORD, "there are bytes after the last record, or more than one batch"),
    BATCH_CONTROL_FROM_CLIENT: (INVALID_RECORD, "clients may not write control records"),
    BATCH_BAD_SEQUENCE: (INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence number"),
    BATCH_BAD_BASE_OFFSET: (INVALID_RECORD, "a producer's batch must have base offset 0: the broker assigns offsets"),
}


cdef tuple result_tuple(const AppendResult* result):
    return (
        result.error_code, result.base_offset, result.log_append_time_ms, result.log_start_offset,
        result.bad_record_index,
    )


cdef bint is_plain(const uint8_t* batch) noexcept nogil:
    return (
        batch[BATCH_MAGIC_AT] == 2
        and load_i64(batch + BATCH_PRODUCER_ID_AT) < 0
        and not batch[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_TRANSACTIONAL
    )


cdef class LogAppender(LogTail):
    """Appends to one log. Created by its ``PartitionLog``."""

    def __cinit__(self):
        self.stored_magic = 2

    def configure(
        self, *, int64_t message_bytes_max, int64_t decompressed_bytes_max, int64_t segment_bytes, int64_t segment_ms,
        int64_t index_interval_bytes, int64_t flush_messages, int64_t timestamp_before_max_ms,
        int64_t timestamp_after_max_ms, bint log_append_time, bint compacted, int codec=-1, level=None,
        int stored_magic=2
    ) -> None:
        """Set the limits from the topic's configuration; may be called again at any time.

        segment_ms: after subtracting jitter. codec: compression codec of every stored batch, -1: the producer's.
        level: compression level of that codec, or None. stored_magic: message format in which clients' batches are
        stored.
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

    # ---- batches of clients ------------------------------------------------------------------------------------

    cdef int append(
        self, const uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1:
        cdef BatchInfo info
        cdef BatchStatus status
        cdef int32_t bad_index = -1
        cdef bytearray repacked = None
        if self.reject_unread(size, result):
            return 0
        if self.codec >= 0 and size >= BATCH_HEADER_BYTES and (
            batch[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_CODEC_MASK != self.codec
        ):
            repacked = repacked_batch(
                batch, size, self.decompressed_bytes_max, self.codec, self.level, &info, &status, &bad_index)
        else:
            status = check_produced_batch(batch, size, self.decompressed_bytes_max, &info, &bad_index)
        if status != BATCH_OK:
            return self.reject_status(result, status, &info, size, bad_index)
        if repacked is None:
            return self.append_walked(batch, size, &info, now_ms, result, verification)
        return self.append_made(repacked, &info, now_ms, result, verification)

    cdef int append_run(
        self, const uint8_t* arena, const ProduceDescriptor* d, int count, int64_t now_ms, AppendResult* results
    ) except -1:
        cdef:
            BatchInfo infos[RUN_MAX]
            uint8_t headers[RUN_MAX][BATCH_HEADER_BYTES]
            iovec pieces[2 * RUN_MAX]
            const uint8_t* batch
            Py_ssize_t size, total = 0
            int64_t offset = self.next_offset, timestamp
            int32_t bad_index = -1
            int i, taken = 0
        if self.fd < 0 or self.codec >= 0 or self.stored_magic < 2 or self.position == 0:
            return 0
        for i in range(min(count, <int>RUN_MAX)):
            batch, size = arena + d[i].arena_offset, d[i].size
            if size > self.message_bytes_max:
                break
            if check_produced_batch(batch, size, self.decompressed_bytes_max, &infos[i], &bad_index) != BATCH_OK:
                break
            timestamp = now_ms if self.log_append_time else infos[i].walked_max_timestamp
            if (
                (self.compacted and infos[i].keyless_count > 0)
                or not (self.log_append_time or self.is_in_time(&infos[i], now_ms))
                or self.roll_due(total + size, offset + infos[i].last_offset_delta, timestamp, now_ms)
            ):
                break
            self.stamp(headers[i], batch, size, &infos[i], now_ms)
            patch_for_append(headers[i], offset, self.leader_epoch)
            pieces[2 * i].iov_base = headers[i]
            pieces[2 * i].iov_len = BATCH_HEADER_BYTES
            pieces[2 * i + 1].iov_base = <void*>(batch + BATCH_HEADER_BYTES)
            pieces[2 * i + 1].iov_len = <size_t>(size - BATCH_HEADER_BYTES)
            total += size
            offset += infos[i].last_offset_delta + 1
            taken = i + 1
        if taken == 0 or not self.write_run(pieces, 2 * taken, total):
            return 0
        for i in range(taken):
            self.reject_unread(0, &results[i])
            results[i].base_offset = self.next_offset
            timestamp = infos[i].walked_max_timestamp
            if self.log_append_time:
                results[i].log_append_time_ms = timestamp = now_ms
            self.note_appended(&infos[i], d[i].size, timestamp)
            results[i].end_offset = self.next_offset
        return taken

    cdef int append_message_set(
        self, const uint8_t* data, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1:
        cdef BatchInfo info
        cdef bytearray batch
        if self.reject_unread(0, result):  # the size limit applies to each of its messages, and to the new batch
            return 0
        try:
            batch = batch_of_message_set(
                data, size, self.message_bytes_max, self.decompressed_bytes_max, self.codec, self.level, &info)
        except MessageSetRejected as rejected:
            code, text, bad_index = rejected.args
            return self.reject(result, code, bad_index, text)
        return self.append_made(batch, &info, now_ms, result, NO_QUESTION)

    cdef int append_made(
        self, bytearray batch, const BatchInfo* info, int64_t now_ms, AppendResult* result, int64_t verification
    ) except -1:
        """Append a batch that was created here from a client's data; its records are valid."""
        cdef Py_ssize_t size = len(batch)
        if size > self.message_bytes_max:
            return self.reject(
                result, MESSAGE_TOO_LARGE, -1,
                f"the record batch takes {size} bytes when stored, but max.message.bytes of the topic is "
                f"{self.message_bytes_max}")
        return self.append_walked(<uint8_t*>PyByteArray_AS_STRING(batch), size, info, now_ms, result, verification)

    cdef int reject_unread(self, Py_ssize_t size, AppendResult* result) except -1:
        """Initialize *result; return 1, with an error in it, if no batch of this size can be appended."""
        result.error_code = 0
        result.bad_record_index = -1
        result.base_offset = -1
        result.log_append_time_ms = -1
        result.log_start_offset = self.log_start_offset
        self.error_text = None
        self.more_bad_records = None
        if self.fd < 0:
            self.reject(result, KAFKA_STORAGE_ERROR, -1, "the log is closed: its log directory failed")
        elif size > self.message_bytes_max:
            self.reject(
                result, MESSAGE_TOO_LARGE, -1,
                f"the record batch has {size} bytes, but max.message.bytes of the topic is {self.message_bytes_max}")
        return result.error_code != 0

    cdef int append_walked(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result,
        int64_t verification
    ) except -1:
        """Append a batch whose bytes are sound, if the topic's settings, its timestamps and its producer allow it."""
        cdef ProducerBatch earlier
        cdef int code
        if size > self.segment_bytes:
            return self.reject(
                result, RECORD_LIST_TOO_LARGE, -1,
                f"the record batch has {size} bytes, but segment.bytes of the topic is {self.segment_bytes}")
        if self.compacted and info.keyless_count > 0:
            found = self.log.records_without_key(PyBytes_FromStringAndSize(<const char*>batch, size), self.decompressed_bytes_max)
            return self.reject_records(
                result, INVALID_RECORD, found, "every record in a compacted topic needs a key")
        if info.attributes & ATTRIBUTE_TRANSACTIONAL and info.producer_id < 0:
            return self.reject(result, INVALID_RECORD, -1, "a transactional batch needs a producer id")
        if self.stored_magic < 2 and info.producer_id >= 0:
            return self.reject(
                result, UNSUPPORTED_FOR_MESSAGE_FORMAT, -1,
                "the message.format.version of the topic does not support idempotent producers or transactions")
        if not self.log_append_time and self.check_timestamps(batch, size, info, now_ms, result):
            return 0
        if info.producer_id >= 0:
            code = self.transactions.check_batch(info, verification, &earlier)
            if code == OUT_OF_ORDER_SEQUENCE_NUMBER and self.transactions.producers.abridged:
                # It may be a duplicate of a batch from before the broker started.
                text = self.log.recall_batches()
                if text is not None:
                    return self.reject(result, KAFKA_STORAGE_ERROR, -1, text)
                code = self.transactions.check_batch(info, verification, &earlier)
            if code == DUPLICATE_SEQUENCE_NUMBER:
                result.base_offset = earlier.last_offset - earlier.offset_delta
                result.end_offset = earlier.last_offset + 1
                if earlier.last_offset >= self.flushed_offset:
                    self.sync_if_due()
                if self.log_append_time:
                    result.log_append_time_ms = earlier.timestamp
                return 0
            if code != 0:
                return self.reject(result, code, -1, self.transactions.error_text)
        return self.append_checked(batch, size, info, now_ms, result)

    cdef int append_checked(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1:
        cdef int64_t timestamp = now_ms if self.log_append_time else info.walked_max_timestamp
        cdef uint8_t header[BATCH_HEADER_BYTES]
        if self.stored_magic < 2 and not info.attributes & ATTRIBUTE_CONTROL:
            return self.append_older(batch, size, info, timestamp, now_ms, result)
        text = self.roll_if_due(size, self.next_offset + info.last_offset_delta, timestamp, now_ms)
        if text is not None:
            return self.reject(result, KAFKA_STORAGE_ERROR, -1, text)
        self.stamp(header, batch, size, info, now_ms)
        if self.log_append_time:
            result.log_append_time_ms = now_ms
        text = self.write(batch, size, header)
        if text is not None:
            return self.reject(result, KAFKA_STORAGE_ERROR, -1, text)
        result.base_offset = self.next_offset
        self.note_appended(info, size, timestamp)
        result.end_offset = self.next_offset
        return 0

    cdef int append_older(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t timestamp, int64_t now_ms,
        AppendResult* result
    ) except -1:
        """Append the records as messages of format 0 or 1, as the topic's settings require."""
        cdef bytearray copy = bytearray(PyBytes_FromStringAndSize(<const char*>batch, size))
        cdef uint8_t* stamped = <uint8_t*>PyByteArray_AS_STRING(copy)
        cdef Py_ssize_t made
        cdef int16_t code
        self.stamp(stamped, stamped, size, info, now_ms)
        if self.older is None:
            self.older = DownConverter.__new__(DownConverter)
        try:
            code = self.older.convert_batch(stamped, size, self.stored_magic)
            made = self.older.out.size
            if code != 0:
                return self.reject(
                    result, code, -1,
                    "the message.format.version of the topic does not support "
                    f"{'record headers' if code == UNSUPPORTED_FOR_MESSAGE_FORMAT else 'this compression type'}")
            if made > self.segment_bytes:
                return self.reject(
                    result, RECORD_LIST_TOO_LARGE, -1,
                    f"the messages have {made} bytes, but segment.bytes of the topic is {self.segment_bytes}")
            text = self.roll_if_due(made, self.next_offset + info.last_offset_delta, timestamp, now_ms)
            if text is not None:
                return self.reject(result, KAFKA_STORAGE_ERROR, -1, text)
            text = self.write(self.older.out.data, made, NULL)
            if text is not None:
                return self.reject(result, KAFKA_STORAGE_ERROR, -1, text)
        finally:
            self.older.clear()
        if self.log_append_time:
            result.log_append_time_ms = now_ms
        result.base_offset = self.next_offset
        self.note_appended(info, made, timestamp if self.stored_magic > 0 else -1)
        result.end_offset = self.next_offset
        return 0

    cdef void stamp(
        self, uint8_t* header, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms
    ) noexcept nogil:
        """Write the header that the batch gets in the log, with offsets, leader epoch and the right timestamps."""
        cdef const uint8_t* records = batch + BATCH_HEADER_BYTES
        if header != batch:
            memcpy(header, batch, BATCH_HEADER_BYTES)
        if self.log_append_time:
            patch_log_append_time(header, records, size - BATCH_HEADER_BYTES, now_ms)
        elif info.walked_max_timestamp != info.max_timestamp:
            patch_max_timestamp(header, records, size - BATCH_HEADER_BYTES, info.walked_max_timestamp)
        patch_for_append(header, self.next_offset, self.leader_epoch)

    cdef bint is_in_time(self, const BatchInfo* info, int64_t now_ms) noexcept nogil:
        """Whether every record's create time is close enough to now. -1 ("no timestamp") is always accepted."""
        if self.timestamp_after_max_ms < NO_LIMIT - now_ms and (
            info.walked_max_timestamp > now_ms + self.timestamp_after_max_ms
        ):
            return False
        return info.walked_min_timestamp == -1 or info.walked_min_timestamp >= now_ms - self.timestamp_before_max_ms

    cdef int check_timestamps(
        self, const uint8_t* batch, Py_ssize_t size, const BatchInfo* info, int64_t now_ms, AppendResult* result
    ) except -1:
        """Return 1, with an error in *result, if the batch is not ``is_in_time``."""
        cdef int64_t earliest = now_ms - self.timestamp_before_max_ms
        cdef int64_t latest = NO_LIMIT
        if self.timestamp_after_max_ms < NO_LIMIT - now_ms:
            latest = now_ms + self.timestamp_after_max_ms
        if self.is_in_time(info, now_ms):
            return 0
        found = self.log.records_outside(
            PyBytes_FromStringAndSize(<const char*>batch, size), self.decompressed_bytes_max, earliest, latest)
        self.reject_records(
            result, INVALID_TIMESTAMP, found,
            f"the timestamp is not within [{earliest}, {latest}], which message.timestamp.before.max.ms and "
            "message.timestamp.after.max.ms allow")
        return 1

    cdef int reject(self, AppendResult* result, int code, int32_t bad_index, object text) except -1:
        result.error_code = <int16_t>code
        result.bad_record_index = bad_index
        result.base_offset = -1
        self.error_text = text
        return 0

    cdef int reject_records(self, AppendResult* result, int code, list found, object text) except -1:
        """Reject the batch because of the records with these indexes (KIP-467)."""
        self.reject(result, code, found[0] if found else -1, text)
        self.more_bad_records = found[1:BAD_RECORDS_MAX]
        return 0

    cdef int reject_status(
        self, AppendResult* result, BatchStatus status, const BatchInfo* info, Py_ssize_t size, int32_t bad_index
    ) except -1:
        if size == 0:
            return self.reject(result, INVALID_RECORD, -1, "a produce request needs one record batch per partition")
        if status == BATCH_BAD_MAGIC:
            if info.magic == 0 or info.magic == 1:
                return self.reject(result, INVALID_RECORD, -1, "this version of Produce carries message format 2 only")
            return self.reject(result, CORRUPT_MESSAGE, -1, f"message format {info.magic} does not exist")
        if status == BATCH_TOO_LARGE_DECOMPRESSED:
            return self.reject(
                result, MESSAGE_TOO_LARGE, -1,
                f"the records decompress to more than max.decompressed.message.bytes ({self.decompressed_bytes_max})")
        code, text = REJECTIONS[status]
        if code != INVALID_RECORD or bad_index >= info.record_count:
            bad_index = -1
        return self.reject(result, code, bad_index, text)

    # ---- records of coordinators -------------------------------------------------------------------------------

    def append_marker(
        self, int64_t producer_id, int16_t producer_epoch, bint commit, int32_t coordinator_epoch, int64_t now_ms,
        int transaction_version=0
    ) -> tuple[int, int]:
        """Append a marker that ends the producer's transaction. Returns (error code, offset of the marker or -1).

        Does not publish. A marker without an open transaction is written as well: it fences the producer's older epochs
        in this log. From transaction version 2 on, a marker's epoch is higher than that of the transaction it ends, so
        a late marker cannot end a later transaction; a repeated one is written again and changes nothing. Raises
        StorageError as an append does.
        """
        cdef BatchInfo info
        cdef bytearray marker
        cdef uint8_t* batch
        cdef Py_ssize_t size
        cdef ProducerEntry entry = self.transactions.producers.entries.get(producer_id)
        cdef bint is_open = entry is not None and entry.current_txn_first_offset >= 0
        cdef int code
        self.error_text = None
        if self.fd < 0:
            self.error_text = "the log is closed: its log directory failed"
            return KAFKA_STORAGE_ERROR, -1
        code = self.transactions.check_marker(entry, producer_epoch, coordinator_epoch, transaction_version)
        if code != 0:
            self.error_text = self.transactions.error_text
            return code, -1
        marker = self.log.marker(producer_id, producer_epoch, commit, coordinator_epoch, now_ms)
        size = len(marker)
        text = self.roll_if_due(size, self.next_offset, now_ms, now_ms)
        if text is not None:
            self.error_text = text
            return KAFKA_STORAGE_ERROR, -1
        batch = <uint8_t*>PyByteArray_AS_STRING(marker)
        if self.log_append_time:
            patch_log_append_time(batch, batch + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES, now_ms)
        patch_for_append(batch, self.next_offset, self.leader_epoch)
        text = self.write(batch, size, NULL)
        if text is not None:
            self.error_text = text
            return KAFKA_STORAGE_ERROR, -1
        if is_open and not commit:
            # INVARIANT: the entry can be read before the last stable offset passes the aborted records.
            text = self.log.add_aborted(
                producer_id, entry.current_txn_first_offset, self.next_offset,
                self.transactions.producers.stable_without(producer_id, self.next_offset + 1))
            if text is not None:
                self.cut_back()
                self.error_text = text
                return KAFKA_STORAGE_ERROR, -1
        read_batch_header(batch, size, &info)
        info.producer_id = -1  # not a batch of the producer's own
        self.transactions.note_marker(
            producer_id, producer_epoch, coordinator_epoch, now_ms, self.next_offset, is_open and not commit,
            not self.high_watermark_held)
        self.note_appended(&info, size, now_ms)
        return 0, self.next_offset - 1

    cdef int append_coordinated(
        self, const uint8_t* batch, Py_ssize_t size, int64_t now_ms, AppendResult* result
    ) except -1:
        """Append records that a coordinator of this broker wrote in a transaction; they have no sequence number.

        The coordinator has made sure that the transaction is ongoing. COMPAT: as for the appends of Kafka's
        coordinators, only the producer's epoch is checked.
        """
        cdef BatchInfo info
        cdef int32_t bad_index = -1
        cdef int code
        cdef BatchStatus status = check_stored_batch(batch, size, self.decompressed_bytes_max, &info, &bad_index)
        if self.reject_unread(0, result):
            return 0
        if status == BATCH_OK and info.batch_length + BATCH_LENGTH_END != size:
            status = BATCH_TRAILING_BYTES
        if status != BATCH_OK:
            return self.reject_status(result, status, &info, size, bad_index)
        if info.record_count <= 0 or info.producer_id < 0 or info.attributes & ATTRIBUTE_CONTROL:
            return self.reject(result, INVALID_RECORD, -1, "the batch is not part of a transaction")
        if size > self.message_bytes_max or size > self.segment_bytes:
            return self.reject(result, RECORD_LIST_TOO_LARGE, -1, f"a batch of {size} bytes is too large for this log")
        code = self.transactions.check_coordinated(&info)
        if code != 0:
            return self.reject(result, code, -1, self.transactions.error_text)
        return self.append_checked(batch, size, &info, now_ms, result)

    # ---- Python faces ------------------------------------------------------------------------------------------

    def verify(
        self, int64_t producer_id, int epoch, int base_sequence, int64_t now_ms, *, bint starts_at_zero=False
    ) -> int:
        """Python face of begin_verification, for tests."""
        return self.transactions.begin_verification(producer_id, <int16_t>epoch, base_sequence, starts_at_zero, now_ms)

    def append_batch(self, batch, int64_t now_ms, int64_t verification=NO_QUESTION):
        """Append a copy of one batch, for coordinators and tests; ``error_text`` has the error message.

        Returns (error code, base offset, append time, log start offset, bad record index). Does not publish.
        verification: for a client's batch. A transactional batch without a sequence number is a coordinator's.
        """
        cdef bytearray copy = bytearray(batch)
        cdef uint8_t* p = <uint8_t*>PyByteArray_AS_STRING(copy)
        cdef Py_ssize_t size = len(copy)
        cdef AppendResult result
        if (
            size >= BATCH_HEADER_BYTES
            and p[BATCH_ATTRIBUTES_AT + 1] & ATTRIBUTE_TRANSACTIONAL
            and load_i32(p + BATCH_BASE_SEQUENCE_AT) < 0
        ):
            self.append_coordinated(p, size, now_ms, &result)
        else:
            self.append(p, size, now_ms, &result, verification)
        return result_tuple(&result)

    def append_set(self, data, int64_t now_ms):
        """Append a message set of format 0 or 1; returns the same as append_batch."""
        cdef bytes copy = bytes(data)
        cdef AppendResult result
        self.append_message_set(<const uint8_t*><const char*>copy, len(copy), now_ms, &result)
        return result_tuple(&result)
