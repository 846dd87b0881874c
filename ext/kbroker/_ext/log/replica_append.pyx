"""Appends of a follower: batches as they come from the leader (see replica_append.pxd).

"Batch" includes a message of format 0 or 1, a wrapper with its content for one. Runs in the io worker that owns the
partition. A batch costs its checksum and a share of one ``pwrite``; no Python
object unless it has a producer id or starts a leader epoch or a segment. Nothing is trusted: the bytes come from another
machine, over a network, from a disk that may be bad.
"""
from libc.stdint cimport int16_t

from kbroker._ext.base.buffers cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.wire cimport load_i32, load_i64, load_u32
from kbroker._ext.log.log_scan cimport marker_epoch
from kbroker._ext.log.producer_state cimport ProducerEntry
from kbroker._ext.record.legacy_records cimport (
    MESSAGE_0_BYTES_MIN,
    MESSAGE_BAD_CRC,
    MESSAGE_CRC_AT,
    MESSAGE_CRC_FROM,
    MESSAGE_OK,
    Message,
    MessageStatus,
    crc32,
    read_message,
)
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CONTROL,
    BATCH_BAD_MAGIC,
    BATCH_CRC_FROM,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_OK,
    peek_batch_header,
)


cdef int64_t OFFSET_MAX = 0x7FFFFFFFFFFFFFFF

cdef enum:
    NO_EPOCH = -1
    RELATIVE_OFFSET_MAX = 0x7FFFFFFF

# FetchedFault for Python.
ALL = FETCHED_ALL
CLOSED = FETCHED_CLOSED
NO_ROOM = FETCHED_NO_ROOM
BAD_LENGTH = FETCHED_BAD_LENGTH
BAD_MAGIC = FETCHED_BAD_MAGIC
BAD_CRC = FETCHED_BAD_CRC
BAD_COUNT = FETCHED_BAD_COUNT
OFFSET_BACK = FETCHED_OFFSET_BACK
EPOCH_BACK = FETCHED_EPOCH_BACK
EPOCH_AHEAD = FETCHED_EPOCH_AHEAD


# Check the batch at `data`. FETCHED_ALL with a *size of 0: it is incomplete; out.needed is its size.
cdef FetchedFault check_fetched(
    const uint8_t* data, Py_ssize_t left, int64_t next_offset, int32_t last_epoch, int32_t leader_epoch,
    BatchInfo* info, Py_ssize_t* size, Fetched* out
) noexcept nogil:
    cdef int64_t whole
    size[0] = 0
    out.needed = BATCH_MAGIC_AT + 1
    if left < BATCH_MAGIC_AT + 1:
        return FETCHED_ALL
    out.base_offset = load_i64(data)
    whole = <int64_t>load_i32(data + 8) + BATCH_LENGTH_END
    if data[BATCH_MAGIC_AT] < 2:
        return check_message(data, left, next_offset, whole, info, size, out)
    if data[BATCH_MAGIC_AT] > 2:
        return FETCHED_BAD_MAGIC
    if whole < BATCH_HEADER_BYTES:
        return FETCHED_BAD_LENGTH
    out.needed = <Py_ssize_t>whole
    # Faults in the header are reported before the rest of the batch has arrived.
    if left < BATCH_HEADER_BYTES:
        return FETCHED_ALL
    peek_batch_header(data, BATCH_HEADER_BYTES, info)
    out.leader_epoch = info.partition_leader_epoch
    if info.last_offset_delta < 0 or info.record_count < 0:
        return FETCHED_BAD_COUNT
    if info.base_offset > OFFSET_MAX - 1 - info.last_offset_delta:
        return FETCHED_BAD_LENGTH
    if info.base_offset < next_offset:
        return FETCHED_OFFSET_BACK
    if info.partition_leader_epoch < last_epoch:
        return FETCHED_EPOCH_BACK
    if info.partition_leader_epoch > leader_epoch:
        return FETCHED_EPOCH_AHEAD
    if left < whole:
        return FETCHED_ALL
    out.stored_crc = info.crc
    out.computed_crc = crc32c(data + BATCH_CRC_FROM, <size_t>(whole - BATCH_CRC_FROM))
    if out.stored_crc != out.computed_crc:
        return FETCHED_BAD_CRC
    size[0] = <Py_ssize_t>whole
    return FETCHED_ALL


