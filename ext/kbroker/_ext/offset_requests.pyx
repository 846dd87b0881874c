"""OffsetCommit requests from their bytes to records and to the bytes of their answer.

A commit of one partition is what most groups send a coordinator, every few seconds for each member.
This way needs no object for topics and partitions. Oracle: the general codec and
``coordinator.offsets.commits``, which also take what is left to them here: versions 0, 1 and 10,
retention times, and everything malformed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._ext.offset_store cimport Text
from kbroker._ext.wire cimport (
    READ_OK,
    Reader,
    make_reader,
    read_i32,
    read_i64,
    skip_tagged_fields,
    store_i32,
    uvarlong_size,
)

cdef enum:
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12


cdef str str_of(Text text):
    return PyUnicode_DecodeUTF8(<const char*>text.data, text.size, NULL)


# Characters of UTF-8, as ``len`` counts them.
cdef Py_ssize_t length_of(Text text) noexcept:
    cdef Py_ssize_t found = 0
    cdef int32_t i
    for i in range(text.size):
        found += (text.data[i] & 0xC0) != 0x80
    return found


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

    def partitions(self) -> list[tuple[str, int]]:
        """What is committed, by name of the topic."""
        cdef:
            bint flexible = self.version >= FLEXIBLE_FIRST
            Reader r = self.topics
            int32_t count = 0, partition_count = 0
            Text name
            Partition partition
            list found = []
        # SAFETY: parse_commit has read the same bytes.
        read_count(&r, &count, 1, flexible)
        for number in range(count):
            read_text(&r, &name, flexible)
            read_count(&r, &partition_count, PARTITION_BYTES_MIN, flexible)
            for _ in range(partition_count):
                read_partition(&r, &partition, self.version)
                found.append((self.names[number], partition.index))
            if flexible:
                skip_tagged_fields(&r)
        return found

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
            p = store_name(p, name, flexible)
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
                p = store_outcome(p, partition.index, code, flexible)
            if flexible:
                skip_tagged_fields(&r)
            p = store_end(p, flexible)
        p = store_end(p, flexible)
        assert p == <uint8_t*>PyBytes_AS_STRING(out) + self.answer_size
        return out

    cdef tuple record(self, Text name, const Partition* partition, int64_t now_ms):
        cdef bytes key = PyBytes_FromStringAndSize(
            NULL, KEY_OVERHEAD + self.group.size + name.size
        )
        cdef bytes value = PyBytes_FromStringAndSize(
            NULL, VALUE_OVERHEAD + size_of(&partition.metadata)
        )
        store_key(<uint8_t*>PyBytes_AS_STRING(key), self.group, name, partition.index)
        store_value(<uint8_t*>PyBytes_AS_STRING(value), partition, now_ms)
        return key, value


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
