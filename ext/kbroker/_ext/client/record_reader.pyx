"""Makes records of what a consumer has fetched: an object each, or columns of many.

A reader belongs to one partition and has one record set at a time. What cannot be read stops it there: the records
before are returned, and `error` says where and why.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._ext.client.consumer_record cimport ConsumerRecord
from kbroker._ext.record.record_cursor cimport (
    DAMAGE_RECORD,
    ROW_NONE,
    ROW_OK,
    RUN_DAMAGED,
    RUN_NEEDS_GIL,
    RUN_READY,
    RecordCursor,
    Row,
    RowStatus,
    RunStatus,
    next_header,
    next_row,
    unread,
)

from kbroker._ext.record.record_cursor import damage_words

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void* op)

cdef enum:
    # Waiting for the GIL again may take 5 ms, so it is kept for what takes microseconds.
    RELEASED_FROM_BYTES = 262144
    # BOUND: rows of one call of read_columns; two arrays of 8 bytes each.
    COLUMN_ROWS_MAX = 1 << 20


cdef bint well_formed(const Row* row) noexcept nogil:
    # Whether a record's headers end where the record does.
    cdef:
        const uint8_t* p = row.headers
        const uint8_t* key
        const uint8_t* value
        int32_t key_size, value_size, n
    for n in range(row.header_count):
        if not next_header(&p, row.headers_end, &key, &key_size, &value, &value_size):
            return False
    return p == row.headers_end


cdef inline object bytes_or_none(const uint8_t* data, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>data, size)


cdef class RecordColumns:
    """Some records of one partition, by field: ``values[n]``, ``keys[n]``, ``offsets[n]`` and ``timestamps[n]`` belong
    together.

    keys, values: lists of bytes (or what deserializers made of them) and None. offsets, timestamps: memoryviews of
    64-bit integers; a timestamp is in milliseconds since 1970, -1 without one. timestamp_type: as that of
    ``ConsumerRecord``. next_offset: the position after these records. size_bytes: of keys and values, serialized.

    arrays: the same as arrays of numpy, if the consumer was asked for them (a ``RecordArrays``); else None. Then the
    lists are made when they are first looked at, and deserializers are not called. buffer, key_starts, key_sizes,
    value_starts, value_sizes: what they are made of, memoryviews; keys are None where they were not wanted.
    """

    @property
    def keys(self) -> list:
        if self._keys is None:
            self._keys = [] if self.key_starts is None else self._listed(self.key_starts, self.key_sizes)
        return self._keys

    @property
    def values(self) -> list:
        if self._values is None:
            self._values = self._listed(self.value_starts, self.value_sizes)
        return self._values

    cdef list _listed(self, starts, sizes):
        buffer = self.buffer
        return [
            None if size < 0 else bytes(buffer[start : start + size])
            for start, size in zip(starts, sizes)
        ]

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"RecordColumns({self.topic}-{self.partition}, {len(self)} records before {self.next_offset})"


cdef class RecordReader:
    """Reads the records of a partition from ``start`` on.

    key_deserializer, value_deserializer: ``(topic, bytes) -> anything``, None: bytes. decompressed_max: BOUND, bytes
    of one batch's records.
    """

    def __cinit__(
        self, str topic not None, int32_t partition, int64_t start, *, bint check_crcs=True,
        key_deserializer=None, value_deserializer=None, int64_t decompressed_max=1 << 30,
    ):
        self._cursor = RecordCursor(start, INT64_MAX, decompressed_max, check_crcs)
        self._topic = topic
        self._partition = partition
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._plain = key_deserializer is None and value_deserializer is None
        self.position = start
        self.leader_epoch = -1

    def load(self, records, aborted=()):
        """Continue with the next record set. aborted: (producer id, first offset) of aborted transactions in it."""
        self._cursor.load(records, aborted)
        self._records = records
        self._open = False

    def unload(self):
        """Release the set."""
        self._cursor.unload()
        self._records = None
        self._open = False

    # Open the next run, unless one is open. False: there is none, or it is damaged.
    cdef bint _begin(self) except -1:
        cdef RunStatus status
        if self._open:
            return True
        if self._cursor._limit - self._cursor._pos >= RELEASED_FROM_BYTES:
            with nogil:
                status = self._cursor.next_run()
        else:
            status = self._cursor.next_run()
        if status == RUN_NEEDS_GIL:
            status = RUN_READY if self._cursor.open_run() else RUN_DAMAGED
        if status == RUN_DAMAGED:
            self._stop_at_damage()
            return False
        if status != RUN_READY:
            self.position = max(self.position, self._cursor.next_offset)  # what was skipped
            self.leader_epoch = self._cursor.leader_epoch
            return False
        self.leader_epoch = self._cursor.leader_epoch
        self._open = True
        return True

    cdef int _finish(self) except -1:
        self._cursor.finish_run()
        self._open = False
        self.position = max(self.position, self._cursor.next_offset)
        return 0

    cdef int _stop_at_damage(self) except -1:
        cdef:
            int64_t at = max(self.position, self._cursor.next_offset)
            int64_t after = at + 1
            int64_t last
        self.position = at
        # A header that is damaged may claim anything; a caller who knows the log's end limits it.
        if self._cursor.damaged_at == self._cursor._info.base_offset and self._cursor._info.last_offset_delta >= 0:
            last = self._cursor._info.base_offset
            if 0 <= last < INT64_MAX - 1 - self._cursor._info.last_offset_delta:
                after = max(after, last + self._cursor._info.last_offset_delta + 1)
        self.error = (at, after, damage_words(self._cursor.damage), None)
        self._open = False
        return 0

    # The next record's fields in `row`. False at the end of the run or at a damaged record.
    cdef bint _next(self, Row* row) except -1:
        cdef RowStatus status
        while True:
            status = next_row(&self._cursor.run, row)
            if status == ROW_OK and row.offset < self.position:
                continue
            if status == ROW_OK and (row.header_count == 0 or well_formed(row)):
                return True
            if status == ROW_NONE:
                self._finish()
                return False
            self._cursor._damaged(DAMAGE_RECORD, self._cursor.run.base_offset)
            self._stop_at_damage()
            return False

    cdef object _deserialized(self, deserializer, const uint8_t* data, int32_t size):
        if size < 0:
            return None
        field = PyBytes_FromStringAndSize(<const char*>data, size)
        return field if deserializer is None else deserializer(self._topic, field)

    cdef int _refuse(self, const Row* row, str what, failure) except -1:
        # A deserializer has failed: the record is read again when the caller asks again.
        unread(&self._cursor.run, row)
        self.position = row.offset
        why = f"the deserializer of its {what} raised {type(failure).__name__}: {failure}"
        self.error = (row.offset, row.offset + 1, why, failure)
        return 0

    cdef bint _stopped(self):
        # Whether an error is for good; that of a deserializer may not come again.
        if self.error is not None and self.error[3] is None:
            return True
        self.error = None
        return False

    def read(self, list into not None, Py_ssize_t limit):
        """Append at most ``limit`` records; returns their number.

        Fewer: the set is used up, or ``error`` is set and concerns the next record.
        """
        cdef:
            Row row
            ConsumerRecord record
            Py_ssize_t count = 0
            str what
        if self._stopped():
            return 0
        while count < limit and self._begin():
            if not self._next(&row):
                if self.error is not None:
                    break
                continue
            record = ConsumerRecord.__new__(ConsumerRecord)
            if self._plain:
                record.key = bytes_or_none(row.key, row.key_size)
                record.value = bytes_or_none(row.value, row.value_size)
                # SAFETY: what it refers to is bytes, text and None, none of which can be part of a cycle.
                PyObject_GC_UnTrack(<void*>record)
            else:
                what = "key"
                try:
                    record.key = self._deserialized(self._key_deserializer, row.key, row.key_size)
                    what = "value"
                    record.value = self._deserialized(self._value_deserializer, row.value, row.value_size)
                except Exception as failure:
                    self._refuse(&row, what, failure)
                    break
            record.topic = self._topic
            record.partition = self._partition
            record.offset = row.offset
            record.timestamp = row.timestamp
            record.timestamp_type = self._cursor.run.timestamp_type
            record.leader_epoch = self.leader_epoch
            record.serialized_key_size = row.key_size
            record.serialized_value_size = row.value_size
            if row.header_count > 0:
                record._headers = PyBytes_FromStringAndSize(
                    <const char*>row.headers, row.headers_end - row.headers)
                record._header_count = row.header_count
            into.append(record)
            count += 1
            self.position = row.offset + 1
        self._skip_end()
        return count

    # A run without further records is finished at once, so that the position is past it.
    cdef int _skip_end(self) except -1:
        if self._open and self.error is None and self._cursor.run.magic == 2 and self._cursor.run.left == 0:
            if self._cursor.run.pos == self._cursor.run.end:
                self._finish()
        return 0

    def read_columns(self, Py_ssize_t limit, bint with_keys=True, int64_t bytes_max=1 << 62):
        """At most ``limit`` records as ``RecordColumns``; None if there are none, as ``read`` says.

        with_keys: else ``keys`` is empty. bytes_max: there are no more once they have so many.
        """
        cdef:
            RecordColumns found = RecordColumns.__new__(RecordColumns)
            Py_ssize_t count = 0
            int64_t size = 0
            int64_t* offsets
            int64_t* timestamps
            Row row
            list keys = []
            list values = []
            object key = None
            str what
        if self._stopped():
            return None
        limit = min(limit, COLUMN_ROWS_MAX)
        offsets = <int64_t*>malloc(<size_t>(2 * limit) * sizeof(int64_t))
        if offsets == NULL:
            raise MemoryError
        timestamps = offsets + limit
        try:
            found.timestamp_type = -1
            while count < limit and size < bytes_max and self._begin():
                if count and self._cursor.run.timestamp_type != found.timestamp_type:
                    break
                if not self._next(&row):
                    if self.error is not None:
                        break
                    continue
                what = "key"
                try:
                    if with_keys:
                        key = self._deserialized(self._key_deserializer, row.key, row.key_size)
                    what = "value"
                    values.append(self._deserialized(self._value_deserializer, row.value, row.value_size))
                except Exception as failure:
                    self._refuse(&row, what, failure)
                    break
                if with_keys:
                    keys.append(key)
                size += max(row.key_size, 0) + max(row.value_size, 0)
                found.timestamp_type = self._cursor.run.timestamp_type
                offsets[count] = row.offset
                timestamps[count] = row.timestamp
                count += 1
                self.position = row.offset + 1
            self._skip_end()
            if count == 0:
                return None
            found.topic = self._topic
            found.partition = self._partition
            found._keys = keys
            found._values = values
            found.offsets = memoryview((<char*>offsets)[:count * 8]).cast("q")
            found.timestamps = memoryview((<char*>timestamps)[:count * 8]).cast("q")
            found.next_offset = self.position
            found.size_bytes = size
            return found
        finally:
            free(offsets)

    def read_arrays(self, Py_ssize_t limit, bint with_keys=True, int64_t bytes_max=1 << 62):
        """The same as positions of keys and values in one buffer; nothing is made or copied for a record.

        The buffer is the record set; of compressed batches, it is a copy of their records, a piece for each batch.
        Records of batches that are not in the same buffer are left for the next call.
        """
        cdef:
            RecordColumns found
            ColumnBlock block
            Py_ssize_t count = 0
        if self._stopped():
            return None
        limit = min(limit, COLUMN_ROWS_MAX)
        # BOUND: 40 bytes a row; memory that is not written is not taken.
        block.offsets = <int64_t*>malloc(<size_t>(40 * max(limit, 1)))
        if block.offsets == NULL:
            raise MemoryError
        try:
            block.timestamps = block.offsets + limit
            block.key_starts = block.timestamps + limit
            block.value_starts = block.key_starts + limit
            block.key_sizes = <int32_t*>(block.value_starts + limit)
            block.value_sizes = block.key_sizes + limit
            found = RecordColumns.__new__(RecordColumns)
            count = self._read_positions(&block, found, limit, bytes_max)
            if count == 0:
                return None
            found.topic = self._topic
            found.partition = self._partition
            found.offsets = integers(block.offsets, count, 8)
            found.timestamps = integers(block.timestamps, count, 8)
            if with_keys:
                found.key_starts = integers(block.key_starts, count, 8)
                found.key_sizes = integers(block.key_sizes, count, 4)
            found.value_starts = integers(block.value_starts, count, 8)
            found.value_sizes = integers(block.value_sizes, count, 4)
            found.next_offset = self.position
            return found
        finally:
            free(block.offsets)

    # Fills the block, and buffer, size_bytes and timestamp_type of the columns; returns the number of rows.
    cdef Py_ssize_t _read_positions(
        self, ColumnBlock* block, RecordColumns found, Py_ssize_t limit, int64_t bytes_max
    ) except -1:
        cdef:
            Py_ssize_t count = 0
            int64_t size = 0
            int64_t base = 0
            bint is_copy = False
            bint in_place
            const uint8_t* origin = NULL    # positions are counted from here
            const uint8_t* last             # the end of the last field
            const uint8_t* set_start = <const uint8_t*>self._cursor._view.buf if self._cursor._loaded else NULL
            bytearray copied = bytearray()
            Row row
        while count < limit and size < bytes_max and base < bytes_max and self._begin():
            if count and self._cursor.run.timestamp_type != found.timestamp_type:
                break
            in_place = set_start <= self._cursor.run.pos < self._cursor._limit
            if count == 0:
                is_copy = not in_place
            elif not (is_copy or in_place):
                break
            found.timestamp_type = self._cursor.run.timestamp_type
            origin = last = self._cursor.run.pos if is_copy else set_start
            while count < limit and size < bytes_max and base + (last - origin if is_copy else 0) < bytes_max:
                if not self._next(&row):
                    break
                block.offsets[count] = row.offset
                block.timestamps[count] = row.timestamp
                block.key_sizes[count] = row.key_size
                block.value_sizes[count] = row.value_size
                block.key_starts[count] = base + (row.key - origin) if row.key_size >= 0 else base
                block.value_starts[count] = base + (row.value - origin) if row.value_size >= 0 else base
                # The key precedes the value, in all formats. An empty field has a position, too.
                if row.value_size >= 0:
                    last = row.value + row.value_size
                elif row.key_size >= 0:
                    last = row.key + row.key_size
                size += max(row.key_size, 0) + max(row.value_size, 0)
                count += 1
                self.position = row.offset + 1
            # SAFETY: what the run has decompressed stays until the next one is opened.
            if is_copy and last > origin:
                PyByteArray_Resize(copied, base + (last - origin))
                memcpy(PyByteArray_AS_STRING(copied) + base, origin, <size_t>(last - origin))
                base += last - origin
            if self.error is not None:
                break
        self._skip_end()
        if count:
            found.buffer = (memoryview(copied) if is_copy else memoryview(self._records).cast("B")).toreadonly()
            found.size_bytes = size
        return count


cdef object integers(const void* data, Py_ssize_t count, int width):
    return memoryview((<const char*>data)[:count * width]).cast("q" if width == 8 else "i")
