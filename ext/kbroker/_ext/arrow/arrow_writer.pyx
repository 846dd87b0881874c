"""Arrow batches to record batches of format 2, one for each partition; no Python object per record.

Runs in clients. COPY: keys, values and headers once, out of Arrow's buffers into the batch that is
sent, or into the one that is compressed. Only a new topic and compression need the GIL.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from kbroker._ext.arrow.arrow_abi cimport ArrowArray, ArrowSchema
from kbroker._ext.arrow.arrow_input cimport (
    HeadersInput,
    RowsInput,
    bytes_at,
    is_valid,
    number_at,
    read_input,
)
from kbroker._ext.base.growing cimport grow, resize
from kbroker._ext.base.murmur2 cimport murmur2_partition
from kbroker._ext.base.wire cimport (
    store_i16,
    store_i32,
    store_i64,
    store_uvarlong,
    uvarlong_size,
    varint_size,
    zigzag32,
    zigzag64,
)
from kbroker._ext.record.codecs cimport pack
from kbroker._ext.record.record_batch cimport (
    BATCH_ATTRIBUTES_AT,
    BATCH_BASE_SEQUENCE_AT,
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
)

cdef enum Added:
    ADDED = 0
    NEEDS_TOPIC = 1
    NO_MEMORY = -1
    NO_SUCH_PARTITION = -2
    NO_TOPIC = -3
    NO_HEADER_KEY = -4
    TOO_LARGE = -5

cdef enum:
    TOPIC_BYTES_MAX = 249
    # BOUND: size of a varint, and of a record's fields other than key, value and headers.
    VARINT_BYTES_MAX = 5
    RECORD_OVERHEAD_MAX = 40

# The batch of a partition that is being written. `data` leaves room for the header.
cdef struct Builder:
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t first_timestamp
    int64_t max_timestamp
    int32_t count
    int32_t topic
    int32_t partition

cdef struct Topic:
    uint8_t name[TOPIC_BYTES_MAX]
    int32_t name_size
    int32_t partitions
    int32_t sticky           # of rows without key and partition, until its batch is full
    Builder* builders        # one for each partition


def partition_of(bytes key not None, int32_t partitions) -> int:
    """The partition that Kafka's default partitioner gives a key."""
    return murmur2_partition(<const uint8_t*>PyBytes_AS_STRING(key), <int32_t>len(key), partitions)


cdef inline uint8_t* put(uint8_t* p, const uint8_t* data, int32_t size) noexcept nogil:
    p = store_uvarlong(p, zigzag32(size))
    if size > 0:
        memcpy(p, data, <size_t>size)
        p += size
    return p


