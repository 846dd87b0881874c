"""Walks fetched record sets batch by batch, for code that turns records into columns or counts.

Runs in clients. A fetch response has more than the requested records: it begins with the batch that
has the fetch offset, contains control records and, for read_committed, aborted records, and may end
within a batch. The cursor skips all of that. Only decompression by a Python package needs the GIL.
The bytes are not trusted: each length is compared with what is left.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kbroker._ext.base.wire cimport load_i32, load_i64
from kbroker._ext.record.codec_frames cimport Lz4DecodeBlock, decode_plain_lz4, plain_lz4_bound
from kbroker._ext.record.codecs cimport (
    UNPACK_TOO_LARGE,
    UnpackStatus,
    lz4_block_decoder,
    try_unpack,
)
from kbroker._ext.record.legacy_records cimport (
    ENTRY_HEADER_BYTES,
    MESSAGE_0_BYTES_MIN,
    unwrapped,
)
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    BATCH_LAST_OFFSET_DELTA_AT,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_OK,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    check_crc,
    offsets_fit,
    read_batch_header,
)

cdef enum:
    # The size of an entry with an empty message of format 0; a batch is larger.
    ENTRY_BYTES_MIN = MESSAGE_0_BYTES_MIN
    # BOUND: size of the buffer kept for the next LZ4 batch.
    SCRATCH_BYTES_MAX = 33554432

WORDS = {
    DAMAGE_LENGTH: "a length is impossible",
    DAMAGE_MAGIC: "the format is unknown",
    DAMAGE_CRC: "the checksum does not match",
    DAMAGE_HEADER: "the header of a batch is inconsistent",
    DAMAGE_RECORD: "the fields of a record are inconsistent",
    DAMAGE_CODEC: "the compression type is unknown",
    DAMAGE_COMPRESSED: "the records cannot be decompressed",
    DAMAGE_TOO_LARGE: "the records decompress to more than the limit",
    DAMAGE_ORDER: "its offsets are not above those of the batch before it",
}

# liblz4's block decoder, NULL if the lz4 package does not expose it; looked up for the first LZ4 batch.
cdef Lz4DecodeBlock _decode_block = NULL
cdef bint _decode_block_known = False


class RecordsDamaged(ValueError):
    """Fetched records are damaged. ``args``: the offset of their batch, error message."""


cdef class RecordCursor:
    """Reads the records with offsets in ``[start, end)`` from the sets passed to ``load``, in order.

    decompressed_max: BOUND: decompressed bytes per batch.
    """

    def __cinit__(self, int64_t start, int64_t end, int64_t decompressed_max, bint check_crcs):
        self.next_offset = start
        self.end = end
        self.leader_epoch = -1
        self._decompressed_max = decompressed_max
        self._check_crcs = check_crcs
        self._loaded = False
        self._scratch = NULL
        self._aborted = NULL
        self._active = NULL
        memset(&self.run, 0, sizeof(Run))

    def __dealloc__(self):
        self._unload()
        free(self._scratch)

    cdef void _unload(self) noexcept:
        if self._loaded:
            PyBuffer_Release(&self._view)
            self._loaded = False
        free(self._aborted)
        free(self._active)
        self._aborted = NULL
        self._active = NULL
        self._aborted_count = self._aborted_at = self._active_count = 0
        self._pos = self._limit = NULL
        self.run.pos = self.run.end = NULL
        self.run.left = 0
        self._content = None

    def load(self, records, aborted=()):
        """Continue with a fetched record set.

        records: any contiguous buffer, which must not change until the set has been read. It may begin
            below ``next_offset`` and end within a batch.
        aborted: (producer id, first offset) of the aborted transactions in it; empty: read all records.
        """
        cdef Py_ssize_t n = 0
        self._unload()
        if records is None:
            return
        listed = sorted(aborted or (), key=_second)
        if listed:
            self._aborted = <Aborted*>malloc(len(listed) * sizeof(Aborted))
            self._active = <int64_t*>malloc(len(listed) * sizeof(int64_t))
            if self._aborted == NULL or self._active == NULL:
                raise MemoryError
            for producer_id, first_offset in listed:
                self._aborted[n].producer_id = producer_id
                self._aborted[n].first_offset = first_offset
                n += 1
            self._aborted_count = n
        PyObject_GetBuffer(records, &self._view, PyBUF_SIMPLE)
        self._loaded = True
        self._pos = <const uint8_t*>self._view.buf
        self._limit = self._pos + self._view.len

    def unload(self):
        """Release the set."""
        self._unload()

    cdef RunStatus _damaged(self, Damage damage, int64_t offset) noexcept nogil:
        self.damage = damage
        self.damaged_at = offset
        self._pos = self._limit
        return RUN_DAMAGED

    cdef void finish_run(self) noexcept nogil:
        if self.run.next_offset > self.next_offset:
            self.next_offset = self.run.next_offset
        self.run.pos = self.run.end = NULL
        self.run.left = 0

    cdef RunStatus next_run(self) noexcept nogil:
        cdef:
            const uint8_t* p
            int32_t size
            RunStatus status
        while True:
            if self.next_offset >= self.end:
                return RUN_END
            p = self._pos
            if self._limit - p < ENTRY_BYTES_MIN:
                return RUN_NONE
            size = load_i32(p + 8)
            if size < ENTRY_BYTES_MIN - ENTRY_HEADER_BYTES:
                return self._damaged(DAMAGE_LENGTH, load_i64(p))
            if size > self._limit - p - ENTRY_HEADER_BYTES:
                return RUN_NONE
            self._pos = p + ENTRY_HEADER_BYTES + size
            if p[BATCH_MAGIC_AT] == 2:
                status = self._next_batch(p)
            elif p[BATCH_MAGIC_AT] < 2:
                status = self._next_legacy(p)
            else:
                return self._damaged(DAMAGE_MAGIC, load_i64(p))
            if status != RUN_NONE:
                return status

    # ---- format 2

    # RUN_NONE: the batch has no wanted records.
    cdef RunStatus _next_batch(self, const uint8_t* p) noexcept nogil:
        cdef BatchInfo* info = &self._info
        cdef int64_t last
        cdef bint aborted
        if read_batch_header(p, self._pos - p, info) != BATCH_OK:
            return self._damaged(DAMAGE_LENGTH, load_i64(p))
        if (
            info.base_offset < 0 or info.record_count < 0 or not offsets_fit(info)
            or info.record_count > <int64_t>info.last_offset_delta + 1
        ):
            return self._damaged(DAMAGE_HEADER, info.base_offset)
        if info.base_offset >= self.end:
            self.next_offset = self.end
            return RUN_END
        last = info.base_offset + info.last_offset_delta
        self._batch = p
        aborted = self._is_aborted()
        if last < self.next_offset:
            return RUN_NONE
        if self._check_crcs and check_crc(p, info) != BATCH_OK:
            return self._damaged(DAMAGE_CRC, info.base_offset)
        self.leader_epoch = info.partition_leader_epoch
        if aborted or info.attributes & ATTRIBUTE_CONTROL or info.record_count == 0:
            self.next_offset = last + 1
            return RUN_NONE
        return RUN_CLOSED if self.keep_closed else self._open_batch()

    # Whether the batch in _info belongs to an aborted transaction. INVARIANT: called for each batch, in order.
    cdef bint _is_aborted(self) noexcept nogil:
        cdef:
            int64_t last = self._info.base_offset + self._info.last_offset_delta
            int64_t producer_id = self._info.producer_id
            Py_ssize_t i
        if self._aborted_count == 0:
            return False
        while self._aborted_at < self._aborted_count and self._aborted[self._aborted_at].first_offset <= last:
            # SAFETY: each entry is added once, and there is room for all.
            self._active[self._active_count] = self._aborted[self._aborted_at].producer_id
            self._active_count += 1
            self._aborted_at += 1
        if not self._info.attributes & ATTRIBUTE_TRANSACTIONAL:
            return False
        for i in range(self._active_count):
            if self._active[i] == producer_id:
                if self._info.attributes & ATTRIBUTE_CONTROL:
                    # The abort marker: later batches of this producer belong to another transaction.
                    self._active_count -= 1
                    self._active[i] = self._active[self._active_count]
                return True
        return False

    cdef RunStatus _open_batch(self) noexcept nogil:
        cdef int codec = self._info.attributes & ATTRIBUTE_CODEC_MASK
        if codec == CODEC_NONE:
            self._open_records(
                self._batch + BATCH_HEADER_BYTES,
                self._info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES,
            )
            return RUN_READY
        if codec > CODEC_ZSTD:
            return self._damaged(DAMAGE_CODEC, self._info.base_offset)
        if codec == CODEC_LZ4 and _decode_block != NULL:
            return self._open_lz4()
        return RUN_NEEDS_GIL

    cdef void _open_records(self, const uint8_t* p, int64_t size) noexcept nogil:
        cdef Run* run = &self.run
        cdef BatchInfo* info = &self._info
        run.pos = p
        run.end = p + size
        run.left = info.record_count
        run.last_offset_delta = info.last_offset_delta
        run.base_offset = info.base_offset
        run.previous_offset = -1
        run.first_timestamp = info.first_timestamp
        run.append_time = info.max_timestamp
        run.next_offset = info.base_offset + info.last_offset_delta + 1
        run.magic = 2
        run.timestamp_type = 1 if info.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
        self.batches += 1

    # Decode into the scratch buffer; RUN_NEEDS_GIL for a frame that only the Python package can decode.
    cdef RunStatus _open_lz4(self) noexcept nogil:
        cdef:
            const uint8_t* p = self._batch + BATCH_HEADER_BYTES
            Py_ssize_t size = self._info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
            int64_t bound = plain_lz4_bound(p, size)
            int64_t found
        if bound < 0 or bound > self._decompressed_max:
            return RUN_NEEDS_GIL
        if self._scratch == NULL or self._scratch_size < bound or self._scratch_size > SCRATCH_BYTES_MAX:
            free(self._scratch)
            self._scratch_size = bound if bound > 0 else 1
            self._scratch = <uint8_t*>malloc(<size_t>self._scratch_size)
            if self._scratch == NULL:
                return RUN_NEEDS_GIL
        found = decode_plain_lz4(p, size, self._scratch, bound, _decode_block)
        if found < 0:
            return self._damaged(DAMAGE_COMPRESSED, self._info.base_offset)
        self._open_records(self._scratch, found)
        return RUN_READY

    cdef bint open_run(self) except -1:
        global _decode_block, _decode_block_known
        cdef UnpackStatus unpacked
        cdef int codec = self._info.attributes & ATTRIBUTE_CODEC_MASK
        cdef Py_ssize_t size
        cdef RunStatus status
        if self._batch[BATCH_MAGIC_AT] < 2:
            return self._open_wrapper()
        if codec == CODEC_LZ4 and not _decode_block_known:
            _decode_block = lz4_block_decoder()
            _decode_block_known = True
            status = self._open_batch()
            if status != RUN_NEEDS_GIL:
                return status == RUN_READY
        size = self._info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
        self._content = None
        self._content = try_unpack(
            codec, self._batch + BATCH_HEADER_BYTES, size, self._decompressed_max, &unpacked)
        if self._content is None:
            self._damaged(
                DAMAGE_TOO_LARGE if unpacked == UNPACK_TOO_LARGE else DAMAGE_COMPRESSED, self._info.base_offset)
            return False
        self._open_records(<const uint8_t*>PyBytes_AS_STRING(self._content), PyBytes_GET_SIZE(self._content))
        return True

    # ---- formats 0 and 1

    cdef RunStatus _next_legacy(self, const uint8_t* p) noexcept nogil:
        cdef Message* message = &self._wrapper
        cdef Run* run = &self.run
        if load_i64(p) < self.next_offset and load_i64(p) >= 0:
            return RUN_NONE  # a wrapper has the offset of its last message
        if read_message(p, self._pos, message) != MESSAGE_OK or message.offset < 0:
            return self._damaged(DAMAGE_CRC, load_i64(p))
        self._batch = p
        if message.attributes & MESSAGE_CODEC_MASK:
            return RUN_NEEDS_GIL
        if message.offset >= self.end:
            self.next_offset = self.end
            return RUN_END
        run.pos = p
        run.end = self._pos
        run.base_offset = 0
        self._open_messages()
        return RUN_READY

    # The common part of opening a message and a set in a wrapper.
    cdef void _open_messages(self) noexcept nogil:
        cdef Run* run = &self.run
        self.leader_epoch = -1
        run.left = 0
        run.previous_offset = -1
        run.magic = self._wrapper.magic
        run.append_time = self._wrapper.timestamp
        run.next_offset = self._wrapper.offset + 1 if self._wrapper.offset < INT64_MAX else INT64_MAX
        run.timestamp_type = -1
        if run.magic == 1:
            run.timestamp_type = 1 if self._wrapper.attributes & MESSAGE_LOG_APPEND_TIME else 0
        self.batches += 1

    cdef bint _open_wrapper(self) except -1:
        from kbroker._ext.record.legacy_records import MessageSetRejected
        cdef:
            const uint8_t* p
            const uint8_t* end
            int64_t last = -1
            int32_t size
        self._content = None
        try:
            self._content = unwrapped(&self._wrapper, self._decompressed_max)
        except MessageSetRejected as rejected:
            self._damaged(DAMAGE_TOO_LARGE if rejected.args[0] == 10 else DAMAGE_COMPRESSED, self._wrapper.offset)
            return False
        p = <const uint8_t*>PyBytes_AS_STRING(self._content)
        end = p + PyBytes_GET_SIZE(self._content)
        self.run.pos = p
        self.run.end = end
        self.run.base_offset = 0
        if self._wrapper.magic == 1:
            # Offsets in a wrapper of format 1 are relative; the wrapper has the absolute offset of the last message.
            while end - p >= ENTRY_HEADER_BYTES:
                last = load_i64(p)
                size = load_i32(p + 8)
                if size < 0 or size > end - p - ENTRY_HEADER_BYTES:
                    break
                p += ENTRY_HEADER_BYTES + size
            if last < 0 or last > self._wrapper.offset:
                self._damaged(DAMAGE_HEADER, self._wrapper.offset)
                return False
            self.run.base_offset = self._wrapper.offset - last
        self._open_messages()
        return True


def _second(pair):
    return pair[1]


def damage_words(int damage) -> str:
    """The error message for a Damage."""
    return WORDS[damage]


def end_offset(records, int64_t start) -> int:
    """Find the offset after the last complete batch of a record set, from headers only; ``start`` if there is none.

    An impossible header ends the walk: reading the records then reports the problem. Raises RecordsDamaged for a batch
    of format 2 that does not begin above the end of the previous one: no checksum covers a batch's base offset, and a
    reader would skip one of the two as already read or not wanted.
    """
    cdef:
        Py_buffer view
        const uint8_t* p
        const uint8_t* limit
        int32_t size
        int64_t last, previous = -1
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        limit = p + view.len
        while limit - p >= ENTRY_BYTES_MIN:
            size = load_i32(p + 8)
            if size < ENTRY_BYTES_MIN - ENTRY_HEADER_BYTES or size > limit - p - ENTRY_HEADER_BYTES:
                break
            last = load_i64(p)
            if p[BATCH_MAGIC_AT] == 2:
                if size < BATCH_HEADER_BYTES - BATCH_LENGTH_END or load_i32(p + BATCH_LAST_OFFSET_DELTA_AT) < 0:
                    break
                if last < 0 or last > INT64_MAX - 1 - load_i32(p + BATCH_LAST_OFFSET_DELTA_AT):
                    break
                if last <= previous:
                    raise RecordsDamaged(last, WORDS[DAMAGE_ORDER])
                last += load_i32(p + BATCH_LAST_OFFSET_DELTA_AT)
                previous = last
            if last < 0 or last == INT64_MAX:
                break
            start = max(start, last + 1)
            p += ENTRY_HEADER_BYTES + size
    finally:
        PyBuffer_Release(&view)
    return start