# The same for a message of format 0 or 1. A wrapper has the offset of its last message; those of the others are within.
cdef FetchedFault check_message(
    const uint8_t* data, Py_ssize_t left, int64_t next_offset, int64_t whole, BatchInfo* info, Py_ssize_t* size,
    Fetched* out
) noexcept nogil:
    cdef Message message
    cdef MessageStatus status
    if whole < MESSAGE_0_BYTES_MIN:
        return FETCHED_BAD_LENGTH
    out.needed = <Py_ssize_t>whole
    out.leader_epoch = NO_EPOCH
    if out.base_offset > OFFSET_MAX - 1:
        return FETCHED_BAD_LENGTH
    if out.base_offset < next_offset:
        return FETCHED_OFFSET_BACK
    if left < whole:
        return FETCHED_ALL
    status = read_message(data, data + whole, &message)
    if status == MESSAGE_BAD_CRC:
        out.stored_crc = load_u32(data + MESSAGE_CRC_AT)
        out.computed_crc = crc32(data + MESSAGE_CRC_FROM, <size_t>(whole - MESSAGE_CRC_FROM))
        return FETCHED_BAD_CRC
    if status != MESSAGE_OK:
        return FETCHED_BAD_LENGTH
    info.magic = message.magic
    info.base_offset = message.offset
    info.last_offset_delta = 0
    info.partition_leader_epoch = NO_EPOCH
    info.attributes = 0
    info.max_timestamp = message.timestamp
    info.producer_id = -1
    info.record_count = 1
    size[0] = <Py_ssize_t>whole
    return FETCHED_ALL


# Whether offsets are missing between the end of a log without gaps and a batch. Messages of formats 0 and 1 do not tell.
cdef inline bint leaves_gap(LogAppender log, const BatchInfo* info, int64_t end_offset) noexcept nogil:
    return info.magic == 2 and info.base_offset > end_offset and log.gapless


# Make room for a batch in the active segment, if need be after a gap. Returns None, or why there is no room.
cdef object make_room(LogAppender log, const BatchInfo* info, Py_ssize_t size, int64_t now_ms):
    cdef int64_t last_offset = info.base_offset + info.last_offset_delta
    if leaves_gap(log, info, log.next_offset):
        # INVARIANT: recovery knows that there may be gaps before there is one.
        text = log.log.expect_gaps()
        if text is not None:
            return text
    if not log.roll_due(size, last_offset, info.max_timestamp, now_ms):
        return None
    if last_offset - log.next_offset > RELATIVE_OFFSET_MAX:
        # Compaction has left a gap that no segment can span: the new segment begins after it.
        log.next_offset = info.base_offset
        log.transactions.producers.end_offset = info.base_offset
    return log.log.roll(now_ms)


# Note a batch that has been written: updates the log's ends, epochs, producers and indexes. Returns None, or why there
# is no room.
cdef object note_fetched(LogAppender log, const uint8_t* data, Py_ssize_t size, BatchInfo* info, int32_t* last_epoch):
    cdef int32_t coordinator_epoch = -1
    cdef bint is_abort = False
    cdef ProducerEntry entry
    if info.attributes & ATTRIBUTE_CONTROL:
        coordinator_epoch = marker_epoch(data, size, &is_abort)
    if coordinator_epoch >= 0:
        entry = log.transactions.producers.entries.get(info.producer_id)
        is_abort = is_abort and entry is not None and entry.current_txn_first_offset >= 0
        if is_abort:
            # INVARIANT: the entry can be read before the last stable offset passes the aborted records.
            text = log.log.add_aborted(
                info.producer_id, entry.current_txn_first_offset, info.base_offset + info.last_offset_delta,
                log.transactions.producers.stable_without(
                    info.producer_id, info.base_offset + info.last_offset_delta + 1))
            if text is not None:
                return text
        log.transactions.note_marker(
            info.producer_id, info.producer_epoch, coordinator_epoch, info.max_timestamp,
            info.base_offset + info.last_offset_delta, is_abort, not log.high_watermark_held)
    if info.magic < 2 and last_epoch[0] != NO_EPOCH:
        # COMPAT: as in Kafka; where older epochs end is not known any more.
        last_epoch[0] = NO_EPOCH
        log.log.epochs.forget()
        log.log.keep_epochs()
    if info.partition_leader_epoch > last_epoch[0]:
        last_epoch[0] = info.partition_leader_epoch
        log.log.epochs.assign(info.partition_leader_epoch, info.base_offset, write=False)
    if info.attributes & ATTRIBUTE_CONTROL:
        info.producer_id = -1  # not a batch of the producer's own
    log.next_offset = info.base_offset
    log.note_appended(info, size, info.max_timestamp)
    return None