cdef class ArrowWriter:
    """Collects rows in batches of about ``batch_bytes`` and returns those that are full.

    partitions_of: called with a topic's name when it is first met; its number of partitions.
    topic: of rows without one, or None. codec: attribute bits 0-2; level: of that codec, or None.
    Not for two threads at once.
    """

    cdef:
        object _partitions_of
        Topic** _topics
        int32_t _topic_count, _topic_room
        int32_t _last_topic              # of the row before
        int32_t _default_topic
        Builder* _full                   # batches to give out
        int64_t _full_count, _full_room
        int64_t _finished_count          # of them, those that are in _taken already
        list _taken
        int64_t _batch_bytes
        int64_t _now
        uint64_t _random
        int _codec
        object _level
        readonly int64_t rows
        readonly int64_t waiting_bytes   # in batches that are not full yet

    def __cinit__(self, partitions_of, *, str topic=None, int codec=0, level=None, int64_t batch_bytes=524288,
                  uint64_t seed=1):
        if not 0 < batch_bytes <= 1 << 30:
            raise ValueError("batches must have 1 byte to 1 GiB")
        if not 0 <= codec <= 4:
            raise ValueError(f"unknown codec {codec}")
        self._partitions_of = partitions_of
        self._codec = codec
        self._level = level
        self._batch_bytes = batch_bytes
        self._random = seed or 1
        self._taken = []
        self._last_topic = self._default_topic = -1
        if topic is not None:
            self._default_topic = self._add_topic(topic.encode())

    def __dealloc__(self):
        cdef int32_t i, n
        for i in range(self._topic_count):
            for n in range(self._topics[i].partitions):
                free(self._topics[i].builders[n].data)
            free(self._topics[i].builders)
            free(self._topics[i])
        free(self._topics)
        for n in range(<int32_t>self._full_count):
            free(self._full[n].data)
        free(self._full)

    # -- topics

    cdef int32_t _add_topic(self, bytes name) except -1:
        cdef int32_t partitions, i
        cdef Topic* topic
        if not 0 < len(name) <= TOPIC_BYTES_MAX:
            raise ValueError(f"a topic name must not have {len(name)} bytes")
        partitions = self._partitions_of(name.decode())
        if partitions <= 0:
            raise ValueError(f"topic {name.decode()} has no partitions")
        self._topic_room = grow(&self._topics, self._topic_room, self._topic_count + 1, sizeof(Topic*), 16)
        topic = <Topic*>calloc(1, sizeof(Topic))
        if topic != NULL:
            topic.builders = <Builder*>calloc(<size_t>partitions, sizeof(Builder))
        if topic == NULL or topic.builders == NULL:
            free(topic)
            raise MemoryError
        memcpy(topic.name, PyBytes_AS_STRING(name), <size_t>len(name))
        topic.name_size = <int32_t>len(name)
        topic.partitions = partitions
        for i in range(partitions):
            topic.builders[i].topic = self._topic_count
            topic.builders[i].partition = i
        self._topics[self._topic_count] = topic
        self._topic_count += 1
        self._stick(topic)
        return self._topic_count - 1

    cdef void _stick(self, Topic* topic) noexcept nogil:
        # xorshift64: any partition will do, so long as all get their share.
        self._random ^= self._random << 13
        self._random ^= self._random >> 7
        self._random ^= self._random << 17
        topic.sticky = <int32_t>(self._random % <uint64_t>topic.partitions)

    # Index of the topic, -1 when it was not met before. BOUND: a walk over the topics of one job.
    cdef int32_t _find_topic(self, const uint8_t* name, int32_t size) noexcept nogil:
        cdef int32_t i = self._last_topic
        cdef Topic* topic
        if i >= 0:
            topic = self._topics[i]
            if topic.name_size == size and memcmp(topic.name, name, <size_t>size) == 0:
                return i
        for i in range(self._topic_count):
            topic = self._topics[i]
            if topic.name_size == size and memcmp(topic.name, name, <size_t>size) == 0:
                self._last_topic = i
                return i
        return -1

    # -- rows

    def add(self, schema, array, int64_t now_ms) -> None:
        """Take the rows of a record batch, given as the two capsules of ``__arrow_c_array__``.

        Columns: value; key, headers, topic, partition, timestamp if they are there. now_ms: the time of
        rows without one. Raises TypeError, KeyError (unknown column), ValueError; some of the rows before
        the bad one may have been taken.
        """
        cdef:
            const ArrowSchema* fields = <const ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema")
            const ArrowArray* columns = <const ArrowArray*>PyCapsule_GetPointer(array, "arrow_array")
            RowsInput rows
            Added status
            int64_t row = 0
            const uint8_t* name
            int32_t size
        read_input(fields, columns, &rows)
        self._now = now_ms
        while True:
            with nogil:
                status = self._add_rows(&rows, &row)
            if status == ADDED:
                self.rows += rows.rows
                return
            if status == NEEDS_TOPIC:
                size = bytes_at(&rows.topic, row, &name)
                self._add_topic(<bytes>(<const char*>name)[:size])
            elif status == NO_MEMORY:
                raise MemoryError
            elif status == NO_SUCH_PARTITION:
                raise ValueError(self._no_such_partition(&rows, row))
            else:
                raise ValueError(f"row {row}: {REASONS[status]}")

    cdef str _no_such_partition(self, RowsInput* rows, int64_t row):
        cdef const uint8_t* name
        cdef int32_t size = bytes_at(&rows.topic, row, &name)
        cdef Topic* topic = self._topics[self._default_topic if size < 0 else self._find_topic(name, size)]
        cdef int64_t partition = 0
        number_at(&rows.partition, row, &partition)
        of = (<const char*>topic.name)[:topic.name_size].decode()
        return f"row {row}: topic {of} has partitions 0 to {topic.partitions - 1}, and not {partition}"

    cdef Added _add_rows(self, RowsInput* rows, int64_t* row) noexcept nogil:
        cdef Added status
        while row[0] < rows.rows:
            status = self._add_row(rows, row[0])
            if status != ADDED:
                return status
            row[0] += 1
        return ADDED

    cdef Added _add_row(self, RowsInput* rows, int64_t row) noexcept nogil:
        cdef:
            const uint8_t* key
            const uint8_t* value
            const uint8_t* name
            int32_t key_size, value_size
            int32_t name_size = bytes_at(&rows.topic, row, &name)
            int32_t index = self._default_topic
            int64_t partition = 0
            int64_t timestamp = 0
            int64_t headers_bytes
            Topic* topic
            Builder* builder
        if name_size >= 0:
            index = self._find_topic(name, name_size)
            if index < 0:
                return NEEDS_TOPIC
        if index < 0:
            return NO_TOPIC
        topic = self._topics[index]
        key_size = bytes_at(&rows.key, row, &key)
        value_size = bytes_at(&rows.value, row, &value)
        if number_at(&rows.partition, row, &partition):
            if partition < 0 or partition >= topic.partitions:
                return NO_SUCH_PARTITION
        elif key_size >= 0:
            partition = murmur2_partition(key, key_size, topic.partitions)
        else:
            partition = topic.sticky
        if number_at(&rows.timestamp, row, &timestamp):
            timestamp = milliseconds(timestamp, rows.timestamp.unit)
        else:
            timestamp = self._now
        headers_bytes = headers_size(&rows.headers, row)
        if headers_bytes < 0:
            return NO_HEADER_KEY
        headers_bytes += RECORD_OVERHEAD_MAX
        headers_bytes += (key_size if key_size > 0 else 0)
        headers_bytes += (value_size if value_size > 0 else 0)
        # BOUND: lengths of the format are 32 bits.
        if headers_bytes > INT32_MAX - BATCH_HEADER_BYTES - RECORD_OVERHEAD_MAX:
            return TOO_LARGE
        builder = &topic.builders[partition]
        if builder.count and builder.size + headers_bytes > self._batch_bytes:
            if self._close(builder) != 0:
                return NO_MEMORY
            if key_size < 0 and partition == topic.sticky and not is_given(rows, row):
                self._stick(topic)
                builder = &topic.builders[topic.sticky]
                if builder.count and builder.size + headers_bytes > self._batch_bytes and self._close(builder) != 0:
                    return NO_MEMORY
        if self._reserve(builder, headers_bytes) != 0:
            return NO_MEMORY
        self._put_record(
            builder, timestamp, key, key_size, value, value_size, rows, row, headers_bytes - RECORD_OVERHEAD_MAX)
        return ADDED

    cdef int _reserve(self, Builder* builder, int64_t size) noexcept nogil:
        cdef int64_t wanted = builder.size + size
        if builder.data != NULL and wanted <= builder.capacity:
            return 0
        if builder.size == 0:
            builder.size = BATCH_HEADER_BYTES
            wanted += BATCH_HEADER_BYTES
        wanted = max(wanted, min(4 * builder.capacity + 4096, self._batch_bytes + 64))
        if not resize(&builder.data, <size_t>wanted):
            return -1
        builder.capacity = wanted
        return 0

    # SAFETY: RECORD_OVERHEAD_MAX and the sizes of key, value and headers are reserved at builder.size.
    cdef void _put_record(
        self, Builder* builder, int64_t timestamp, const uint8_t* key, int32_t key_size, const uint8_t* value,
        int32_t value_size, RowsInput* rows, int64_t row, int64_t about
    ) noexcept nogil:
        cdef:
            # The length comes first but is known last: its width is guessed, nearly always correctly.
            int guessed = varint_size(<int32_t>about + 8)
            uint8_t* start = builder.data + builder.size
            uint8_t* body = start + guessed
            uint8_t* p = body
            int64_t size
            int width
        if builder.count == 0:
            builder.first_timestamp = builder.max_timestamp = timestamp
        elif timestamp > builder.max_timestamp:
            builder.max_timestamp = timestamp
        p[0] = 0
        p = store_uvarlong(p + 1, zigzag64(<int64_t>(<uint64_t>timestamp - <uint64_t>builder.first_timestamp)))
        p = store_uvarlong(p, zigzag32(builder.count))
        p = put(p, key, key_size)
        p = put(p, value, value_size)
        p = put_headers(p, &rows.headers, row)
        size = p - body
        width = varint_size(<int32_t>size)
        if width != guessed:
            memmove(start + width, body, <size_t>size)
        store_uvarlong(start, zigzag32(<int32_t>size))
        builder.size += size + width
        builder.count += 1
        self.waiting_bytes += size + width

    # -- batches

    # Move a builder's batch to the full ones.
    cdef int _close(self, Builder* builder) noexcept nogil:
        if self._full_count == self._full_room:
            if not resize(&self._full, <size_t>(2 * self._full_room + 16) * sizeof(Builder)):
                return -1
            self._full_room = 2 * self._full_room + 16
        self._full[self._full_count] = builder[0]
        self._full_count += 1
        self.waiting_bytes -= builder.size - BATCH_HEADER_BYTES
        builder.data = NULL
        builder.size = builder.capacity = 0
        builder.count = 0
        return 0

    def close_all(self) -> None:
        """Treat all collected batches as full."""
        cdef int32_t i, n
        for i in range(self._topic_count):
            for n in range(self._topics[i].partitions):
                if self._topics[i].builders[n].count and self._close(&self._topics[i].builders[n]) != 0:
                    raise MemoryError

    def discard(self) -> None:
        """Discard what has been collected and not yet taken."""
        cdef int64_t i
        self.close_all()
        for i in range(self._full_count):
            free(self._full[i].data)
        self._full_count = self._finished_count = 0
        self._taken = []

    def take(self) -> list:
        """Full batches: (topic, partition, batch, number of records), in order for each partition.

        Their headers name no producer and have no checksum, which ``producer_batch`` writes. If this
        raises, the next call continues with the batch that failed.
        """
        cdef list taken
        cdef Builder* builder
        cdef Topic* topic
        while self._finished_count < self._full_count:
            builder = &self._full[self._finished_count]
            topic = self._topics[builder.topic]
            name = (<const char*>topic.name)[:topic.name_size].decode()
            self._taken.append((name, builder.partition, self._finished(builder), builder.count))
            free(builder.data)
            builder.data = NULL
            self._finished_count += 1
        self._full_count = self._finished_count = 0
        taken, self._taken = self._taken, []
        return taken

    cdef bytearray _finished(self, Builder* builder):
        cdef bytes packed
        cdef bytearray batch
        cdef uint8_t* p
        cdef Py_ssize_t size = builder.size
        if self._codec == CODEC_NONE:
            batch = PyByteArray_FromStringAndSize(<char*>builder.data, size)
        else:
            packed = pack(self._codec, builder.data + BATCH_HEADER_BYTES, size - BATCH_HEADER_BYTES, self._level)
            size = BATCH_HEADER_BYTES + PyBytes_GET_SIZE(packed)
            batch = PyByteArray_FromStringAndSize(NULL, size)
            memcpy(PyByteArray_AS_STRING(batch) + BATCH_HEADER_BYTES, PyBytes_AS_STRING(packed),
                   <size_t>PyBytes_GET_SIZE(packed))
        p = <uint8_t*>PyByteArray_AS_STRING(batch)
        memset(p, 0, BATCH_HEADER_BYTES)
        store_i32(p + 8, <int32_t>(size - BATCH_LENGTH_END))
        store_i32(p + BATCH_LENGTH_END, -1)
        p[BATCH_MAGIC_AT] = 2
        store_i16(p + BATCH_ATTRIBUTES_AT, <int16_t>self._codec)
        store_i32(p + BATCH_LAST_OFFSET_DELTA_AT, builder.count - 1)
        store_i64(p + BATCH_FIRST_TIMESTAMP_AT, builder.first_timestamp)
        store_i64(p + BATCH_MAX_TIMESTAMP_AT, builder.max_timestamp)
        store_i64(p + BATCH_PRODUCER_ID_AT, -1)
        store_i16(p + BATCH_PRODUCER_EPOCH_AT, -1)
        store_i32(p + BATCH_BASE_SEQUENCE_AT, -1)
        store_i32(p + BATCH_RECORD_COUNT_AT, builder.count)
        return batch


