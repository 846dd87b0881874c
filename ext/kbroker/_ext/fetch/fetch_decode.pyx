"""Decoder of Fetch requests, versions 0 to 18.

Writes plain structs into arrays that are used again for the next request: no Python object, no copy of the bytes.
Oracle: ``kbroker.protocol.codec``. Source: protocol guide, Fetch API (key 1); KIP-227, KIP-482, KIP-516, KIP-903.
"""

from libc.stdint cimport INT32_MAX, uint32_t
from libc.stdlib cimport free

from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    ReadStatus,
    bytes_left,
    load_i32,
    load_i64,
    make_reader,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i8,
    read_i32,
    read_i64,
    read_raw,
    read_string,
    read_uvarint,
    skip,
    skip_tagged_fields,
)

cdef enum:
    TAG_REPLICA_STATE = 1
    UUID_SIZE = 16


class FetchDecodeError(ValueError):
    """The bytes are not a Fetch request of their version; close the connection."""


cdef struct Shape:
    bint flexible
    bint by_id
    int16_t version


cdef int fail(str what) except -1:
    raise FetchDecodeError(f"malformed Fetch request: {what}")


cdef int need(ReadStatus status, str what) except -1:
    if status != READ_OK:
        fail(f"{what} is truncated or impossible")
    return 0


cdef int tags(Reader* r, Shape* shape) except -1:
    if shape.flexible:
        need(skip_tagged_fields(r), "tagged fields")
    return 0


cdef int32_t count_of(Reader* r, Shape* shape, Py_ssize_t element_bytes_min, str what) except -1:
    # Null is accepted as empty, as other brokers do.
    cdef int32_t count = 0
    if shape.flexible:
        need(read_compact_array_count(r, element_bytes_min, &count), what)
    else:
        need(read_array_count(r, element_bytes_min, &count), what)
    return count if count > 0 else 0


cdef int read_topic_key(Reader* r, Shape* shape, RequestTopic* topic) except -1:
    if shape.by_id:
        need(read_raw(r, UUID_SIZE, &topic.key), "topic id")
        topic.key_size = UUID_SIZE
    elif shape.flexible:
        need(read_compact_string(r, &topic.key, &topic.key_size), "topic name")
    else:
        need(read_string(r, &topic.key, &topic.key_size), "topic name")
    if topic.key_size < 0:
        fail("null topic name")
    return 0


cdef int read_top_tags(Reader* r, FetchRequest request) except -1:
    # The tagged fields of the request itself: cluster id (ignored) and, from version 15, the replica's state.
    cdef:
        uint32_t fields = 0
        uint32_t tag = 0
        uint32_t size = 0
        const uint8_t* value = NULL
        Reader state
        int64_t replica_epoch = 0
    need(read_uvarint(r, &fields), "tagged fields")
    while fields > 0:
        need(read_uvarint(r, &tag), "tagged fields")
        need(read_uvarint(r, &size), "tagged fields")
        need(read_raw(r, <Py_ssize_t>size, &value), "tagged fields")
        if tag == TAG_REPLICA_STATE and request.version >= 15:
            state = make_reader(value, <Py_ssize_t>size)
            need(read_i32(&state, &request.replica_id), "replica state")
            need(read_i64(&state, &replica_epoch), "replica state")
            need(skip_tagged_fields(&state), "replica state")
            if bytes_left(&state) != 0:
                fail("bytes after the replica state")
        fields -= 1
    return 0


cdef inline int32_t fixed_partition_size(int16_t version) noexcept nogil:
    # Bytes of one partition before its tagged fields.
    return 16 + (8 if version >= 5 else 0) + (4 if version >= 9 else 0) + (4 if version >= 12 else 0)


cdef class FetchRequest:
    """One decoded request; the engine keeps one object and decodes every request into it."""

    def __dealloc__(self):
        free(self.topics)
        free(self.partitions)
        free(self.forgotten)
        free(self.forgotten_partitions)

    cdef int decode(self, const uint8_t* body, Py_ssize_t size, int16_t version) except -1:
        cdef:
            Reader r = make_reader(body, size)
            Shape shape
        if version < FETCH_VERSION_MIN or version > FETCH_VERSION_MAX:
            raise FetchDecodeError(f"Fetch version {version} is outside {FETCH_VERSION_MIN}..{FETCH_VERSION_MAX}")
        shape.version = version
        shape.flexible = version >= 12
        shape.by_id = version >= 13
        self.version = version
        self.replica_id = -1
        self.session_id = 0
        self.session_epoch = -1
        self.rack_size = 0
        self.topic_count = 0
        self.partition_count = 0
        self.forgotten_count = 0
        self.forgotten_partition_count = 0
        if version < 15:
            need(read_i32(&r, &self.replica_id), "replica id")
        need(read_i32(&r, &self.max_wait_ms), "max wait")
        need(read_i32(&r, &self.bytes_min), "min bytes")
        self.bytes_max = INT32_MAX  # before version 3 only partitions have a limit
        self.isolation_level = 0
        if version >= 3:
            need(read_i32(&r, &self.bytes_max), "max bytes")
        if version >= 4:
            need(read_i8(&r, &self.isolation_level), "isolation level")
        if self.isolation_level != 0 and self.isolation_level != 1:
            fail(f"unknown isolation level {self.isolation_level}")
        if version >= 7:
            need(read_i32(&r, &self.session_id), "session id")
            need(read_i32(&r, &self.session_epoch), "session epoch")
        read_topics(&r, &shape, self)
        if version >= 7:
            read_forgotten(&r, &shape, self)
        if version >= 12:
            need(read_compact_string(&r, &self.rack, &self.rack_size), "rack id")
            read_top_tags(&r, self)
        elif version >= 11:
            need(read_string(&r, &self.rack, &self.rack_size), "rack id")
        if bytes_left(&r) != 0:
            fail(f"{bytes_left(&r)} bytes after its end")
        return 0

    cdef int make_room(self, int32_t topics, int32_t partitions, int32_t forgotten, int32_t indexes) except -1:
        """Grow the arrays to hold at least this many; their content is kept."""
        self.topic_capacity = grow(&self.topics, self.topic_capacity, topics, sizeof(RequestTopic))
        self.partition_capacity = grow(
            &self.partitions, self.partition_capacity, partitions, sizeof(RequestPartition))
        self.forgotten_capacity = grow(&self.forgotten, self.forgotten_capacity, forgotten, sizeof(RequestTopic))
        self.forgotten_partition_capacity = grow(
            &self.forgotten_partitions, self.forgotten_partition_capacity, indexes, sizeof(int32_t))
        return 0


