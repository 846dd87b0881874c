"""Compaction of record batches: collects the keys of a dirty section, and copies the records that are kept.

Runs in the threads of the cleaner process, one object per thread. A batch is copied byte for byte unless one of its
records is dropped or it gets a delete horizon (KIP-534). Then its header and the kept records are rewritten with the same
offsets, first timestamp, producer and sequence numbers. The bytes of a kept record change only where a horizon becomes
the base of its timestamp. COPY: once into the output, for compressed batches once more on each side of their codec.

Messages of formats 0 and 1, from another broker's log, keep their format (``message_filter``): dropped messages are left
out, and a wrapper that loses some is rebuilt around the bytes of the others.

``storage.cleaned_transactions`` knows which transactions were aborted; it is asked for transactional and control batches
only. Damage raises ValueError: a batch that cannot be read is neither written nor dropped, not even in part.
"""
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.growing cimport Bytes, reserve
from kbroker._ext.base.offset_map cimport OffsetMap
from kbroker._ext.base.wire cimport (
    load_i32,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
)
from kbroker._ext.record.codecs cimport pack, unpack
from kbroker._ext.record.legacy_records cimport (
    ENTRY_HEADER_BYTES,
    MESSAGE_0_BYTES_MIN,
    MESSAGE_1_BYTES_MIN,
    MESSAGE_BAD_CRC,
    MESSAGE_CODEC_MASK,
    MESSAGE_LOG_APPEND_TIME,
    MESSAGE_OK,
    Message,
    MessageStatus,
    read_message,
    set_lz4_checksum,
    unwrapped,
)
from kbroker._ext.record.message_filter cimport (
    MESSAGES_MAP_FULL,
    MESSAGES_OK,
    Chosen,
    FilterStatus,
    MessageSet,
    choose_messages,
    copy_messages,
    index_messages,
    open_set,
    put_wrapper,
)
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_ATTRIBUTES_AT,
    BATCH_CRC_AT,
    BATCH_CRC_FROM,
    BATCH_FIRST_TIMESTAMP_AT,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_MAX_TIMESTAMP_AT,
    BATCH_OK,
    BATCH_RECORD_COUNT_AT,
    CODEC_LZ4,
    CODEC_NONE,
    BatchInfo,
    check_crc,
    offsets_fit,
    peek_batch_header,
)
from kbroker._ext.record.record_filter cimport (
    RECORDS_MAP_FULL,
    RECORDS_OK,
    Pass,
    choose_records,
    copy_records,
    index_records,
    marker_type,
)

from kbroker._ext.record.legacy_records import MessageSetRejected

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void* data, size_t size, long offset)

cdef enum:
    RECORD_BYTES_MIN = 7
    HORIZON_GROWTH_MAX = 10       # bytes that a record may grow by when its timestamp gets another base
    GIL_FREE_BYTES_MIN = 8192     # below it, releasing the GIL costs more than it gains
    BATCH_BYTES_MAX = 0x7FFFFFFF


# Whether the entry at p is of format 0 or 1; also False if there are too few bytes to tell.
cdef inline bint is_message(const uint8_t* p, Py_ssize_t left) noexcept nogil:
    return left >= MESSAGE_0_BYTES_MIN and p[BATCH_MAGIC_AT] < 2