cdef dict REASONS = {
    NO_TOPIC: "its topic is null: give it a topic, or set the option topic for all rows",
    NO_HEADER_KEY: "a header without a key",
    TOO_LARGE: "a record of 2 GiB",
}


cdef inline bint is_given(RowsInput* rows, int64_t row) noexcept nogil:
    cdef int64_t partition = 0
    return number_at(&rows.partition, row, &partition)


cdef inline int64_t milliseconds(int64_t timestamp, int64_t unit) noexcept nogil:
    # Rounded down, also before 1970.
    cdef int64_t per
    cdef int64_t whole
    if unit <= 1000:
        return timestamp * (1000 // unit)
    per = unit // 1000
    whole = timestamp // per
    if timestamp % per < 0:
        whole -= 1
    return whole


# Bytes that the headers of a row take at most, -1 if one has no key.
cdef int64_t headers_size(const HeadersInput* headers, int64_t row) noexcept nogil:
    cdef int64_t at = headers.at + row
    cdef int64_t size = 0
    cdef const uint8_t* p
    cdef int32_t i, n
    if headers.offsets == NULL or not is_valid(headers.valid, at):
        return 0
    for i in range(headers.offsets[at], headers.offsets[at + 1]):
        n = bytes_at(&headers.keys, i, &p)
        if n < 0:
            return -1
        size += n + 2 * VARINT_BYTES_MAX
        n = bytes_at(&headers.values, i, &p)
        size += n if n > 0 else 0
    return size


cdef uint8_t* put_headers(uint8_t* p, const HeadersInput* headers, int64_t row) noexcept nogil:
    cdef int64_t at = headers.at + row
    cdef const uint8_t* data
    cdef int32_t i, n
    if headers.offsets == NULL or not is_valid(headers.valid, at):
        p[0] = 0
        return p + 1
    p = store_uvarlong(p, zigzag32(headers.offsets[at + 1] - headers.offsets[at]))
    for i in range(headers.offsets[at], headers.offsets[at + 1]):
        n = bytes_at(&headers.keys, i, &data)
        p = put(p, data, n)
        n = bytes_at(&headers.values, i, &data)
        p = put(p, data, n)
    return p
