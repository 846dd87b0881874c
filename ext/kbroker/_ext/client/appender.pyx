"""What ``send`` calls: records are encoded into the open batches of their partitions.

Runs in clients, in the threads that send. See ``accumulator``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kbroker._ext.base.wire cimport store_uvarlong, zigzag32
from kbroker._ext.client.accumulator cimport (
    IS_CLOSED,
    NO_MEMORY,
    NO_PARTITION,
    SLICE_US,
    TAKEN,
    TAKEN_AND_FULL,
    Accumulator,
    Taken,
    take_whole,
    time_us,
)
from kbroker._ext.client.producer_batch cimport (
    PARTITIONS_MAX,
    RECORD_OVERHEAD_MAX,
    Batch,
    Record,
    Topic,
    has_room,
    hold,
    put_sized,
    put_whole,
)
from kbroker._ext.client.record_futures cimport RecordFuture, RecordFutures
from kbroker._ext.client.sent_batch cimport SentBatch, handle_of
from kbroker._ext.client.threads cimport deadline_us, monotonic_us, unix_ms, wait_until_us
from kbroker._ext.record.record_batch cimport (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_END,
    BATCH_OK,
    BatchInfo,
    read_batch_header,
)

cdef extern from "Python.h":
    Py_ssize_t list_size "PyList_GET_SIZE"(PyObject* fields) noexcept nogil
    PyObject* list_item "PyList_GET_ITEM"(PyObject* fields, Py_ssize_t at) noexcept nogil

cdef enum:
    # Records of a list that are taken under one lock.
    RUN_MAX = 256


# Fields as parts of a buffer; positions NULL: there are none.
cdef struct Parts:
    const uint8_t* data
    int64_t size
    const int64_t* starts
    const int32_t* sizes

# Where the fields of records are: in lists, which the caller keeps (keys: or NULL), or, if ``values`` is NULL, in
# buffers. timestamps: NULL: all records have the same.
cdef struct Rows:
    Py_ssize_t count
    PyObject* values
    PyObject* keys
    Parts value_parts
    Parts key_parts
    const int64_t* timestamps


cdef class Buffers:
    """What ``Rows`` point into; released with this."""

    cdef:
        Py_buffer views[7]
        int held

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])

    # The address of a buffer's bytes, and how many items of so many bytes they are.
    cdef const void* hold(self, object given, int width, Py_ssize_t* count) except? NULL:
        cdef Py_buffer* view = &self.views[self.held]
        PyObject_GetBuffer(given, view, PyBUF_SIMPLE)
        self.held += 1
        if view.len % width:
            raise ValueError(f"{view.len} bytes are no items of {width}")
        count[0] = view.len // width
        return view.buf

    # Returns the number of fields. Raises ValueError.
    cdef Py_ssize_t hold_parts(self, Parts* parts, object given, str what) except -1:
        cdef:
            Py_ssize_t count = 0
            Py_ssize_t sizes = 0
            Py_ssize_t n
            const uint8_t* data
            int64_t size
        parts.data = <const uint8_t*>self.hold(given.buffer, 1, &sizes)
        parts.size = sizes
        parts.starts = <const int64_t*>self.hold(given.starts, 8, &count)
        parts.sizes = <const int32_t*>self.hold(given.sizes, 4, &sizes)
        if sizes != count:
            raise ValueError(f"{count} starts for {sizes} sizes")
        for n in range(count):
            if not fill_part(&data, &size, parts, n):
                raise ValueError(
                    f"{what} {n} is not in its buffer of {parts.size} bytes: {parts.sizes[n]} bytes from {parts.starts[n]}")
        return count

    cdef int hold_timestamps(self, Rows* rows, object given) except -1:
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t n
        rows.timestamps = <const int64_t*>self.hold(given, 8, &count)
        if count != rows.count:
            raise ValueError(f"{count} timestamps for {rows.count} values")
        for n in range(count):
            milliseconds(rows.timestamps[n])
        return 0


cdef class Appender(Accumulator):
    """An accumulator with the calls that fill it."""

    def append(self, str topic not None, key, value, headers, partition, timestamp) -> RecordFuture:
        """The future of a record, or None if the topic is not known.

        key, value: bytes-like or None. headers: pairs of str and bytes-like or None; None: no headers.
        partition: None: as the key says. timestamp: ms, None: now. Raises TypeError or ValueError for what
        cannot be encoded, and what ``errors`` makes: too_large, exhausted, no_partition.
        """
        cdef:
            Topic* to
            Record record
            RecordFuture future
            Batch* batch = NULL
            Batch* full = NULL
            bint wakes = False
            int64_t number = -1
            int64_t until_us = -1
            Taken taken
        if <PyObject*>topic == self.last_name:
            to = self.last_topic
        else:
            to = self.known(topic)
        if to == NULL or to.count == 0:
            return None
        self.last_name = to.name
        self.last_topic = to
        key = fill(&record.key, &record.key_size, key, "key")
        value = fill(&record.value, &record.value_size, value, "value")
        if headers is None:
            record.headers_size = 0
        else:
            headers = encoded_headers(headers)
            record.headers = <const uint8_t*>PyBytes_AS_STRING(headers)
            record.headers_size = PyBytes_GET_SIZE(headers)
        record.timestamp = unix_ms() if timestamp is None else milliseconds(timestamp)
        if partition is not None:
            number = partition
            if number < 0:
                raise self.errors.no_partition(topic, partition, to.count)
        self._measure(&record)
        future = RecordFuture.__new__(RecordFuture)
        future.owner = self
        while True:
            self.begin()
            taken = self.take(to, number, &record, &batch, &full, &wakes)
            if taken <= TAKEN_AND_FULL:
                hold(batch)
                future.batch = batch
                future.index = batch.count - 1
            self.end()
            if taken <= TAKEN_AND_FULL:
                break
            until_us = self._refused(to, number, taken, record.size, until_us)
        future.timestamp = record.timestamp
        future.key_size = <int32_t>record.key_size
        future.value_size = <int32_t>record.value_size
        if wakes:
            self.ring()
        if taken == TAKEN_AND_FULL:
            self.pack_batch(full)
        return future

    def append_many(self, str topic not None, values not None, keys, headers, partition, timestamp) -> RecordFutures:
        """The same for a list of values, with a list of keys of the same length or None.

        headers and partition are those of all; timestamp, too, or there is a buffer of one for each (int64). Records
        that cannot be encoded or are too large fail alone, in the result.
        """
        cdef:
            Rows rows
            Buffers buffers = Buffers.__new__(Buffers)
            list fields = values if type(values) is list else list(values)
            list names = None if keys is None else keys if type(keys) is list else list(keys)
        if names is not None and len(names) != len(fields):
            raise ValueError(f"{len(names)} keys for {len(fields)} values")
        memset(&rows, 0, sizeof(Rows))
        rows.values = <PyObject*>fields
        rows.keys = NULL if names is None else <PyObject*>names
        rows.count = len(fields)
        return self._append_rows(topic, &rows, buffers, headers, partition, timestamp)

    def append_parts(self, str topic not None, values not None, keys, headers, partition, timestamp) -> RecordFutures:
        """The same for fields that are parts of a buffer; see ``kbroker.client.batches.record_arrays.Parts``.

        Raises ValueError, before anything is sent, for a part that is not in its buffer.
        """
        cdef:
            Rows rows
            Buffers buffers = Buffers.__new__(Buffers)
        memset(&rows, 0, sizeof(Rows))
        rows.count = buffers.hold_parts(&rows.value_parts, values, "value")
        if keys is not None and buffers.hold_parts(&rows.key_parts, keys, "key") != rows.count:
            raise ValueError(f"{len(keys)} keys for {rows.count} values")
        return self._append_rows(topic, &rows, buffers, headers, partition, timestamp)

    def append_batch(self, str topic not None, int32_t partition, data not None, int32_t records,
                     double seconds) -> SentBatch:
        """A batch that exists already, of format 2, from any producer; it is copied.

        It waits for its topic and its partition, if brokers do not know them yet, and for no memory. records: how many
        numbers it takes of the partition's sequence. seconds: until it fails, if it is not acknowledged. Raises
        ValueError for bytes that are not exactly one batch, and for a partition that no topic has.
        """
        cdef:
            Buffers buffers = Buffers.__new__(Buffers)
            Py_ssize_t size = 0
            const uint8_t* source = <const uint8_t*>buffers.hold(data, 1, &size)
            BatchInfo info
            Topic* to
            Batch* batch
            bint wakes
            int64_t now_us = time_us(self)
        if read_batch_header(source, size, &info) != BATCH_OK or info.batch_length + BATCH_LENGTH_END != size:
            raise ValueError("not exactly one batch of format 2")
        if not 0 <= partition < PARTITIONS_MAX:
            raise ValueError(f"{topic} has no partition {partition}")
        to = self.known(topic)
        if to == NULL:
            to = self._add_topic(topic)
        self._add_parts(to, partition + 1)
        self.begin()
        batch = self._new_batch(to.parts[partition], now_us)
        if batch == NULL or not has_room(batch, size - BATCH_HEADER_BYTES, 0):
            self.end()
            raise MemoryError
        put_whole(batch, source, &info)
        batch.count = records
        batch.deadline_us = deadline_us(now_us, seconds)
        wakes = take_whole(self, batch)
        self.end()
        if wakes:
            self.ring()
        return handle_of(batch)

    cdef RecordFutures _append_rows(
        self, str topic, Rows* rows, Buffers buffers, headers, partition, timestamp
    ):
        cdef:
            Topic* to = self.known(topic)
            Record shared
            RecordFutures futures
            int64_t number = -1
        if to == NULL or to.count == 0:
            return None
        shared.headers_size = 0
        if headers is not None:
            headers = encoded_headers(headers)
            shared.headers = <const uint8_t*>PyBytes_AS_STRING(headers)
            shared.headers_size = PyBytes_GET_SIZE(headers)
        if timestamp is None:
            shared.timestamp = unix_ms()
        elif hasattr(timestamp, "__len__"):
            shared.timestamp = 0
            buffers.hold_timestamps(rows, timestamp)
        else:
            shared.timestamp = milliseconds(timestamp)
        if partition is not None:
            number = partition
            if not 0 <= number < to.count:
                raise self.errors.no_partition(topic, partition, to.count)
        futures = RecordFutures.__new__(RecordFutures)
        futures.owner = self
        futures.failed = {}
        self._take_all(to, number, &shared, rows, futures)
        return futures

    cdef int _take_all(
        self, Topic* to, int64_t number, const Record* shared, const Rows* rows, RecordFutures futures
    ) except -1:
        cdef:
            Record record = shared[0]
            Batch* batch = NULL
            Batch* full
            bint wakes
            int64_t until_us = -1
            Taken taken
            Py_ssize_t at = 0
            Py_ssize_t before, end
            Py_ssize_t count = rows.count
        while at < count:
            futures.reserve(RUN_MAX)
            full = NULL
            wakes = False
            taken = TAKEN
            before = at
            end = min(count, at + RUN_MAX)
            self.begin()
            # Nothing here creates an object: items of lists are borrowed, and only bytes are looked at.
            while at < end and taken == TAKEN and fill_row(&record, rows, at, self.record_bytes_max):
                taken = self.take(to, number, &record, &batch, &full, &wakes)
                if taken <= TAKEN_AND_FULL:
                    futures.add(batch)
                    at += 1
            self.end()
            if wakes:
                self.ring()
            if taken == TAKEN_AND_FULL:
                self.pack_batch(full)
            elif taken != TAKEN:
                try:
                    until_us = self._refused(to, number, taken, record.size, until_us if at == before else -1)
                except Exception as error:
                    if at == 0:
                        raise
                    for at in range(at, count):
                        futures.add_failed(error)
                    return 0
            elif at < end:
                self._take_alone(to, number, shared, rows, at, futures)
                at += 1
        return 0

    # A record that is not just bytes, or too large.
    cdef int _take_alone(
        self, Topic* to, int64_t number, const Record* shared, const Rows* rows, Py_ssize_t at, RecordFutures futures
    ) except -1:
        cdef list row = [None]
        cdef list name = [None]
        cdef Record record = shared[0]
        cdef Rows one
        memset(&one, 0, sizeof(Rows))
        one.count = 1
        one.values = <PyObject*>row
        try:
            if rows.values == NULL:
                # Positions may have been changed by another thread since they were checked.
                if not fill_parts(&record, rows, at):
                    raise ValueError(f"record {at} is not in its buffer")
                self._measure(&record)
                raise ValueError(f"record {at} was changed while it was sent")
            row[0] = fill(&record.value, &record.value_size, (<list>rows.values)[at], "value")
            record.key_size = -1
            if rows.keys != NULL:
                one.keys = <PyObject*>name
                name[0] = fill(&record.key, &record.key_size, (<list>rows.keys)[at], "key")
            self._measure(&record)
        except Exception as error:
            futures.add_failed(error)
            return 0
        record.timestamp = shared.timestamp if rows.timestamps == NULL else rows.timestamps[at]
        return self._take_all(to, number, &record, &one, futures)

    # The size of a record, if it is allowed.
    cdef int _measure(self, Record* record) except -1:
        record.size = RECORD_OVERHEAD_MAX + record.headers_size
        record.size += (record.key_size if record.key_size > 0 else 0)
        record.size += (record.value_size if record.value_size > 0 else 0)
        # BOUND: the caller keeps both below the 32 bits that the format has for lengths.
        if record.size > self.record_bytes_max:
            raise self.errors.too_large(record.size)
        return 0

    # Wait until there may be memory, or raise. until_us: -1 at the first call; returns that of the next one.
    cdef int64_t _refused(self, Topic* topic, int64_t partition, Taken why, int64_t size, int64_t until_us) except -2:
        cdef int64_t began_us = monotonic_us()
        if why == IS_CLOSED:
            raise self.closed
        if why == NO_MEMORY:
            raise MemoryError
        if why == NO_PARTITION:
            raise self.errors.no_partition(<str>topic.name, partition, topic.count)
        if until_us < 0:
            until_us = began_us + self.block_us
        if began_us >= until_us:
            raise self.errors.exhausted(size, self.buffer_bytes, self.block_us // 1000)
        with nogil:
            self.begin()
            self.starved += 1
            self.news = True
            self.asleep = False
            self.end()
            self.ring()
            self.begin()
            if self.used + size > self.buffer_bytes:
                wait_until_us(&self.room, &self.lock, min(until_us, began_us + SLICE_US))
            self.starved -= 1
            self.counters.waited_us += monotonic_us() - began_us
            self.end()
        PyErr_CheckSignals()
        return until_us


# ---- fields of records ---------------------------------------------------------------------------

# The bytes of a key or value, which the returned object keeps alive. Raises TypeError, OverflowError.
cdef inline object fill(const uint8_t** data, int64_t* size, object field, str what):
    if field is None:
        data[0] = NULL
        size[0] = -1
        return None
    if not PyBytes_CheckExact(field):
        if not isinstance(field, (bytes, bytearray, memoryview)):
            raise TypeError(f"a {what} of type {type(field).__name__} is not bytes: set {what}_serializer")
        field = bytes(field)
    # BOUND: all lengths of the format are 32 bits, and so is their sum, with that of the headers.
    if PyBytes_GET_SIZE(field) > INT32_MAX // 4:
        raise OverflowError(f"a {what} of {PyBytes_GET_SIZE(field)} bytes")
    data[0] = <const uint8_t*>PyBytes_AS_STRING(field)
    size[0] = PyBytes_GET_SIZE(field)
    return field


cdef inline bint fill_one(const uint8_t** data, int64_t* size, PyObject* fields, Py_ssize_t at) noexcept:
    cdef PyObject* field = list_item(fields, at)
    if field == <PyObject*>None:
        data[0] = NULL
        size[0] = -1
        return True
    if not PyBytes_CheckExact(<object>field) or PyBytes_GET_SIZE(<object>field) > INT32_MAX // 4:
        return False
    data[0] = <const uint8_t*>PyBytes_AS_STRING(<object>field)
    size[0] = PyBytes_GET_SIZE(<object>field)
    return True


# Whether a row of the lists is plain bytes; creates no object.
cdef inline bint fill_plain(Record* record, const Rows* rows, Py_ssize_t at) noexcept:
    # A list may have become shorter while the GIL was given up.
    if at >= list_size(rows.values) or (rows.keys != NULL and at >= list_size(rows.keys)):
        return False
    record.key_size = -1
    if not fill_one(&record.value, &record.value_size, rows.values, at):
        return False
    return rows.keys == NULL or fill_one(&record.key, &record.key_size, rows.keys, at)


# SAFETY: each position is read once, checked, and used as it was checked.
cdef inline bint fill_part(const uint8_t** data, int64_t* size, const Parts* parts, Py_ssize_t at) noexcept nogil:
    cdef int64_t start = parts.starts[at]
    cdef int32_t length = parts.sizes[at]
    if length < -1 or start < 0 or (length >= 0 and length > parts.size - start):
        return False
    data[0] = parts.data + start if length >= 0 else NULL
    size[0] = length
    return True


cdef inline bint fill_parts(Record* record, const Rows* rows, Py_ssize_t at) noexcept nogil:
    record.key_size = -1
    if not fill_part(&record.value, &record.value_size, &rows.value_parts, at):
        return False
    return rows.key_parts.starts == NULL or fill_part(&record.key, &record.key_size, &rows.key_parts, at)


# Whether a record is plain bytes and not too large.
cdef inline bint fill_row(Record* record, const Rows* rows, Py_ssize_t at, int64_t most) noexcept:
    if not (fill_plain(record, rows, at) if rows.values != NULL else fill_parts(record, rows, at)):
        return False
    if rows.timestamps != NULL:
        record.timestamp = rows.timestamps[at]
    # BOUND: both sizes are below 32 bits.
    record.size = RECORD_OVERHEAD_MAX + record.headers_size
    record.size += (record.key_size if record.key_size > 0 else 0)
    record.size += (record.value_size if record.value_size > 0 else 0)
    return record.size <= most


cdef int64_t milliseconds(object timestamp) except -1:
    cdef int64_t given = timestamp
    if given < 0:
        raise ValueError(f"the timestamp {given} is negative")
    return given


cdef bytes encoded_headers(object headers):
    """Headers as they are in a record, with their count. Raises TypeError."""
    cdef list pairs = list(headers.items() if isinstance(headers, dict) else headers)
    cdef list parts = []
    cdef int64_t size = 5
    cdef uint8_t* p
    cdef bytes name, value, encoded
    for pair in pairs:
        given_name, given_value = pair
        if not isinstance(given_name, (str, bytes)):
            raise TypeError(f"the name of a header is {type(given_name).__name__}, not str")
        name = given_name.encode() if isinstance(given_name, str) else given_name
        if given_value is not None and not isinstance(given_value, (bytes, bytearray, memoryview)):
            raise TypeError(f"the value of header {given_name} is {type(given_value).__name__}, not bytes")
        value = None if given_value is None else bytes(given_value)
        parts.append((name, value))
        size += len(name) + 10 + (0 if value is None else len(value))
    if size > INT32_MAX // 4:
        raise OverflowError(f"headers of {size} bytes")
    encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    p = <uint8_t*>PyBytes_AS_STRING(encoded)
    p = store_uvarlong(p, zigzag32(<int32_t>len(parts)))
    for name, value in parts:
        p = put_sized(p, <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        if value is None:
            p = put_sized(p, NULL, -1)
        else:
            p = put_sized(p, <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return encoded[: p - <uint8_t*>PyBytes_AS_STRING(encoded)]
