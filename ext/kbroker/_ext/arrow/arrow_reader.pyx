"""Record sets to Arrow batches: one pass over the records, no Python object per record.

Runs in clients, on executors of Spark among others. COPY: keys, values and headers are copied once,
out of the fetched bytes (or the decompressed ones) into arenas that Arrow then owns. Columns that are
the same for all rows (topic, partition, timestampType) are built once and shared by all batches.
Columns that are not asked for cost nothing but the walk over them.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kbroker._ext.arrow.arrow_abi cimport (
    ArrowArray,
    ArrowSchema,
    Shared,
    array_capsule,
    drop_shared,
    free_array,
    free_schema,
    new_array,
    new_schema,
    new_shared,
    own_buffer,
    schema_capsule,
    share_buffer,
)
from kbroker._ext.arrow.arrow_columns cimport (
    BytesColumn,
    HeadersColumn,
    append_bytes,
    append_headers,
    begin_bytes,
    begin_headers,
    bytes_array,
    free_bytes,
    free_headers,
    headers_array,
)
from kbroker._ext.record.record_cursor cimport (
    ROW_NONE,
    ROW_OK,
    RUN_DAMAGED,
    RUN_END,
    RUN_NEEDS_GIL,
    RUN_NONE,
    RUN_READY,
    DAMAGE_RECORD,
    RecordCursor,
    Row,
    RowStatus,
    Run,
    RunStatus,
    next_row,
    unread,
)

from kbroker._ext.record.record_cursor import RecordsDamaged, damage_words

cdef enum:   # columns
    KEY = 0
    VALUE = 1
    TOPIC = 2
    PARTITION = 3
    OFFSET = 4
    TIMESTAMP = 5
    TIMESTAMP_TYPE = 6
    HEADERS = 7
    COLUMN_COUNT = 8

cdef enum Fill:
    FILL_NO_MEMORY = -2
    FILL_DAMAGED = -1
    FILL_EMPTY = 0        # the set is used up
    FILL_FULL = 1         # there is a batch to hand over
    FILL_END = 2
    FILL_NEEDS_GIL = 3

cdef enum:
    # Timestamps beyond this many milliseconds do not fit microseconds in 64 bits.
    TIMESTAMP_MS_MAX = 9223372036854775
    ARENA_BYTES_MIN = 65536

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


cdef class ArrowBatch:
    """Rows as two capsules of the Arrow C data interface, for ``pyarrow.record_batch`` and others."""

    cdef object _schema, _array
    cdef readonly Py_ssize_t rows

    def __arrow_c_array__(self, requested_schema=None):
        """(schema, array); only once, as the caller then owns the array."""
        if self._array is None:
            raise ValueError("the batch has already been taken")
        taken, self._array = self._array, None
        return self._schema, taken


cdef inline int64_t microseconds(int64_t milliseconds) noexcept nogil:
    # Clamped to the largest microsecond value: one wrong clock must not stop a read.
    if milliseconds > <int64_t>TIMESTAMP_MS_MAX:
        return INT64_MAX
    if milliseconds < -<int64_t>TIMESTAMP_MS_MAX:
        return INT64_MIN
    return milliseconds * 1000


cdef ArrowSchema* field_schema(int column, bint milliseconds) noexcept nogil:
    cdef ArrowSchema* field
    cdef ArrowSchema* pair
    if column == KEY:
        return new_schema("z", "key", 0)
    if column == VALUE:
        return new_schema("z", "value", 0)
    if column == TOPIC:
        return new_schema("u", "topic", 0)
    if column == PARTITION:
        return new_schema("i", "partition", 0)
    if column == OFFSET:
        return new_schema("l", "offset", 0)
    if column == TIMESTAMP:
        return new_schema("tsm:UTC" if milliseconds else "tsu:UTC", "timestamp", 0)
    if column == TIMESTAMP_TYPE:
        return new_schema("i", "timestampType", 0)
    field = new_schema("+l", "headers", 1)
    if field == NULL:
        return NULL
    pair = field.children[0] = new_schema("+s", "element", 2)
    if pair != NULL:
        pair.children[0] = new_schema("u", "key", 0)
        pair.children[1] = new_schema("z", "value", 0)
    if pair == NULL or pair.children[0] == NULL or pair.children[1] == NULL:
        free_schema(field)
        return NULL
    return field


cdef class ArrowReader:
    """Turns the records ``[start, end)`` of one partition into batches.

        reader.load(record_set, aborted)
        while batch := reader.read(): ...      # full batches
        ...                                    # more sets
        batch = reader.finish()                # what is left, or None

    columns: which of COLUMNS, in the order of the batch. rows_max, bytes_max: a batch is handed over
    when it has so many rows, or before it would hold more bytes than that; a larger record travels
    alone. decompressed_max: BOUND, bytes of one batch's records. milliseconds: timestamps in the unit
    that records have, so that all of them fit; otherwise microseconds, of which the last one stands
    for what is later.
    """

    cdef:
        RecordCursor _cursor
        bint _wanted[COLUMN_COUNT]
        int _order[COLUMN_COUNT]
        Py_ssize_t _column_count
        int64_t _rows, _rows_max, _bytes, _bytes_max
        int32_t _partition
        int8_t _timestamp_type          # of the rows that are staged
        bint _milliseconds              # not microseconds
        bint _open                      # a run is being read
        BytesColumn _keys, _values
        HeadersColumn _headers
        int64_t* _offsets
        int64_t* _timestamps
        int64_t _key_arena, _value_arena
        Shared* _topic_offsets
        Shared* _topic_data
        Shared* _partitions
        Shared* _types
        int8_t _types_of                # what _types is filled with
        readonly int64_t rows           # handed over so far
        readonly int64_t row_offset     # of the last row that was staged, -1 before the first

    def __cinit__(
        self, str topic not None, int32_t partition, int64_t start, int64_t end, columns, *,
        int64_t rows_max=16384, int64_t bytes_max=8388608, int64_t decompressed_max=1 << 30,
        bint check_crcs=True, bint milliseconds=False,
    ):
        cdef bytes name = topic.encode()
        cdef Py_ssize_t i = 0
        memset(&self._keys, 0, sizeof(BytesColumn))
        memset(&self._values, 0, sizeof(BytesColumn))
        memset(&self._headers, 0, sizeof(HeadersColumn))
        if rows_max < 1 or rows_max > 1 << 24 or bytes_max < 1 or bytes_max > 1 << 30:
            raise ValueError("a batch must have 1 to 16,777,216 rows and 1 byte to 1 GiB")
        for column in columns:
            at = COLUMNS.index(column)
            if self._wanted[at]:
                raise ValueError(f"column {column} is named twice")
            self._wanted[at] = True
            self._order[i] = at
            i += 1
        self._column_count = i
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._partition = partition
        self._timestamp_type = 0
        self._milliseconds = milliseconds
        self.row_offset = -1
        self._key_arena = self._value_arena = ARENA_BYTES_MIN
        self._cursor = RecordCursor(start, end, decompressed_max, check_crcs)
        self._share_constants(name)

    def __dealloc__(self):
        free_bytes(&self._keys)
        free_bytes(&self._values)
        free_headers(&self._headers)
        free(self._offsets)
        free(self._timestamps)
        drop_shared(self._topic_offsets)
        drop_shared(self._topic_data)
        drop_shared(self._partitions)
        drop_shared(self._types)

    cdef int _share_constants(self, bytes name) except -1:
        cdef int64_t i
        cdef int64_t size = len(name)
        if self._wanted[TOPIC]:
            # BOUND: a topic's name has at most 249 bytes, rows_max keeps the product below 2 GiB.
            if size * self._rows_max > <int64_t>0x7FFFFFFF:
                raise ValueError(f"a topic name must not have {size} bytes")
            self._topic_offsets = new_shared(4 * (self._rows_max + 1))
            self._topic_data = new_shared(size * self._rows_max)
            if self._topic_offsets == NULL or self._topic_data == NULL:
                raise MemoryError
            for i in range(self._rows_max + 1):
                (<int32_t*>self._topic_offsets.data)[i] = <int32_t>(i * size)
            for i in range(self._rows_max):
                memcpy(self._topic_data.data + i * size, <const char*>name, <size_t>size)
        if self._wanted[PARTITION]:
            self._partitions = new_shared(4 * self._rows_max)
            if self._partitions == NULL:
                raise MemoryError
            for i in range(self._rows_max):
                (<int32_t*>self._partitions.data)[i] = self._partition
        return 0

    # -- sets

    @property
    def next_offset(self) -> int:
        """Everything below it has been read or skipped; the next fetch starts there."""
        return min(self._cursor.next_offset, self._cursor.end)

    @property
    def leader_epoch(self) -> int:
        """Of the last batch that was read or skipped, -1 if it has none."""
        return self._cursor.leader_epoch

    @property
    def done(self) -> bool:
        """Whether the whole range has been read."""
        return self._cursor.next_offset >= self._cursor.end

    def load(self, records, aborted=()):
        """Continue with the next record set; the previous one must be used up.

        aborted: (producer id, first offset) pairs that came with it. Empty: no record is dropped.
        """
        self._cursor.load(records, aborted)
        self._open = False

    def unload(self):
        """Release the set's buffer; staged rows are kept."""
        self._cursor.unload()
        self._open = False

    def skip_to(self, int64_t offset):
        """Skip to ``offset``: there are no records below it (a gap up to the end of the log)."""
        if offset > self._cursor.next_offset:
            self._cursor.next_offset = offset

    def read(self):
        """The next full batch, None when the set is used up. Raises RecordsDamaged."""
        cdef Fill status
        while True:
            self._begin()
            with nogil:
                status = self._fill()
            if status == FILL_FULL:
                return self._hand_over()
            if status == FILL_NEEDS_GIL:
                if not self._cursor.open_run():
                    self._raise_damaged()
                self._open = True
                continue
            if status == FILL_NO_MEMORY:
                self._forget_rows()
                raise MemoryError
            if status == FILL_DAMAGED:
                self._raise_damaged()
            return None

    def finish(self):
        """The remaining rows, fewer than a full batch; None if there are none."""
        return self._hand_over() if self._rows else None

    # Staged rows; a row for which memory ran out may be in some columns and not in others.
    cdef void _forget_rows(self) noexcept:
        free_bytes(&self._keys)
        free_bytes(&self._values)
        free_headers(&self._headers)
        self._rows = self._bytes = 0

    cdef object _raise_damaged(self):
        raise RecordsDamaged(self._cursor.damaged_at, damage_words(self._cursor.damage))

    # -- rows

    cdef int _begin(self) except -1:
        # Room for a batch of rows, unless there is some.
        if self._wanted[KEY] and self._keys.offsets == NULL:
            if begin_bytes(&self._keys, self._rows_max, self._key_arena) != 0:
                raise MemoryError
        if self._wanted[VALUE] and self._values.offsets == NULL:
            if begin_bytes(&self._values, self._rows_max, self._value_arena) != 0:
                raise MemoryError
        if self._wanted[HEADERS] and self._headers.offsets == NULL:
            if begin_headers(&self._headers, self._rows_max) != 0:
                raise MemoryError
        if self._wanted[OFFSET] and self._offsets == NULL:
            self._offsets = <int64_t*>malloc(<size_t>self._rows_max * 8)
            if self._offsets == NULL:
                raise MemoryError
        if self._wanted[TIMESTAMP] and self._timestamps == NULL:
            self._timestamps = <int64_t*>malloc(<size_t>self._rows_max * 8)
            if self._timestamps == NULL:
                raise MemoryError
        return 0

    cdef Fill _fill(self) noexcept nogil:
        cdef RunStatus status
        cdef Fill filled
        while True:
            if not self._open:
                status = self._cursor.next_run()
                if status == RUN_NEEDS_GIL:
                    return FILL_NEEDS_GIL
                if status == RUN_NONE:
                    return FILL_EMPTY
                if status == RUN_END:
                    return FILL_END
                if status == RUN_DAMAGED:
                    return FILL_DAMAGED
                self._open = True
            if self._cursor.run.timestamp_type != self._timestamp_type:
                if self._rows and self._wanted[TIMESTAMP_TYPE]:
                    return FILL_FULL
                self._timestamp_type = self._cursor.run.timestamp_type
            filled = self._fill_from_run()
            if filled != FILL_EMPTY:
                return filled
            self._open = False
            self._cursor.finish_run()

    # FILL_EMPTY: the run is read.
    cdef Fill _fill_from_run(self) noexcept nogil:
        cdef:
            Row row
            RowStatus status
            Run* run = &self._cursor.run
            int64_t floor = self._cursor.next_offset
            int64_t end = self._cursor.end
            int64_t size
            int appended
            bint with_key = self._wanted[KEY]
            bint with_value = self._wanted[VALUE]
            bint with_headers = self._wanted[HEADERS]
        while True:
            status = next_row(run, &row)
            if status != ROW_OK:
                if status == ROW_NONE:
                    return FILL_EMPTY
                self._cursor._damaged(DAMAGE_RECORD, run.base_offset)
                return FILL_DAMAGED
            if row.offset < floor:
                continue
            if row.offset >= end:
                run.next_offset = end
                return FILL_EMPTY
            size = 0
            if with_key and row.key_size > 0:
                size += row.key_size
            if with_value and row.value_size > 0:
                size += row.value_size
            if with_headers:
                size += row.headers_end - row.headers
            if self._rows == self._rows_max or (self._rows and self._bytes + size > self._bytes_max):
                unread(run, &row)
                return FILL_FULL
            # First, as they alone can turn out to be malformed: every column has the same rows.
            if with_headers:
                appended = append_headers(&self._headers, row.headers, row.headers_end, row.header_count)
                if appended < 0:
                    return FILL_NO_MEMORY
                if appended > 0:
                    self._cursor._damaged(DAMAGE_RECORD, run.base_offset)
                    return FILL_DAMAGED
            self._bytes += size
            if with_key and append_bytes(&self._keys, row.key, row.key_size) != 0:
                return FILL_NO_MEMORY
            if with_value and append_bytes(&self._values, row.value, row.value_size) != 0:
                return FILL_NO_MEMORY
            if self._offsets != NULL:
                self._offsets[self._rows] = row.offset
            if self._timestamps != NULL:
                self._timestamps[self._rows] = (
                    row.timestamp if self._milliseconds else microseconds(row.timestamp)
                )
            self._rows += 1
            self.row_offset = row.offset

    # -- batches

    cdef object _hand_over(self):
        cdef ArrowBatch batch = ArrowBatch.__new__(ArrowBatch)
        cdef ArrowArray* array = new_array(self._rows, 0, 1, self._column_count)
        cdef Py_ssize_t i
        if array == NULL:
            raise MemoryError
        batch.rows = self._rows
        batch._schema = self._schema()
        self._key_arena = max(self._keys.size + self._keys.size // 8, ARENA_BYTES_MIN)
        self._value_arena = max(self._values.size + self._values.size // 8, ARENA_BYTES_MIN)
        for i in range(self._column_count):
            array.children[i] = self._column_array(self._order[i])
            if array.children[i] == NULL:
                free_array(array)
                raise MemoryError
        batch._array = array_capsule(array)
        self.rows += self._rows
        self._rows = self._bytes = 0
        return batch

    cdef ArrowArray* _column_array(self, int column) noexcept:
        cdef ArrowArray* array
        if column == KEY:
            return bytes_array(&self._keys)
        if column == VALUE:
            return bytes_array(&self._values)
        if column == HEADERS:
            return headers_array(&self._headers)
        array = new_array(self._rows, 0, 3 if column == TOPIC else 2, 0)
        if array == NULL:
            return NULL
        if column == TOPIC:
            share_buffer(array, 1, self._topic_offsets)
            share_buffer(array, 2, self._topic_data)
        elif column == PARTITION:
            share_buffer(array, 1, self._partitions)
        elif column == TIMESTAMP_TYPE:
            if not self._fill_types():
                free_array(array)
                return NULL
            share_buffer(array, 1, self._types)
        elif column == OFFSET:
            own_buffer(array, 1, self._offsets)
            self._offsets = NULL
        else:
            own_buffer(array, 1, self._timestamps)
            self._timestamps = NULL
        return array

    cdef bint _fill_types(self) noexcept:
        # Arrays that were handed over keep the block they have.
        cdef int64_t i
        if self._types != NULL and self._types_of == self._timestamp_type:
            return True
        drop_shared(self._types)
        self._types = new_shared(4 * self._rows_max)
        if self._types == NULL:
            return False
        for i in range(self._rows_max):
            (<int32_t*>self._types.data)[i] = self._timestamp_type
        self._types_of = self._timestamp_type
        return True

    cdef object _schema(self):
        cdef ArrowSchema* schema = new_schema("+s", "", self._column_count)
        cdef Py_ssize_t i
        if schema == NULL:
            raise MemoryError
        schema.flags = 0
        for i in range(self._column_count):
            schema.children[i] = field_schema(self._order[i], self._milliseconds)
            if schema.children[i] == NULL:
                free_schema(schema)
                raise MemoryError
        return schema_capsule(schema)