cdef int append_fetched(
    LogAppender log, const uint8_t* data, Py_ssize_t size, int32_t leader_epoch, int64_t now_ms, Fetched* out
) except -1:
    cdef:
        BatchInfo infos[FETCHED_RUN_MAX]
        Py_ssize_t sizes[FETCHED_RUN_MAX]
        Py_ssize_t total
        int64_t end_offset
        int32_t last_epoch, run_epoch
        int count = FETCHED_RUN_MAX
        bint gap
    out.taken = out.needed = 0
    out.base_offset = -1
    out.leader_epoch = NO_EPOCH
    out.stored_crc = out.computed_crc = 0
    out.fault = FETCHED_ALL
    log.error_text = None
    latest = log.log.epochs.latest if log.fd >= 0 else None
    last_epoch = NO_EPOCH if latest is None else latest
    while out.fault == FETCHED_ALL and count > 0:
        if log.fd < 0:
            out.fault = FETCHED_CLOSED
            break
        total = 0
        count = 0
        end_offset = log.next_offset
        run_epoch = last_epoch
        while count < FETCHED_RUN_MAX:
            out.fault = check_fetched(
                data + out.taken + total, size - out.taken - total, end_offset, run_epoch, leader_epoch,
                &infos[count], &sizes[count], out)
            if out.fault != FETCHED_ALL or sizes[count] == 0:
                break
            # The first batch of a segment decides when the segment is full, so it is written alone.
            gap = leaves_gap(log, &infos[count], end_offset)
            end_offset = infos[count].base_offset + infos[count].last_offset_delta + 1
            if count > 0 and (
                gap
                or log.position == 0
                or log.roll_due(total + sizes[count], end_offset - 1, infos[count].max_timestamp, now_ms)
            ):
                break
            if count == 0:
                log.error_text = make_room(log, &infos[0], sizes[0], now_ms)
                if log.error_text is not None:
                    out.fault = FETCHED_NO_ROOM
                    return 0
            run_epoch = infos[count].partition_leader_epoch
            total += sizes[count]
            count += 1
        if count > 0:
            write_run(log, data + out.taken, infos, sizes, count, total, &last_epoch, out)
    return 0


# Write these batches and record them. Updates out.taken, and out.fault if not all of them could be appended.
cdef int write_run(
    LogAppender log, const uint8_t* data, BatchInfo* infos, const Py_ssize_t* sizes, int count, Py_ssize_t total,
    int32_t* last_epoch, Fetched* out
) except -1:
    cdef int32_t before = last_epoch[0]
    cdef int i
    text = log.write(data, total, NULL)
    if text is None:
        for i in range(count):
            text = note_fetched(log, data, sizes[i], &infos[i], last_epoch)
            if text is not None:
                log.cut_back()
                break
            data += sizes[i]
            out.taken += sizes[i]
    if last_epoch[0] != before:
        log.log.keep_epochs()
    if text is not None:
        log.error_text = text
        out.fault = FETCHED_NO_ROOM
    return 0


def append_replica(LogAppender log not None, data, int leader_epoch, int64_t now_ms) -> tuple:
    """Python face of append_fetched: (fault, bytes taken, bytes needed, base offset, leader epoch, both checksums).

    The last four are of the batch at fault. Raises StorageError.
    """
    cdef Py_buffer view
    cdef Fetched out
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        append_fetched(log, <const uint8_t*>view.buf, view.len, <int32_t>leader_epoch, now_ms, &out)
    finally:
        PyBuffer_Release(&view)
    return (
        <int>out.fault, out.taken, out.needed, out.base_offset, out.leader_epoch, out.stored_crc, out.computed_crc)
