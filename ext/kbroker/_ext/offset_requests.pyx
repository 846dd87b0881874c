"""OffsetCommit requests from their bytes to records and to the bytes of their answer.

A commit of one partition is what most groups send a coordinator, every few seconds for each member.
This way needs no object for topics and partitions. Oracle: the general codec and
``coordinator.offsets.commits``, which also take what is left to them here: versions 0, 1 and 10,
retention times, and everything malformed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._ext.wire cimport (
    READ_OK,
    Reader,
    make_reader,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i32,
    read_i64,
    read_string,
    skip_tagged_fields,
    store_i16,
    store_i32,
    store_i64,
    store_uvarlong,
    uvarlong_size,
)

cdef enum:
    FIRST_VERSION = 2
    LAST_VERSION = 9
    RETENTION_LAST = 4             # versions 2 to 4 have a retention time
    THROTTLE_FIRST = 3             # answers from here on have a throttle time
    LEADER_EPOCH_FIRST = 6
    INSTANCE_FIRST = 7
    FLEXIBLE_FIRST = 8
    PARTITION_BYTES_MIN = 13       # index, offset, an empty compact string

    KEY_TYPE = 1
    VALUE_VERSION = 3
    KEY_OVERHEAD = 10              # type, two lengths, partition
    VALUE_OVERHEAD = 24            # version, offset, leader epoch, length, timestamp

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12


cdef struct Text:
    const uint8_t* data            # NULL: null
    int32_t size


cdef struct Partition:
    int32_t index
    int32_t leader_epoch
    int64_t offset
    Text metadata


cdef inline bint read_text(Reader* r, Text* text, bint flexible) noexcept:
    text.data = NULL
    text.size = 0
    if flexible:
        return read_compact_string(r, &text.data, &text.size) == READ_OK
    return read_string(r, &text.data, &text.size) == READ_OK


cdef inline bint read_count(Reader* r, int32_t* count, Py_ssize_t least, bint flexible) noexcept:
    # An array that is not null.
    if flexible:
        if read_compact_array_count(r, least, count) != READ_OK:
            return False
    elif read_array_count(r, least, count) != READ_OK:
        return False
    return count[0] >= 0


cdef inline bint read_partition(Reader* r, Partition* p, int version) noexcept:
    p.leader_epoch = -1
    if read_i32(r, &p.index) != READ_OK or read_i64(r, &p.offset) != READ_OK:
        return False
    if version >= LEADER_EPOCH_FIRST and read_i32(r, &p.leader_epoch) != READ_OK:
        return False
    if not read_text(r, &p.metadata, version >= FLEXIBLE_FIRST):
        return False
    return version < FLEXIBLE_FIRST or skip_tagged_fields(r) == READ_OK


cdef str str_of(Text text):
    return PyUnicode_DecodeUTF8(<const char*>text.data, text.size, NULL)


# Characters of UTF-8, as ``len`` counts them.
cdef Py_ssize_t length_of(Text text) noexcept:
    cdef Py_ssize_t found = 0
    cdef int32_t i
    for i in range(text.size):
        found += (text.data[i] & 0xC0) != 0x80
    return found


cdef uint8_t* store_text(uint8_t* p, Text text) noexcept:
    store_i16(p, <int16_t>text.size)
    if text.size > 0:
        memcpy(p + 2, text.data, <size_t>text.size)
        return p + 2 + text.size
    return p + 2


cdef class CommitRequest:
    """A request that was found to be whole; made by ``parse_commit``. Keeps the body alive."""

    cdef readonly str group_id
    cdef readonly str member_id
    cdef readonly object group_instance_id
    cdef readonly int32_t generation_id_or_member_epoch
    cdef int version
    cdef bytes body
    cdef Text group
    cdef Reader topics             # at the count of topics
    cdef list names                # of the topics, in order
    cdef Py_ssize_t answer_size

    def failure(self, int16_t code) -> bytes:
        """The body of an answer with this error for every partition."""
        return self.answer(code, None, 0, 0, None)

    def commit(
        self, dict topics not None, Py_ssize_t metadata_max, int64_t now_ms, list records not None
    ) -> bytes:
        """Append the records of what may be committed; the body of the answer.

        topics: of the image. metadata_max: characters. records: of an Operation, encoded.
        """
        return self.answer(NONE, topics, metadata_max, now_ms, records)

    cdef bytes answer(
        self, int16_t failed, dict topics, Py_ssize_t metadata_max, int64_t now_ms, list records
    ):
        cdef:
            bint flexible = self.version >= FLEXIBLE_FIRST
            Reader r = self.topics
            int32_t count = 0, partition_count = 0, known_count
            Text name
            Partition partition
            int16_t code
            bytes out = PyBytes_FromStringAndSize(NULL, self.answer_size)
            uint8_t* p = <uint8_t*>PyBytes_AS_STRING(out)
            Py_ssize_t number
        if self.version >= THROTTLE_FIRST:
            store_i32(p, 0)
            p += 4
        # SAFETY: parse_commit has read the same bytes and computed the size of what is written.
        read_count(&r, &count, 1, flexible)
        p = store_count(p, count, flexible)
        for number in range(count):
            read_text(&r, &name, flexible)
            read_count(&r, &partition_count, PARTITION_BYTES_MIN, flexible)
            if flexible:
                p = store_uvarlong(p, <unsigned long long>name.size + 1)
                memcpy(p, name.data, <size_t>name.size)
                p += name.size
            else:
                p = store_text(p, name)
            p = store_count(p, partition_count, flexible)
            known_count = 0
            if topics is not None:
                known = topics.get(self.names[number])
                if known is not None:
                    known_count = <int32_t>len(known.partitions)
            for _ in range(partition_count):
                read_partition(&r, &partition, self.version)
                code = failed
                if failed == NONE:
                    if partition.index < 0 or partition.index >= known_count:
                        code = UNKNOWN_TOPIC_OR_PARTITION
                    elif (
                        partition.metadata.size > metadata_max
                        and length_of(partition.metadata) > metadata_max
                    ):
                        code = OFFSET_METADATA_TOO_LARGE
                    else:
                        records.append(self.record(name, &partition, now_ms))
                store_i32(p, partition.index)
                store_i16(p + 4, code)
                p += 6
                if flexible:
                    p[0] = 0
                    p += 1
            if flexible:
                skip_tagged_fields(&r)
                p[0] = 0
                p += 1
        if flexible:
            p[0] = 0
            p += 1
        assert p == <uint8_t*>PyBytes_AS_STRING(out) + self.answer_size
        return out

    cdef tuple record(self, Text name, const Partition* partition, int64_t now_ms):
        cdef bytes key = PyBytes_FromStringAndSize(
            NULL, KEY_OVERHEAD + self.group.size + name.size
        )
        cdef int32_t size = partition.metadata.size if partition.metadata.size > 0 else 0
        cdef bytes value = PyBytes_FromStringAndSize(NULL, VALUE_OVERHEAD + size)
        cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(key)
        store_i16(p, KEY_TYPE)
        p = store_text(p + 2, self.group)
        p = store_text(p, name)
        store_i32(p, partition.index)
        p = <uint8_t*>PyBytes_AS_STRING(value)
        store_i16(p, VALUE_VERSION)
        store_i64(p + 2, partition.offset)
        store_i32(p + 10, partition.leader_epoch)
        store_i16(p + 14, <int16_t>size)
        if size > 0:
            memcpy(p + 16, partition.metadata.data, <size_t>size)
        store_i64(p + 16 + size, now_ms)
        return key, value


cdef inline uint8_t* store_count(uint8_t* p, int32_t count, bint flexible) noexcept:
    if flexible:
        return store_uvarlong(p, <unsigned long long>count + 1)
    store_i32(p, count)
    return p + 4


cdef inline Py_ssize_t count_size(int32_t count, bint flexible) noexcept:
    return uvarlong_size(<unsigned long long>count + 1) if flexible else 4


cdef bint read_topics(CommitRequest request, Reader* r) except *:
    # Every topic and partition; fills in their names and the size of the answer.
    cdef:
        bint flexible = request.version >= FLEXIBLE_FIRST
        int32_t count = 0, partition_count = 0
        Text name
        Partition partition
        Py_ssize_t size = 4 if request.version >= THROTTLE_FIRST else 0
    request.topics = r[0]
    request.names = []
    if not read_count(r, &count, 1, flexible):
        return False
    size += count_size(count, flexible)
    for _ in range(count):
        if not read_text(r, &name, flexible) or name.data == NULL:
            return False
        request.names.append(str_of(name))
        if not read_count(r, &partition_count, PARTITION_BYTES_MIN, flexible):
            return False
        size += name.size + count_size(partition_count, flexible)
        size += uvarlong_size(<unsigned long long>name.size + 1) if flexible else 2
        size += <Py_ssize_t>partition_count * (7 if flexible else 6)
        for _ in range(partition_count):
            if not read_partition(r, &partition, request.version):
                return False
            if partition.metadata.size > 0:
                str_of(partition.metadata)
        if flexible:
            if skip_tagged_fields(r) != READ_OK:
                return False
            size += 1
    if flexible:
        if skip_tagged_fields(r) != READ_OK:
            return False
        size += 1
    request.answer_size = size
    return True


def parse_commit(bytes body not None, int version):
    """The request behind its header, or None: the general codec has to look at it."""
    cdef:
        CommitRequest request
        Reader r = make_reader(<const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        bint flexible = version >= FLEXIBLE_FIRST
        Text text
        int64_t retention = -1
    if version < FIRST_VERSION or version > LAST_VERSION:
        return None
    request = CommitRequest.__new__(CommitRequest)
    request.version = version
    request.body = body
    try:
        if not read_text(&r, &request.group, flexible) or request.group.data == NULL:
            return None
        request.group_id = str_of(request.group)
        if read_i32(&r, &request.generation_id_or_member_epoch) != READ_OK:
            return None
        if not read_text(&r, &text, flexible) or text.data == NULL:
            return None
        request.member_id = str_of(text)
        if version >= INSTANCE_FIRST:
            if not read_text(&r, &text, flexible):
                return None
            request.group_instance_id = None if text.data == NULL else str_of(text)
        if version <= RETENTION_LAST:
            if read_i64(&r, &retention) != READ_OK or retention != -1:
                return None
        return request if read_topics(request, &r) else None
    except UnicodeDecodeError:
        return None
