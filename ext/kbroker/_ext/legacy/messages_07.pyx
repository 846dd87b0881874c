"""Messages of Kafka 0.7 become record batches of format 2.

Runs in `kbroker import-0.7`. One pass over the bytes for checksums and records; a compressed message is decompressed
into at most `decompressed_max` bytes, with what is compressed in it. No Python object per message; one for each that is
bad or compressed. Every length is checked against the bytes that are there.

WIRE: length i32 of what follows, magic i8, with magic 1 attributes i8 (bits 0-1: codec), CRC-32 of the payload u32,
payload. The payload of a compressed message is a sequence of such messages. The offset of a message is its position in
the partition's log.

Oracle: `tests/support/storage/messages_of_07.py`. Source: documents of 0.7, "Message format" and "Log".
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.growing cimport Bytes, resize
from kbroker._ext.base.wire cimport (
    load_i8,
    load_i32,
    load_u32,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_uvarlong,
    varint_size,
    zigzag32,
    zigzag64,
)
from kbroker._ext.record.codecs cimport UNPACK_TOO_LARGE, UNPACKED, UnpackStatus, pack, try_unpack
from kbroker._ext.record.legacy_records cimport crc32
from kbroker._ext.record.record_batch cimport (
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
    BATCH_CRC_AT,
    BATCH_CRC_FROM,
    BATCH_FIRST_TIMESTAMP_AT,
    BATCH_HEADER_BYTES,
    BATCH_LAST_OFFSET_DELTA_AT,
    BATCH_LENGTH_END,
    BATCH_MAGIC_AT,
    BATCH_MAX_TIMESTAMP_AT,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
    BATCH_RECORD_COUNT_AT,
    CODEC_NONE,
    CODEC_SNAPPY,
)

cdef enum:
    LENGTH_BYTES = 4
    HEADER_0_BYTES = 5             # magic and checksum
    HEADER_1_BYTES = 6             # and attributes
    CODEC_MASK = 3
    PAIR_BYTES = 16
    # BOUND: compressed messages in compressed ones. Clients of 0.7 write one level.
    DEPTH_MAX = 4
    # BOUND: of a record, without its payload.
    RECORD_HEADER_BYTES_MAX = 24
    # BOUND: bad messages of one region; the region ends there, and the next one continues.
    BAD_MAX = 10000

# Why a walk has stopped.
cdef enum Stop:
    AT_END = 0
    AT_PARTIAL = 1                 # the message continues after the bytes
    AT_LENGTH = 2                  # its length is impossible
    AT_MAGIC = 3
    AT_HEADER = 4
    AT_CHECKSUM = 5
    AT_COMPRESSED = 6
    AT_FULL = 7                    # the batch has no room for the message
    AT_LIMIT = 8                   # the output has reached its limit
    AT_MEMORY = 9

cdef struct Entry:
    Py_ssize_t size                # with the length
    int8_t magic
    int codec
    const uint8_t* payload
    int32_t payload_size

cdef struct Output:
    Bytes batch                    # after room for the header, the records of the batch that is open
    int32_t count                  # its records
    Py_ssize_t batch_bytes
    int64_t skip                   # records still to be left out
    int64_t offset                 # of the next record
    Py_ssize_t total               # bytes of finished batches
    Py_ssize_t total_max
    Bytes pairs


# Make room for this many more bytes. False: there is no memory.
cdef bint make_room(Bytes* bytes, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t capacity
    if more <= bytes.capacity - bytes.size:
        return True
    capacity = max(2 * bytes.capacity, bytes.size + more)
    if not resize(&bytes.data, <size_t>capacity):
        return False
    bytes.capacity = capacity
    return True


cdef Stop read_entry(const uint8_t* p, const uint8_t* end, Entry* entry) noexcept nogil:
    cdef int32_t length
    cdef Py_ssize_t header
    entry.size = 0
    if end - p < LENGTH_BYTES:
        return AT_PARTIAL
    length = load_i32(p)
    if length < HEADER_0_BYTES:
        return AT_LENGTH
    entry.size = <Py_ssize_t>length + LENGTH_BYTES
    if length > end - p - LENGTH_BYTES:
        return AT_PARTIAL
    entry.magic = load_i8(p + LENGTH_BYTES)
    entry.codec = CODEC_NONE
    header = HEADER_0_BYTES
    if entry.magic == 1:
        if length < HEADER_1_BYTES:
            return AT_HEADER
        header = HEADER_1_BYTES
        entry.codec = p[LENGTH_BYTES + 1] & CODEC_MASK
    elif entry.magic != 0:
        return AT_MAGIC
    entry.payload = p + LENGTH_BYTES + header
    entry.payload_size = length - <int32_t>header
    if load_u32(entry.payload - 4) != crc32(entry.payload, <size_t>entry.payload_size):
        return AT_CHECKSUM
    return AT_COMPRESSED if entry.codec else AT_END


# Note the position of a message and the offset that its first record gets.
cdef bint put_pair(Output* out, int64_t position) noexcept nogil:
    if not make_room(&out.pairs, PAIR_BYTES):
        return False
    store_i64(out.pairs.data + out.pairs.size, position)
    store_i64(out.pairs.data + out.pairs.size + 8, out.offset)
    out.pairs.size += PAIR_BYTES
    return True


# Append a record without key. AT_END, AT_FULL or AT_MEMORY; nothing has changed with the last two.
cdef Stop put_record(Output* out, const uint8_t* payload, int32_t payload_size) noexcept nogil:
    cdef int64_t size
    cdef uint8_t* p
    if out.skip > 0:
        out.skip -= 1
        out.offset += 1
        return AT_END
    # Attributes, timestamp delta, the null key and the header count take a byte each.
    size = 4 + varint_size(out.count) + varint_size(payload_size) + payload_size
    if out.count and out.batch.size + size + RECORD_HEADER_BYTES_MAX > out.batch_bytes:
        return AT_FULL
    if not make_room(&out.batch, <Py_ssize_t>size + RECORD_HEADER_BYTES_MAX):
        return AT_MEMORY
    p = store_uvarlong(out.batch.data + out.batch.size, zigzag64(size))
    p[0] = 0
    p[1] = 0
    p = store_uvarlong(p + 2, zigzag32(out.count))
    p = store_uvarlong(p, zigzag32(-1))
    p = store_uvarlong(p, zigzag32(payload_size))
    memcpy(p, payload, <size_t>payload_size)
    p += payload_size
    p[0] = 0
    out.batch.size = p + 1 - out.batch.data
    out.count += 1
    out.offset += 1
    return AT_END


# Take messages from *at on until one needs Python, which *at and *entry are then of. position: of `start` in the log;
# -1 within a compressed message.
cdef Stop walk(
    Output* out, const uint8_t* start, const uint8_t** at, const uint8_t* end, int64_t position, Entry* entry
) noexcept nogil:
    cdef Stop stop
    cdef Py_ssize_t pairs
    while at[0] != end:
        if position >= 0 and out.total + out.batch.size >= out.total_max:
            return AT_LIMIT
        stop = read_entry(at[0], end, entry)
        if stop != AT_END:
            return stop
        pairs = out.pairs.size
        if position >= 0 and not put_pair(out, position + (at[0] - start)):
            return AT_MEMORY
        stop = put_record(out, entry.payload, entry.payload_size)
        if stop != AT_END:
            out.pairs.size = pairs
            return stop
        at[0] += entry.size
    return AT_END


cdef dict WORDS = {
    AT_PARTIAL: "the log ends within the message",
    AT_LENGTH: "its length is impossible",
    AT_MAGIC: "its magic byte is neither 0 nor 1",
    AT_HEADER: "it is shorter than its header",
    AT_CHECKSUM: "it does not match its checksum",
}


@cython.final
cdef class Region:
    """What part of a log holds.

    batches: (batch, records in it). offset: of the record after the last one. consumed: bytes that are done, up to the
    begin of a message. wanted: bytes that the message there has; 0 if none is cut. lost: the length of the message
    there is impossible, so nothing after it can be read. pairs: for each message its position and the offset of its
    first record, i64 each. bad: (position, bytes, count, why) of messages that are left out: one of the log, or those in
    a compressed one of the log, which has the position and the bytes; why is that of the first.
    """

    cdef readonly list batches
    cdef readonly int64_t offset
    cdef readonly int64_t skip
    cdef readonly Py_ssize_t consumed
    cdef readonly Py_ssize_t wanted
    cdef readonly bint lost
    cdef readonly bytes pairs
    cdef readonly list bad
    cdef Output out
    cdef int codec
    cdef int64_t decompressed_max

    def __cinit__(self):
        memset(&self.out, 0, sizeof(Output))
        self.batches = []
        self.bad = []
        self.pairs = b""

    def __dealloc__(self):
        free(self.out.batch.data)
        free(self.out.pairs.data)

    cdef int _begin_batch(self) except -1:
        self.out.batch.size = 0
        self.out.count = 0
        if not make_room(&self.out.batch, BATCH_HEADER_BYTES):
            raise MemoryError
        self.out.batch.size = BATCH_HEADER_BYTES
        return 0

    # Complete the batch that is open, if it has records.
    cdef int _end_batch(self) except -1:
        cdef Output* out = &self.out
        cdef bytearray batch
        cdef bytes packed
        cdef uint8_t* p
        cdef Py_ssize_t size = out.batch.size
        if out.count == 0:
            return 0
        if self.codec != CODEC_NONE:
            packed = pack(self.codec, out.batch.data + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES, None)
            size = BATCH_HEADER_BYTES + len(packed)
            batch = PyByteArray_FromStringAndSize(NULL, size)
            memcpy(PyByteArray_AS_STRING(batch) + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed), <size_t>len(packed))
        else:
            batch = PyByteArray_FromStringAndSize(<const char*>out.batch.data, size)
        p = <uint8_t*>PyByteArray_AS_STRING(batch)
        memset(p, 0, BATCH_HEADER_BYTES)
        store_i32(p + 8, <int32_t>(size - BATCH_LENGTH_END))
        store_i32(p + BATCH_LENGTH_END, -1)
        store_i8(p + BATCH_MAGIC_AT, 2)
        store_i16(p + BATCH_ATTRIBUTES_AT, self.codec)
        store_i32(p + BATCH_LAST_OFFSET_DELTA_AT, out.count - 1)
        store_i64(p + BATCH_FIRST_TIMESTAMP_AT, -1)
        store_i64(p + BATCH_MAX_TIMESTAMP_AT, -1)
        store_i64(p + BATCH_PRODUCER_ID_AT, -1)
        store_i16(p + BATCH_PRODUCER_EPOCH_AT, -1)
        store_i32(p + BATCH_BASE_SEQUENCE_AT, -1)
        store_i32(p + BATCH_RECORD_COUNT_AT, out.count)
        store_u32(p + BATCH_CRC_AT, crc32c(p + BATCH_CRC_FROM, <size_t>(size - BATCH_CRC_FROM)))
        self.batches.append((batch, out.count))
        out.total += out.batch.size
        self._begin_batch()
        return 0

    cdef int _take(self, const uint8_t* data, Py_ssize_t size, int64_t position) except -1:
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef Entry entry
        cdef Stop stop
        cdef int64_t left
        cdef list found
        while len(self.bad) < BAD_MAX:
            with nogil:
                stop = walk(&self.out, data, &at, end, position, &entry)
            if stop == AT_FULL:
                self._end_batch()
                continue
            if stop == AT_MEMORY:
                raise MemoryError
            if stop == AT_END or stop == AT_LIMIT:
                break
            if stop == AT_PARTIAL:
                self.wanted = entry.size or LENGTH_BYTES
                break
            if stop == AT_LENGTH:
                self.lost = True
                break
            if stop == AT_COMPRESSED:
                if not put_pair(&self.out, position + (at - data)):
                    raise MemoryError
                left = self.decompressed_max
                found = []
                self._unwrap(&entry, found, 1, &left)
                if found:
                    self.bad.append((position + (at - data), entry.size, found[0], found[1]))
            else:
                self.bad.append((position + (at - data), entry.size, 1, WORDS[stop]))
            at += entry.size
        self.consumed = at - data
        return 0

    # Take the messages in a compressed one. found: gets how many are bad, and why the first is. left: bytes that they
    # may still have.
    cdef int _unwrap(self, const Entry* wrapper, list found, int depth, int64_t* left) except -1:
        cdef UnpackStatus status
        cdef bytes content
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* start
        cdef Entry entry
        cdef Stop stop
        if wrapper.codec > CODEC_SNAPPY:
            note(found, f"there is no codec {wrapper.codec}")
            return 0
        content = try_unpack(wrapper.codec, wrapper.payload, wrapper.payload_size, left[0], &status)
        if status != UNPACKED:
            note(found, f"it decompresses to more than {self.decompressed_max} bytes"
                 if status == UNPACK_TOO_LARGE else "it cannot be decompressed")
            return 0
        left[0] -= PyBytes_GET_SIZE(content)
        start = at = <const uint8_t*>PyBytes_AS_STRING(content)
        end = at + PyBytes_GET_SIZE(content)
        while True:
            with nogil:
                stop = walk(&self.out, start, &at, end, -1, &entry)
            if stop == AT_FULL:
                self._end_batch()
                continue
            if stop == AT_MEMORY:
                raise MemoryError
            if stop == AT_END:
                return 0
            if stop == AT_COMPRESSED and depth < DEPTH_MAX:
                self._unwrap(&entry, found, depth + 1, left)
            elif stop == AT_COMPRESSED:
                note(found, "it is compressed too often")
            else:
                note(found, f"at byte {at - start} of what is compressed: {WORDS[stop]}")
                if stop == AT_LENGTH or stop == AT_PARTIAL:
                    return 0
            at += entry.size


cdef int note(list found, object why) except -1:
    if found:
        found[0] += 1
    else:
        found.append(1)
        found.append(why)
    return 0


def read_region(
    data,
    *,
    int64_t position,
    int64_t offset,
    int64_t skip=0,
    Py_ssize_t batch_bytes=1 << 20,
    Py_ssize_t output_max=16 << 20,
    int64_t decompressed_max=64 << 20,
    int codec=0,
) -> Region:
    """Read the messages in `data`, which begins with one, at `position` of the log.

    offset: that the first record gets. skip: records to leave out at the begin, which count as the others do.
    batch_bytes: limit of a batch, which a single record may exceed. output_max: about how many bytes of records at
    most; a compressed message is read as a whole. decompressed_max: BOUND: bytes that one decompresses to. codec: of
    the batches.
    """
    cdef Region region = Region.__new__(Region)
    cdef Py_buffer view
    region.codec = codec
    region.decompressed_max = decompressed_max
    region.out.batch_bytes = batch_bytes
    # More than an empty batch, or no record would be read.
    region.out.total_max = max(output_max, BATCH_HEADER_BYTES + 1)
    region.out.skip = skip
    region.out.offset = offset
    region._begin_batch()
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        region._take(<const uint8_t*>view.buf, view.len, position)
    finally:
        PyBuffer_Release(&view)
    region._end_batch()
    region.offset = region.out.offset
    region.skip = region.out.skip
    region.pairs = PyBytes_FromStringAndSize(<const char*>region.out.pairs.data, region.out.pairs.size)
    return region
