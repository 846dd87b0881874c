"""What ``send`` calls: records are encoded into the open batches of their partitions.

Runs in clients, in the threads that send. See ``accumulator``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

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
)
from kbroker._ext.client.producer_batch cimport RECORD_OVERHEAD_MAX, Batch, Record, Topic, hold, put_sized
from kbroker._ext.client.record_futures cimport RecordFuture, RecordFutures
from kbroker._ext.client.threads cimport monotonic_us, unix_ms, wait_until_us

cdef enum:
    # Records of a list that are taken under one lock.
    RUN_MAX = 256


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

        headers, partition and timestamp are those of all. Records that cannot be encoded or are too large
        fail alone, in the result.
        """
        cdef:
            Topic* to = self.known(topic)
            Record shared
            RecordFutures futures
            int64_t number = -1
        cdef list rows = values if type(values) is list else list(values)
        cdef list names = None if keys is None else keys if type(keys) is list else list(keys)
        if to == NULL or to.count == 0:
            return None
        if names is not None and len(names) != len(rows):
            raise ValueError(f"{len(names)} keys for {len(rows)} values")
        shared.headers_size = 0
        if headers is not None:
            headers = encoded_headers(headers)
            shared.headers = <const uint8_t*>PyBytes_AS_STRING(headers)
            shared.headers_size = PyBytes_GET_SIZE(headers)
        shared.timestamp = unix_ms() if timestamp is None else milliseconds(timestamp)
        if partition is not None:
            number = partition
            if not 0 <= number < to.count:
                raise self.errors.no_partition(topic, partition, to.count)
        futures = RecordFutures.__new__(RecordFutures)
        futures.owner = self
        futures.failed = {}
        self._take_all(to, number, &shared, rows, names, futures)
        return futures

    cdef int _take_all(
        self, Topic* to, int64_t number, const Record* shared, list rows, list names, RecordFutures futures
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
            Py_ssize_t count = len(rows)
        while at < count:
            futures.reserve(RUN_MAX)
            full = NULL
            wakes = False
            taken = TAKEN
            before = at
            end = min(count, at + RUN_MAX)
            self.begin()
            # Nothing here creates an object: items of lists are borrowed, and only bytes are looked at.
            while at < end and taken == TAKEN and fill_plain(&record, rows, names, at, self.record_bytes_max):
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
                self._take_alone(to, number, shared, rows, names, at, futures)
                at += 1
        return 0

    # A record that is not just bytes, or too large.
    cdef int _take_alone(
        self, Topic* to, int64_t number, const Record* shared, list rows, list names, Py_ssize_t at,
        RecordFutures futures
    ) except -1:
        cdef list row = [None]
        cdef list name = [None]
        cdef Record record = shared[0]
        try:
            row[0] = fill(&record.value, &record.value_size, rows[at], "value")
            if names is not None:
                name[0] = fill(&record.key, &record.key_size, names[at], "key")
            else:
                record.key_size = -1
            self._measure(&record)
        except Exception as error:
            futures.add_failed(error)
            return 0
        return self._take_all(to, number, shared, row, None if names is None else name, futures)

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


cdef inline bint fill_one(const uint8_t** data, int64_t* size, list fields, Py_ssize_t at) noexcept:
    cdef PyObject* field = PyList_GET_ITEM(fields, at)
    if field == <PyObject*>None:
        data[0] = NULL
        size[0] = -1
        return True
    if not PyBytes_CheckExact(<object>field) or PyBytes_GET_SIZE(<object>field) > INT32_MAX // 4:
        return False
    data[0] = <const uint8_t*>PyBytes_AS_STRING(<object>field)
    size[0] = PyBytes_GET_SIZE(<object>field)
    return True


# Whether a row of two lists is plain bytes and not too large; creates no object. keys: or None.
cdef inline bint fill_plain(Record* record, list values, list keys, Py_ssize_t at, int64_t most) noexcept:
    # The list may have become shorter while the GIL was given up.
    if at >= len(values) or (keys is not None and at >= len(keys)):
        return False
    if not fill_one(&record.value, &record.value_size, values, at):
        return False
    record.key_size = -1
    if keys is not None and not fill_one(&record.key, &record.key_size, keys, at):
        return False
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