cdef class BatchCleaner:
    """Feeds an offset map (``index_batches``), then filters with it (``clean_batches``).

    transactions: has ``on_batch(producer_id, last_offset)`` and ``on_marker(producer_id, last_offset, type)``, which tell
    whether the batch can be dropped for its transaction. producers: of each active one (last data offset or -1, epoch).
    drop_old_tombstones: messages of formats 0 and 1 without a value may be dropped; these have no delete horizon.
    """

    cdef OffsetMap map
    cdef readonly object transactions
    cdef public dict producers
    cdef public bint drop_old_tombstones
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef Py_ssize_t decompressed_max
    cdef object codec_lock
    cdef Bytes out
    cdef Bytes work                      # kept records on their way to a codec
    cdef Bytes keep
    cdef readonly bint full              # the map took no more keys
    cdef readonly int64_t needed         # bytes of the batch that did not fit what was given
    cdef readonly bint changed           # something was dropped or rewritten since `changed` was last cleared
    cdef readonly int64_t messages_indexed
    cdef readonly int64_t messages_read
    cdef readonly int64_t messages_kept
    cdef readonly int64_t keyless

    def __cinit__(
        self, OffsetMap map not None, transactions, codec_lock, *, int64_t now_ms, int64_t delete_retention_ms,
        Py_ssize_t decompressed_max
    ):
        """codec_lock: held while a codec runs, because codecs are not thread-safe."""
        self.map = map
        self.transactions = transactions
        self.producers = {}
        self.codec_lock = codec_lock
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.decompressed_max = decompressed_max

    def __dealloc__(self):
        free(self.out.data)
        free(self.work.data)
        free(self.keep.data)

    # ---- batches ----

    cdef Py_ssize_t batch_at(self, const uint8_t* p, Py_ssize_t left, BatchInfo* info) except -1:
        """Size of the batch at p, all but its records checked; 0, with ``needed`` set, if it is incomplete."""
        cdef int64_t size
        if left < BATCH_HEADER_BYTES:
            # The rest of a segment may be a single message, which is shorter than this header.
            self.needed = MESSAGE_0_BYTES_MIN if left < MESSAGE_0_BYTES_MIN else BATCH_HEADER_BYTES
            return 0
        if peek_batch_header(p, left, info) != BATCH_OK:
            raise ValueError("no batch header")
        size = <int64_t>info.batch_length + BATCH_LENGTH_END
        if size > left:
            self.needed = size
            return 0
        if not offsets_fit(info) or info.record_count < 0 or info.base_offset < 0:
            raise ValueError(f"the batch header at offset {info.base_offset} contradicts itself")
        if check_crc(p, info) != BATCH_OK:
            raise ValueError(f"the checksum of the batch at offset {info.base_offset} does not match")
        return <Py_ssize_t>size

    cdef bytes unpacked(self, const uint8_t* p, const BatchInfo* info):
        """The records of a compressed batch. Raises ValueError: damage, or more than the byte budget."""
        cdef Py_ssize_t size = info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
        try:
            with self.codec_lock:
                return unpack(
                    info.attributes & ATTRIBUTE_CODEC_MASK, p + BATCH_HEADER_BYTES, size, self.decompressed_max)
        except ValueError as error:
            raise ValueError(f"the batch at offset {info.base_offset}: {error}") from None

    # ---- messages of formats 0 and 1 ----

    cdef Py_ssize_t message_at(self, const uint8_t* p, Py_ssize_t left, Message* message) except -1:
        """Size of the message at p, checked; 0, with ``needed`` set, if it is incomplete."""
        cdef int64_t size = load_i32(p + BATCH_LENGTH_END - 4) + <int64_t>ENTRY_HEADER_BYTES
        cdef MessageStatus status
        if size < MESSAGE_0_BYTES_MIN:
            raise ValueError("no message")
        if size > left:
            self.needed = size
            return 0
        status = read_message(p, p + size, message)
        if status == MESSAGE_BAD_CRC:
            raise ValueError(f"the checksum of the message at offset {message.offset} does not match")
        if status != MESSAGE_OK:
            raise ValueError(f"the message at offset {message.offset} is damaged")
        return <Py_ssize_t>size

    cdef bytes open_message(self, const uint8_t* p, const Message* message, MessageSet* messages):
        """Set ``messages`` to those of a wrapper and return its content, or to the message itself and return None."""
        cdef bytes content = None
        if not message.attributes & MESSAGE_CODEC_MASK:
            if not open_set(p, message, NULL, 0, messages):
                raise ValueError(f"a message at offset {message.offset}")
            return None
        try:
            with self.codec_lock:
                content = unwrapped(message, self.decompressed_max)
        except MessageSetRejected as rejected:
            raise ValueError(f"the wrapper at offset {message.offset}: {rejected.args[1]}") from None
        if not open_set(p, message, <const uint8_t*>PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content), messages):
            raise ValueError(f"the messages in the wrapper at offset {message.offset} do not add up")
        return content

    cdef FilterStatus index_message(
        self, const uint8_t* p, const Message* message, int64_t start_offset
    ) except? MESSAGES_MAP_FULL:
        cdef MessageSet messages
        cdef FilterStatus status
        cdef bytes content
        if message.offset < start_offset:
            self.messages_indexed += 1
            return MESSAGES_OK
        content = self.open_message(p, message, &messages)
        self.messages_indexed += messages.count
        if messages.size < GIL_FREE_BYTES_MIN:
            status = index_messages(self.map, &messages, start_offset)
        else:
            with nogil:
                status = index_messages(self.map, &messages, start_offset)
        if status != MESSAGES_OK and status != MESSAGES_MAP_FULL:
            raise ValueError(f"the messages in the wrapper at offset {message.offset} are damaged")
        if status == MESSAGES_OK:
            self.map.latest_offset = max(self.map.latest_offset, messages.last_offset)
        return status

    cdef int clean_message(self, const uint8_t* p, const Message* message) except -1:
        cdef:
            MessageSet messages
            Chosen chosen
            FilterStatus status
            bytes content = self.open_message(p, message, &messages)
        self.messages_read += messages.count
        self.keep.size = 0
        reserve(&self.keep, messages.count)
        chosen.keep = self.keep.data
        if messages.size < GIL_FREE_BYTES_MIN:
            status = choose_messages(self.map, &messages, self.drop_old_tombstones, &chosen)
        else:
            with nogil:
                status = choose_messages(self.map, &messages, self.drop_old_tombstones, &chosen)
        if status != MESSAGES_OK:
            raise ValueError(f"the messages in the wrapper at offset {message.offset} are damaged")
        self.keyless += chosen.keyless
        self.messages_kept += chosen.count
        if chosen.count == messages.count:
            return self.copy_verbatim(p, message.size)
        self.changed = True
        if chosen.count == 0:
            return 0
        self.work.size = 0
        reserve(&self.work, chosen.size)
        copy_messages(&messages, &chosen, self.work.data)
        return self.write_wrapper(message, &chosen)

    cdef int write_wrapper(self, const Message* wrapper, const Chosen* chosen) except -1:
        """Write the wrapper around the messages in ``work``."""
        cdef:
            int codec = wrapper.attributes & MESSAGE_CODEC_MASK
            int64_t timestamp = chosen.max_timestamp
            bytes packed = self.packed(codec, self.work.data, chosen.size)
            Py_ssize_t size = PyBytes_GET_SIZE(packed)
        if codec == CODEC_LZ4 and wrapper.magic == 0:
            # COMPAT: KIP-57. `packed` has not been shared yet.
            set_lz4_checksum(<uint8_t*>PyBytes_AS_STRING(packed), size, True)
        if wrapper.attributes & MESSAGE_LOG_APPEND_TIME:
            timestamp = wrapper.timestamp
        if size > BATCH_BYTES_MAX - MESSAGE_1_BYTES_MIN:
            raise ValueError(f"the wrapper at offset {wrapper.offset} would grow beyond {BATCH_BYTES_MAX} bytes")
        reserve(&self.out, size + <Py_ssize_t>MESSAGE_1_BYTES_MIN)
        self.out.size += put_wrapper(
            wrapper, chosen.last_offset, timestamp, <const uint8_t*>PyBytes_AS_STRING(packed), <int32_t>size,
            self.out.data + self.out.size)
        return 0

    # ---- collecting keys ----

    def index_batches(self, data, int64_t start_offset) -> int:
        """Put the keys of whole batches into the map, those of records from ``start_offset`` on.

        Returns how many bytes are done; ``full`` when the map has no room for the batch after them.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.index_bytes(<const uint8_t*>view.buf, view.len, start_offset)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t index_bytes(self, const uint8_t* start, Py_ssize_t left, int64_t start_offset) except -1:
        cdef:
            const uint8_t* p = start
            Py_ssize_t size
            BatchInfo info
            Message message
            int status
        while left > 0:
            if is_message(p, left):
                size = self.message_at(p, left, &message)
                if size == 0:
                    break
                if self.index_message(p, &message, start_offset) == MESSAGES_MAP_FULL:
                    self.full = True
                    break
                p += size
                left -= size
                continue
            size = self.batch_at(p, left, &info)
            if size == 0:
                break
            status = self.index_batch(p, size, &info, start_offset)
            if status == RECORDS_MAP_FULL:
                self.full = True
                break
            if status != RECORDS_OK:
                raise ValueError(f"the records of the batch at offset {info.base_offset} are damaged")
            if info.base_offset + info.last_offset_delta >= start_offset:
                self.map.latest_offset = max(self.map.latest_offset, info.base_offset + info.last_offset_delta)
            p += size
            left -= size
        return p - start

    cdef int index_batch(self, const uint8_t* p, Py_ssize_t size, const BatchInfo* info, int64_t start_offset) except -1:
        cdef Pass records
        cdef bytes unpacked
        cdef int status
        cdef int64_t last_offset = info.base_offset + info.last_offset_delta
        records.records = p + BATCH_HEADER_BYTES
        records.size = size - BATCH_HEADER_BYTES
        self.messages_indexed += info.record_count
        if info.attributes & ATTRIBUTE_CONTROL:
            self.transactions.on_marker(info.producer_id, last_offset, marker_type(info, records.records, records.size))
            return RECORDS_OK
        if info.attributes & ATTRIBUTE_TRANSACTIONAL and self.transactions.on_batch(info.producer_id, last_offset):
            return RECORDS_OK
        if last_offset < start_offset or info.record_count == 0:
            return RECORDS_OK
        if info.attributes & ATTRIBUTE_CODEC_MASK != CODEC_NONE:
            unpacked = self.unpacked(p, info)
            records.records = <const uint8_t*>PyBytes_AS_STRING(unpacked)
            records.size = PyBytes_GET_SIZE(unpacked)
        if records.size < GIL_FREE_BYTES_MIN:
            return index_records(self.map, info, &records, start_offset)
        with nogil:
            status = index_records(self.map, info, &records, start_offset)
        return status

    def map_to(self, int64_t offset) -> None:
        """Everything up to ``offset`` is in the map, even if the last batch ends below it."""
        self.map.latest_offset = max(self.map.latest_offset, offset)

    # ---- copying what is kept ----

    def clean_batches(self, data) -> int:
        """Add the kept records of whole batches to the output; returns how many bytes are done."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.clean_bytes(<const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t clean_bytes(self, const uint8_t* start, Py_ssize_t left) except -1:
        cdef:
            const uint8_t* p = start
            Py_ssize_t size
            BatchInfo info
            Message message
        while left > 0:
            if is_message(p, left):
                size = self.message_at(p, left, &message)
                if size == 0:
                    break
                self.clean_message(p, &message)
            else:
                size = self.batch_at(p, left, &info)
                if size == 0:
                    break
                self.clean_batch(p, size, &info)
            p += size
            left -= size
        return p - start

    cdef bint is_last_of_producer(self, const BatchInfo* info) except -1:
        """Whether the producer's state needs this batch: for its last sequence number or, without data, its epoch."""
        cdef object last
        if info.producer_id < 0:
            return False
        last = self.producers.get(info.producer_id)
        if last is None:
            return False
        if last[0] >= 0:
            return info.base_offset + info.last_offset_delta == last[0]
        return info.attributes & ATTRIBUTE_CONTROL != 0 and info.producer_epoch == last[1]

    cdef int clean_batch(self, const uint8_t* p, Py_ssize_t size, const BatchInfo* info) except -1:
        cdef:
            bint is_control = info.attributes & ATTRIBUTE_CONTROL
            bint has_horizon = info.attributes & ATTRIBUTE_DELETE_HORIZON
            bint is_past = has_horizon and info.first_timestamp <= self.now_ms
            bint unneeded = False
            bint discard, set_horizon
            int64_t last_offset = info.base_offset + info.last_offset_delta
            Pass found
            bytes unpacked = None
        found.records = p + BATCH_HEADER_BYTES
        found.size = size - BATCH_HEADER_BYTES
        self.messages_read += info.record_count
        if is_control:
            unneeded = self.transactions.on_marker(
                info.producer_id, last_offset, marker_type(info, found.records, found.size))
            # INVARIANT: a marker outlives its transaction's records by delete.retention.ms.
            discard = unneeded and is_past
        else:
            if info.attributes & ATTRIBUTE_TRANSACTIONAL:
                unneeded = self.transactions.on_batch(info.producer_id, last_offset)
            discard = unneeded
        if discard or info.record_count == 0:
            if not self.is_last_of_producer(info):
                self.changed = True
                return 0
            return self.copy_verbatim(p, size) if info.record_count == 0 else self.write_empty(p, info)
        if info.attributes & ATTRIBUTE_CODEC_MASK != CODEC_NONE:
            unpacked = self.unpacked(p, info)
            found.records = <const uint8_t*>PyBytes_AS_STRING(unpacked)
            found.size = PyBytes_GET_SIZE(unpacked)
        self.choose(info, &found, is_past)
        if found.kept == 0:
            self.changed = True
            return self.write_empty(p, info) if self.is_last_of_producer(info) else 0
        self.messages_kept += found.kept
        set_horizon = not has_horizon and (unneeded if is_control else found.tombstone)
        if found.kept == info.record_count and not set_horizon:
            return self.copy_verbatim(p, size)
        return self.rewrite(p, info, &found, set_horizon)

    cdef int choose(self, const BatchInfo* info, Pass* found, bint drop_tombstones) except -1:
        cdef int status
        if info.record_count > found.size / RECORD_BYTES_MIN:
            raise ValueError(f"the batch at offset {info.base_offset} cannot hold {info.record_count} records")
        self.keep.size = 0
        reserve(&self.keep, info.record_count)
        found.keep = self.keep.data
        found.kept = found.keyless = 0
        found.tombstone = False
        found.max_timestamp = -1
        found.drop_tombstones = drop_tombstones
        if found.size < GIL_FREE_BYTES_MIN:
            status = choose_records(self.map, info, found)
        else:
            with nogil:
                status = choose_records(self.map, info, found)
        if status != RECORDS_OK:
            raise ValueError(f"the records of the batch at offset {info.base_offset} are damaged")
        self.keyless += found.keyless
        return 0

    cdef int copy_verbatim(self, const uint8_t* p, Py_ssize_t size) except -1:
        reserve(&self.out, size)
        memcpy(self.out.data + self.out.size, p, <size_t>size)
        self.out.size += size
        return 0

    cdef int rewrite(self, const uint8_t* p, const BatchInfo* info, Pass* found, bint set_horizon) except -1:
        """Write the batch with the kept records only. set_horizon: from then on its tombstones or marker may be dropped."""
        cdef:
            int codec = info.attributes & ATTRIBUTE_CODEC_MASK
            int64_t horizon = self.now_ms + self.delete_retention_ms
            uint64_t shift = <uint64_t>info.first_timestamp - <uint64_t>horizon
            Py_ssize_t room = found.size + (HORIZON_GROWTH_MAX * found.kept if set_horizon else 0)
            Py_ssize_t size
            Bytes* target = &self.out if codec == CODEC_NONE else &self.work
            uint8_t* header
            uint8_t* end
            bytes packed
        self.changed = True
        if codec != CODEC_NONE:
            self.work.size = 0
        reserve(target, BATCH_HEADER_BYTES + room)
        header = target.data + target.size
        with nogil:
            end = copy_records(info, found, set_horizon, shift, header + BATCH_HEADER_BYTES)
        size = end - header - BATCH_HEADER_BYTES
        if codec != CODEC_NONE:
            packed = self.packed(codec, header + BATCH_HEADER_BYTES, size)
            size = PyBytes_GET_SIZE(packed)
            reserve(&self.out, BATCH_HEADER_BYTES + size)
            header = self.out.data + self.out.size
            memcpy(header + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), <size_t>size)
        if size + BATCH_HEADER_BYTES > BATCH_BYTES_MAX:
            raise ValueError(f"the batch at offset {info.base_offset} would grow beyond {BATCH_BYTES_MAX} bytes")
        memcpy(header, p, BATCH_HEADER_BYTES)
        if set_horizon:
            store_i16(header + BATCH_ATTRIBUTES_AT, <int16_t>(info.attributes | ATTRIBUTE_DELETE_HORIZON))
            store_i64(header + BATCH_FIRST_TIMESTAMP_AT, horizon)
        if not info.attributes & ATTRIBUTE_LOG_APPEND_TIME:
            store_i64(header + BATCH_MAX_TIMESTAMP_AT, found.max_timestamp)
        store_i32(header + BATCH_RECORD_COUNT_AT, found.kept)
        finish_header(header, BATCH_HEADER_BYTES + size)
        self.out.size += BATCH_HEADER_BYTES + size
        return 0

    cdef bytes packed(self, int codec, const uint8_t* data, Py_ssize_t size):
        with self.codec_lock:
            return pack(codec, data, size, None)

    cdef int write_empty(self, const uint8_t* p, const BatchInfo* info) except -1:
        """Only the header is left: it keeps the producer's epoch and last sequence. It has no codec and no horizon."""
        cdef uint8_t* header
        self.changed = True
        reserve(&self.out, BATCH_HEADER_BYTES)
        header = self.out.data + self.out.size
        memcpy(header, p, BATCH_HEADER_BYTES)
        store_i16(
            header + BATCH_ATTRIBUTES_AT,
            <int16_t>(info.attributes & (ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL)))
        store_i64(header + BATCH_FIRST_TIMESTAMP_AT, -1)
        store_i32(header + BATCH_RECORD_COUNT_AT, 0)
        finish_header(header, BATCH_HEADER_BYTES)
        self.out.size += BATCH_HEADER_BYTES
        return 0

    # ---- output ----

    @property
    def output_bytes(self) -> int:
        """Waiting to be written."""
        return self.out.size

    def write_output(self, int fd, int64_t position) -> int:
        """Write the output to a file and clear it; returns the number of bytes. Raises OSError."""
        cdef Py_ssize_t done = 0
        cdef ssize_t put
        while done < self.out.size:
            with nogil:
                put = pwrite(fd, self.out.data + done, <size_t>(self.out.size - done), position + done)
            if put < 0:
                if errno == EINTR:
                    continue
                raise OSError(errno, os.strerror(errno))
            done += put
        self.out.size = 0
        return done

    def begin_output(self) -> None:
        """Start a new file: forget everything about the last one."""
        self.out.size = 0
        self.changed = False


cdef void finish_header(uint8_t* header, Py_ssize_t size) noexcept nogil:
    store_i32(header + 8, <int32_t>(size - BATCH_LENGTH_END))
    store_u32(header + BATCH_CRC_AT, crc32c(header + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM)))
