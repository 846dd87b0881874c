"""Down-conversion: batches of format 2 become message sets of format 0 or 1.

Runs in network processes. A compressed batch becomes a wrapper with the same codec, an uncompressed one plain messages,
one after the other. Headers are dropped, in format 0 timestamps too; control batches and records below the requested
offset are left out. Messages of formats 0 and 1 in a log of an older broker stay as they are, except those of format 1
that a reader of format 0 asks for. The checksum of a batch is verified, because its messages get checksums of their own.
COPY: of every record, one more of those that are compressed; no Python object a record.

Oracle: ``tests/support/storage/message_sets.py``. Source: protocol guide, "Message sets"; KIP-31, KIP-32, KIP-57, KIP-98.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.unistd cimport pread

from kbroker._ext.base.error_codes cimport (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
from kbroker._ext.base.growing cimport Bytes, reserve
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    bytes_left,
    load_i32,
    load_i64,
    make_reader,
    read_raw,
    read_varint,
    read_varlong,
    skip,
    store_i8,
    store_i32,
    store_i64,
    store_u32,
)
from kbroker._ext.record.codecs cimport UnpackStatus, pack, try_unpack
from kbroker._ext.record.legacy_records cimport (
    ENTRY_HEADER_BYTES,
    MESSAGE_0_BYTES_MIN,
    MESSAGE_1_BYTES_MIN,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CODEC_MASK,
    MESSAGE_CRC_AT,
    MESSAGE_CRC_FROM,
    MESSAGE_LOG_APPEND_TIME,
    MESSAGE_MAGIC_AT,
    MESSAGE_OK,
    MESSAGE_TIMESTAMP_AT,
    Message,
    crc32,
    read_message,
    set_lz4_checksum,
    unwrapped,
)
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_OK,
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_NONE,
    BatchStatus,
    check_crc,
    offsets_fit,
    peek_batch_header,
    read_batch_header,
)

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* sum) noexcept nogil

cdef enum:
    RECORD_BYTES_MIN = 7
    MAGIC_MAX = 1                 # of messages that are no batches
    READ_BYTES = 262144           # per system call, if no batch is larger
    KEEP_BYTES = 1048576          # BOUND: of each buffer, kept for the next response
    # BOUND: records of one batch in memory. Produces were held to max.decompressed.message.bytes.
    DECOMPRESSED_MAX = 134217728
    # A client waits while this compresses; the default level takes three times as long.
    GZIP_LEVEL = 1

from kbroker._ext.record.legacy_records import MessageSetRejected


cdef void give_back(Bytes* bytes) noexcept:
    bytes.size = 0
    if bytes.capacity > KEEP_BYTES:
        free(bytes.data)
        bytes.data = NULL
        bytes.capacity = 0


# One record of format 2, and its fields in a message.
cdef struct Record:
    int64_t timestamp_delta
    int32_t offset_delta
    const uint8_t* key
    const uint8_t* value
    int32_t key_size          # -1: null
    int32_t value_size        # -1: null
    bint has_headers


cdef inline bint take_field(Reader* r, const uint8_t** data, int32_t* size) noexcept nogil:
    if read_varint(r, size) != READ_OK or size[0] < -1:
        return False
    data[0] = r.pos
    return size[0] <= 0 or read_raw(r, size[0], data) == READ_OK


cdef inline bint take_record(Reader* r, Record* out) noexcept nogil:
    # False for damaged records. Headers are skipped with the rest of the record.
    cdef int32_t size = 0
    cdef Reader body
    if read_varint(r, &size) != READ_OK or size < 1 or size > bytes_left(r):
        return False
    body = make_reader(r.pos + 1, size - 1)
    r.pos += size
    if not (
        read_varlong(&body, &out.timestamp_delta) == READ_OK
        and read_varint(&body, &out.offset_delta) == READ_OK
        and out.offset_delta >= 0
        and take_field(&body, &out.key, &out.key_size)
        and take_field(&body, &out.value, &out.value_size)
    ):
        return False
    # Without headers only their number is left, a byte.
    out.has_headers = bytes_left(&body) > 1
    return True


cdef inline uint8_t* put_bytes(uint8_t* p, const uint8_t* data, int32_t size) noexcept nogil:
    store_i32(p, size)
    if size > 0:
        memcpy(p + 4, data, <size_t>size)
        return p + 4 + size
    return p + 4


# SAFETY: the caller has reserved the bytes of key and value and MESSAGE_1_BYTES_MIN more.
cdef uint8_t* put_message(
    uint8_t* start, int64_t offset, int8_t magic, int8_t attributes, int64_t timestamp, const uint8_t* key,
    int32_t key_size, const uint8_t* value, int32_t value_size
) noexcept nogil:
    cdef uint8_t* p = start + MESSAGE_TIMESTAMP_AT
    store_i64(start, offset)
    store_i8(start + MESSAGE_MAGIC_AT, magic)
    store_i8(start + MESSAGE_ATTRIBUTES_AT, attributes)
    if magic > 0:
        store_i64(p, timestamp)
        p += 8
    p = put_bytes(p, key, key_size)
    p = put_bytes(p, value, value_size)
    store_i32(start + 8, <int32_t>(p - start - ENTRY_HEADER_BYTES))
    store_u32(start + MESSAGE_CRC_AT, crc32(start + MESSAGE_CRC_FROM, <size_t>(p - start - MESSAGE_CRC_FROM)))
    return p


# What put_records found.
cdef struct Written:
    uint8_t* end
    int64_t first_offset      # of the messages written, -1: none
    int64_t last_offset
    int64_t max_timestamp
    bint has_headers


# Write the records from from_offset on as messages; relative: offsets count from the first of them. Stops after the
# message that reaches bytes_max. False for damaged records.
# SAFETY: the caller has reserved the size of the records and MESSAGE_1_BYTES_MIN for each.
cdef bint put_records(
    const uint8_t* records, Py_ssize_t size, const BatchInfo* info, int64_t from_offset, int8_t magic, bint relative,
    int64_t bytes_max, uint8_t* start, Written* written
) noexcept nogil:
    cdef:
        Reader r = make_reader(records, size)
        Record record
        bint append_time = info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
        int8_t attributes = MESSAGE_LOG_APPEND_TIME if append_time and magic > 0 else 0
        int64_t timestamp = info.max_timestamp
        int64_t offset
        int32_t i
    written.end = start
    written.first_offset = written.last_offset = -1
    written.max_timestamp = -1
    written.has_headers = False
    for i in range(info.record_count):
        if not take_record(&r, &record) or record.offset_delta > info.last_offset_delta:
            return False
        offset = info.base_offset + record.offset_delta
        if offset < from_offset:
            continue
        if not append_time and __builtin_add_overflow(info.first_timestamp, record.timestamp_delta, &timestamp):
            return False
        if written.first_offset < 0:
            written.first_offset = offset
            written.max_timestamp = timestamp
        written.last_offset = offset
        written.has_headers |= record.has_headers
        if timestamp > written.max_timestamp:
            written.max_timestamp = timestamp
        written.end = put_message(
            written.end, offset - written.first_offset if relative else offset, magic, attributes, timestamp,
            record.key, record.key_size, record.value, record.value_size)
        if written.end - start >= bytes_max:
            return True
    return bytes_left(&r) == 0


cdef class DownConverter:
    """Keeps the memory for conversions; one a network process."""

    def __dealloc__(self):
        free(self.out.data)
        free(self.raw.data)
        free(self.inner.data)

    cdef void clear(self) noexcept:
        give_back(&self.out)
        give_back(&self.raw)
        give_back(&self.inner)

    cdef int16_t convert_batch(self, const uint8_t* batch, Py_ssize_t size, int8_t magic) except -2:
        cdef BatchInfo info
        cdef Wish wish
        cdef int16_t code
        wish.from_offset = 0
        wish.bytes_enough = wish.bytes_max = 0x7FFFFFFF
        wish.hard = False
        wish.at_least_one = True
        wish.magic = magic
        self.out.size = 0
        self.has_headers = False
        if read_batch_header(batch, size, &info) != BATCH_OK or not offsets_fit(&info):
            return CORRUPT_MESSAGE
        code = self.add_batch(batch, &info, &wish, wish.bytes_max)
        return UNSUPPORTED_FOR_MESSAGE_FORMAT if code == 0 and self.has_headers else code

    cdef int16_t convert_range(
        self, int fd, int64_t position, int64_t size, const Wish* wish, int64_t* next_offset
    ) except -2:
        cdef:
            BatchInfo info
            Py_ssize_t start = self.out.size
            Py_ssize_t before
            int64_t at = 0           # of the batch, in the range
            int64_t loaded = 0       # where `raw` begins, in the range
            int64_t batch_size
            int64_t header_size
            int64_t last_offset
            bint is_old
            int16_t error = 0
            const uint8_t* batch
        self.raw.size = 0
        while error == 0 and at + MESSAGE_0_BYTES_MIN <= size and self.out.size - start < wish.bytes_enough:
            # A message of format 0 or 1 may be shorter than the header of a batch.
            header_size = min(<int64_t>BATCH_HEADER_BYTES, size - at)
            if at + header_size > loaded + self.raw.size:
                loaded = at
                self.fill(fd, position + at, min(<int64_t>READ_BYTES, size - at))
                if self.raw.size < header_size:
                    error = KAFKA_STORAGE_ERROR
                    break
            batch = self.raw.data + (at - loaded)
            is_old = batch[MESSAGE_MAGIC_AT] <= MAGIC_MAX
            if is_old:
                batch_size = load_i32(batch + BATCH_LENGTH_END - 4) + <int64_t>ENTRY_HEADER_BYTES
                if batch_size < MESSAGE_0_BYTES_MIN or load_i64(batch) == INT64_MAX:
                    error = CORRUPT_MESSAGE
                    break
            elif header_size < BATCH_HEADER_BYTES:
                break
            elif peek_batch_header(batch, BATCH_HEADER_BYTES, &info) != BATCH_OK or not offsets_fit(&info):
                error = CORRUPT_MESSAGE
                break
            else:
                batch_size = info.batch_length + <int64_t>BATCH_LENGTH_END
            if batch_size > size - at:
                break
            if at + batch_size > loaded + self.raw.size:
                loaded = at
                self.fill(fd, position + at, max(batch_size, min(<int64_t>READ_BYTES, size - at)))
                if self.raw.size < batch_size:
                    error = KAFKA_STORAGE_ERROR
                    break
            batch = self.raw.data + (at - loaded)
            before = self.out.size
            if is_old:
                last_offset = load_i64(batch)
                error = self.add_entry(batch, <Py_ssize_t>batch_size, wish)
            else:
                last_offset = info.base_offset + info.last_offset_delta
                error = self.add_batch(batch, &info, wish, wish.bytes_max - (before - start))
            if error == 0 and not wish.hard and self.out.size - start > wish.bytes_max and (
                before > start or not wish.at_least_one
            ):
                self.out.size = before
                break
            if error == 0:
                next_offset[0] = last_offset + 1
                at += batch_size
        if error != 0 and self.out.size > start:
            error = 0  # what precedes it is sent; the client gets the error when it fetches the rest
        if wish.hard and self.out.size - start > wish.bytes_max:
            self.out.size = start + <Py_ssize_t>wish.bytes_max
        return error

    cdef int fill(self, int fd, int64_t position, int64_t size) except -1:
        """Read a part of the file into ``raw``; less than ``size`` when it was cut or cannot be read."""
        cdef ssize_t n
        self.raw.size = 0
        reserve(&self.raw, <Py_ssize_t>size)
        while self.raw.size < size:
            n = pread(fd, self.raw.data + self.raw.size, <size_t>(size - self.raw.size), position + self.raw.size)
            if n < 0 and errno == EINTR:
                continue
            if n <= 0:
                break
            self.raw.size += n
        return 0

    cdef int16_t add_entry(self, const uint8_t* data, Py_ssize_t size, const Wish* wish) except -2:
        """Append a message of format 0 or 1, or a wrapper, as the log has it; of format 1 for a reader of 0 converted.

        COMPAT: as Kafka, nothing is converted up, and a wrapper comes whole.
        """
        cdef:
            Message message
            int8_t attributes
        if load_i64(data) < wish.from_offset:
            return 0
        if read_message(data, data + size, &message) != MESSAGE_OK:
            return CORRUPT_MESSAGE
        reserve(&self.out, size)
        if message.magic <= wish.magic:
            memcpy(self.out.data + self.out.size, data, <size_t>size)
            self.out.size += size
            return 0
        attributes = message.attributes & MESSAGE_CODEC_MASK
        if attributes:
            return self.add_older_wrapper(&message, wish)
        self.out.size = put_message(
            self.out.data + self.out.size, message.offset, wish.magic, 0, -1, message.key, message.key_size,
            message.value, message.value_size
        ) - self.out.data
        return 0

    cdef int16_t add_older_wrapper(self, const Message* wrapper, const Wish* wish) except -2:
        """Append a wrapper of format 1 in format 0, its messages with absolute offsets."""
        cdef:
            Message message
            int codec = wrapper.attributes & MESSAGE_CODEC_MASK
            int64_t last = 0
            int64_t offset
            const uint8_t* p
            const uint8_t* end
            bytes content
            bytes packed
        try:
            content = unwrapped(wrapper, DECOMPRESSED_MAX)
        except MessageSetRejected as rejected:
            return <int16_t>rejected.args[0] if rejected.args[0] == UNSUPPORTED_COMPRESSION_TYPE else CORRUPT_MESSAGE
        p = <const uint8_t*>PyBytes_AS_STRING(content)
        end = p + PyBytes_GET_SIZE(content)
        while p != end:
            # The last message belongs to the wrapper's offset.
            if read_message(p, end, &message) != MESSAGE_OK or message.attributes & MESSAGE_CODEC_MASK:
                return CORRUPT_MESSAGE
            if message.offset < last:
                return CORRUPT_MESSAGE
            last = message.offset
            p += message.size
        if last > wrapper.offset:
            return CORRUPT_MESSAGE
        self.inner.size = 0
        # A message of format 0 is shorter than one of format 1.
        reserve(&self.inner, PyBytes_GET_SIZE(content) + 1)
        p = <const uint8_t*>PyBytes_AS_STRING(content)
        while p != end:
            read_message(p, end, &message)
            p += message.size
            offset = wrapper.offset - (last - message.offset)
            if offset >= wish.from_offset:
                self.inner.size = put_message(
                    self.inner.data + self.inner.size, offset, wish.magic, 0, -1, message.key, message.key_size,
                    message.value, message.value_size
                ) - self.inner.data
        packed = pack(codec, self.inner.data, self.inner.size, GZIP_LEVEL if codec == CODEC_GZIP else None)
        if codec == CODEC_LZ4:
            set_lz4_checksum(<uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), True)
        reserve(&self.out, PyBytes_GET_SIZE(packed) + <Py_ssize_t>MESSAGE_1_BYTES_MIN)
        self.out.size = put_message(
            self.out.data + self.out.size, wrapper.offset, wish.magic, <int8_t>codec, -1, NULL, -1,
            <const uint8_t*>PyBytes_AS_STRING(packed), <int32_t>PyBytes_GET_SIZE(packed)
        ) - self.out.data
        return 0

    cdef int16_t add_batch(self, const uint8_t* batch, const BatchInfo* info, const Wish* wish, int64_t room) except -2:
        """Append one batch's messages. room: the bytes left for the partition."""
        cdef:
            const uint8_t* records = batch + BATCH_HEADER_BYTES
            Py_ssize_t size = info.batch_length + BATCH_LENGTH_END - BATCH_HEADER_BYTES
            int codec = info.attributes & ATTRIBUTE_CODEC_MASK
            Written written
            bytes unpacked = None
            UnpackStatus status
        if info.attributes & ATTRIBUTE_CONTROL or info.record_count == 0:
            return 0
        if info.base_offset + info.last_offset_delta < wish.from_offset:
            return 0
        if check_crc(batch, info) != BATCH_OK or info.record_count < 0:
            return CORRUPT_MESSAGE
        if codec > CODEC_LZ4:
            return UNSUPPORTED_COMPRESSION_TYPE
        if codec != CODEC_NONE:
            unpacked = try_unpack(codec, records, size, DECOMPRESSED_MAX, &status)
            if unpacked is None:
                return CORRUPT_MESSAGE
            records = <const uint8_t*>PyBytes_AS_STRING(unpacked)
            size = PyBytes_GET_SIZE(unpacked)
        if info.record_count > size // RECORD_BYTES_MIN:
            return CORRUPT_MESSAGE
        if codec != CODEC_NONE:
            return self.add_wrapper(records, size, info, wish, room)
        reserve(&self.out, size + info.record_count * <Py_ssize_t>MESSAGE_1_BYTES_MIN)
        if not put_records(
            records, size, info, wish.from_offset, wish.magic, False, room if wish.hard else 0x7FFFFFFF,
            self.out.data + self.out.size, &written
        ):
            return CORRUPT_MESSAGE
        self.has_headers |= written.has_headers
        self.out.size = written.end - self.out.data
        return 0

    cdef int16_t add_wrapper(
        self, const uint8_t* records, Py_ssize_t size, const BatchInfo* info, const Wish* wish, int64_t room
    ) except -2:
        cdef:
            int codec = info.attributes & ATTRIBUTE_CODEC_MASK
            int8_t attributes = <int8_t>codec
            Written written
            bytes packed
        self.inner.size = 0
        reserve(&self.inner, size + info.record_count * <Py_ssize_t>MESSAGE_1_BYTES_MIN)
        if not put_records(
            records, size, info, wish.from_offset, wish.magic, wish.magic > 0, 0x7FFFFFFF, self.inner.data, &written
        ):
            return CORRUPT_MESSAGE
        if written.first_offset < 0:
            return 0
        self.has_headers |= written.has_headers
        packed = pack(
            codec, self.inner.data, written.end - self.inner.data, GZIP_LEVEL if codec == CODEC_GZIP else None)
        if wish.hard and PyBytes_GET_SIZE(packed) + <int64_t>MESSAGE_1_BYTES_MIN > room and room == wish.bytes_max:
            # Nothing of a truncated wrapper can be read, but all plain messages before the cut can.
            reserve(&self.out, size + info.record_count * <Py_ssize_t>MESSAGE_1_BYTES_MIN)
            put_records(
                records, size, info, wish.from_offset, wish.magic, False, room, self.out.data + self.out.size, &written)
            self.out.size = written.end - self.out.data
            return 0
        if codec == CODEC_LZ4 and wish.magic == 0:
            # COMPAT: clients of format 0 expect this checksum (KIP-57). No other code has a reference to `packed` yet.
            set_lz4_checksum(<uint8_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed), True)
        if info.attributes & ATTRIBUTE_LOG_APPEND_TIME and wish.magic > 0:
            attributes |= MESSAGE_LOG_APPEND_TIME
        reserve(&self.out, PyBytes_GET_SIZE(packed) + <Py_ssize_t>MESSAGE_1_BYTES_MIN)
        self.out.size = put_message(
            self.out.data + self.out.size, written.last_offset, wish.magic, attributes, written.max_timestamp, NULL, -1,
            <const uint8_t*>PyBytes_AS_STRING(packed), <int32_t>PyBytes_GET_SIZE(packed)
        ) - self.out.data
        return 0


# ---- Python's view, for tests ------------------------------------------------------------------------------------

def to_message_set(
    int fd, int64_t size, *, int magic, int64_t from_offset=0, int64_t bytes_max=0x7FFFFFFF, bint hard=False,
    int64_t bytes_enough=0x7FFFFFFF, bint at_least_one=True
) -> tuple[int, bytes, int]:
    """(error code, messages, next offset) of the first ``size`` bytes of a file of batches."""
    cdef DownConverter converter = DownConverter.__new__(DownConverter)
    cdef Wish wish
    cdef int64_t next_offset = from_offset
    wish.from_offset = from_offset
    wish.bytes_enough = bytes_enough
    wish.bytes_max = bytes_max
    wish.hard = hard
    wish.at_least_one = at_least_one
    wish.magic = <int8_t>magic
    error = converter.convert_range(fd, 0, size, &wish, &next_offset)
    return error, (<char*>converter.out.data)[:converter.out.size] if converter.out.size else b"", next_offset