cdef int read_topics(Reader* r, Shape* shape, FetchRequest request) except -1:
    cdef:
        int32_t size = fixed_partition_size(shape.version)
        int32_t element_min = size + (1 if shape.flexible else 0)
        int32_t topic_min = (UUID_SIZE if shape.by_id else 1) + (2 if shape.flexible else 5)
        int32_t topics = count_of(r, shape, topic_min, "topics")
        int32_t position, count
        RequestTopic* topic
    # BOUND: count_of rejected a count whose elements cannot be in the request, so these arrays are smaller than
    # a few times the request; the same holds below.
    if topics > FETCH_PARTITIONS_MAX:
        fail(f"{topics} topics, at most {FETCH_PARTITIONS_MAX} are supported")
    request.make_room(topics, 0, 0, 0)
    for position in range(topics):
        topic = &request.topics[position]
        read_topic_key(r, shape, topic)
        count = count_of(r, shape, element_min, "partitions")
        if count > FETCH_PARTITIONS_MAX - request.partition_count:
            fail(f"more than {FETCH_PARTITIONS_MAX} partitions")
        request.make_room(0, request.partition_count + count, 0, 0)
        topic.first = request.partition_count
        topic.count = count
        while count > 0:
            read_partition(r, shape, size, &request.partitions[request.partition_count])
            request.partition_count += 1
            count -= 1
        tags(r, shape)
    request.topic_count = topics
    return 0


cdef inline int read_partition(Reader* r, Shape* shape, int32_t size, RequestPartition* out) except -1:
    cdef const uint8_t* p = NULL
    need(read_raw(r, size, &p), "partition")
    # SAFETY: read_raw checked `size` bytes, the sum of all fields of this version.
    out.index = load_i32(p)
    p += 4
    out.current_leader_epoch = -1
    if shape.version >= 9:
        out.current_leader_epoch = load_i32(p)
        p += 4
    out.fetch_offset = load_i64(p)
    p += 8
    out.last_fetched_epoch = -1
    if shape.version >= 12:
        out.last_fetched_epoch = load_i32(p)
        p += 4
    out.log_start_offset = -1
    if shape.version >= 5:
        out.log_start_offset = load_i64(p)
        p += 8
    out.bytes_max = load_i32(p)
    return tags(r, shape)


cdef int read_forgotten(Reader* r, Shape* shape, FetchRequest request) except -1:
    cdef:
        int32_t topic_min = (UUID_SIZE if shape.by_id else 1) + (2 if shape.flexible else 5)
        int32_t topics = count_of(r, shape, topic_min, "forgotten topics")
        int32_t position, count
        const uint8_t* p = NULL
        RequestTopic* topic
    if topics > FETCH_PARTITIONS_MAX:
        fail(f"{topics} forgotten topics, at most {FETCH_PARTITIONS_MAX} are supported")
    request.make_room(0, 0, topics, 0)
    for position in range(topics):
        topic = &request.forgotten[position]
        read_topic_key(r, shape, topic)
        count = count_of(r, shape, 4, "forgotten partitions")
        if count > FETCH_PARTITIONS_MAX - request.forgotten_partition_count:
            fail(f"more than {FETCH_PARTITIONS_MAX} forgotten partitions")
        request.make_room(0, 0, 0, request.forgotten_partition_count + count)
        topic.first = request.forgotten_partition_count
        topic.count = count
        need(read_raw(r, 4 * <Py_ssize_t>count, &p), "forgotten partitions")
        while count > 0:
            request.forgotten_partitions[request.forgotten_partition_count] = load_i32(p)
            request.forgotten_partition_count += 1
            p += 4
            count -= 1
        tags(r, shape)
    request.forgotten_count = topics
    return 0
