# Batches on their way to brokers, the partitions they are for and the topics of these, as C structs: the send loop
# works on them without the GIL. The lock of the accumulator guards them all, except for the bytes of a batch that is
# SENT or PACKING, which belong to whoever brought it into that state.

from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from kbroker._ext.base.atomics cimport kb_add_fetch_i64
from kbroker._ext.base.crc32c cimport crc32c
from kbroker._ext.base.growing cimport resize
from kbroker._ext.base.wire cimport (
    store_i16,
    store_i32,
    store_i64,
    store_u32,
    store_uvarlong,
    varint_size,
    zigzag32,
    zigzag64,
)
from kbroker._ext.client.producer_counts cimport TopicCounts
from kbroker._ext.record.record_batch cimport (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_TRANSACTIONAL,
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
    BatchInfo,
)

cdef enum:
    # BOUND: a record's bytes other than key, value and headers: its length, attributes, two deltas, three counts.
    RECORD_OVERHEAD_MAX = 40
    # A batch grows to batch.size and so much more, which is nearly always enough for its last record.
    SPARE_BYTES = 64
    # BOUND: partitions of a topic, for a hostile Metadata response.
    PARTITIONS_MAX = 1000000

cdef struct Part
cdef struct Topic

cdef enum BatchState:
    BATCH_OPEN         # the last one of its partition; takes records
    BATCH_PACKING      # full, and being compressed by the thread that found it full
    BATCH_READY        # in its queue, to be sent
    BATCH_SENT         # in a request
    BATCH_TAKEN        # out of queue and request; the sender decides what becomes of it
    BATCH_DONE
    BATCH_FAILED
    BATCH_SPLIT        # too large for its broker: its records are those of its parts now

cdef struct Record:
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers     # with their count, as they are in a record
    int64_t key_size           # -1: null
    int64_t value_size
    int64_t headers_size
    int64_t timestamp          # ms
    int64_t size               # BOUND: of the encoded record

# refs: of the accumulator, as long as the batch is not DONE or FAILED; of the request it is in; of futures and of
# handles. The last one frees it. `error` and `callbacks` are only touched with the GIL; so a thread without it may give
# up a reference of a batch that has neither.
cdef struct Batch:
    int64_t refs
    Part* part
    Batch* next                # in its partition's queue
    Batch* older               # of all batches that have not ended
    Batch* newer
    int64_t number             # in the order of creation; parts of a batch have its number
    int32_t split_at           # and where they begin in the first batch of that number
    uint8_t* data              # begins with the header
    int64_t size
    int64_t capacity
    int64_t charged            # to buffer.memory
    int64_t records_bytes      # before they were compressed; 0: as they are, or unknown
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t created_us
    int64_t deadline_us
    int64_t base_offset        # once it is DONE; -1 if unknown
    int64_t append_time        # ms, -1: the records' own timestamps count
    int64_t producer_id
    int32_t count
    int32_t sequence           # -1: has none yet
    int32_t attempts
    int32_t log                # of its partition, when it was sent last
    int16_t producer_epoch
    int16_t attributes         # that a whole batch came with, but for its codec and whether it is transactional
    int8_t codec
    BatchState state
    PyObject* error
    PyObject* callbacks        # a list of (future, function), or NULL
    Batch* parts               # of a SPLIT batch, in their order; it has a reference to each
    Batch* next_part

cdef struct Part:
    Topic* topic
    int32_t index
    int32_t leader             # node id, -1 while there is none
    int32_t leader_epoch
    Batch* first               # to be sent, oldest first
    Batch* last
    int32_t queued
    int32_t in_flight          # batches in requests
    int64_t not_before_us
    int64_t producer_id        # that its batches have; that of the accumulator once nothing older is undecided
    int32_t next_sequence
    int32_t log                # rises when another topic has the name, and when there is none
    int32_t newest_split_at
    int64_t newest             # the number of the newest batch that was appended
    int16_t producer_epoch
    bint known                 # its log has a batch of this producer and epoch
    bint held                  # something went wrong: nothing is sent until in_flight is 0
    bint rewrite               # and then its batches get new sequence numbers, of the next epoch
    bint added                 # to the transaction
    bint adding
    bint active                # in the list of those with batches

cdef struct Topic:
    PyObject* name             # owned
    const char* text           # of it, UTF-8
    int32_t text_size
    int32_t count
    int32_t room
    int32_t sticky             # the partition of records without a key
    int64_t sticky_bytes       # that it has got since it was chosen
    TopicCounts counts
    Part** parts


# ---- bytes of a batch ----------------------------------------------------------------------------

cdef inline uint8_t* put_sized(uint8_t* p, const uint8_t* data, int64_t size) noexcept nogil:
    p = store_uvarlong(p, zigzag32(<int32_t>size))
    if size > 0:
        memcpy(p, data, <size_t>size)
        p += size
    return p


# Make room for `more` bytes. False: there is no memory.
cdef inline bint has_room(Batch* batch, int64_t more, int64_t batch_bytes) noexcept nogil:
    cdef int64_t wanted = batch.size + more
    if wanted <= batch.capacity:
        return True
    wanted = max(wanted, min(4 * batch.capacity, batch_bytes + SPARE_BYTES), 1024)
    if not resize(&batch.data, <size_t>wanted):
        return False
    batch.capacity = wanted
    return True


# SAFETY: record.size bytes are free behind batch.size.
cdef inline void put_record(Batch* batch, const Record* record) noexcept nogil:
    cdef:
        # The length comes first but is known last: its width is guessed, nearly always correctly.
        int guessed = varint_size(<int32_t>(record.size - RECORD_OVERHEAD_MAX) + 7)
        uint8_t* start = batch.data + batch.size
        uint8_t* body = start + guessed
        uint8_t* p = body
        int64_t size
        int width
    if batch.count == 0:
        batch.first_timestamp = batch.max_timestamp = record.timestamp
    elif record.timestamp > batch.max_timestamp:
        batch.max_timestamp = record.timestamp
    p[0] = 0
    p = store_uvarlong(p + 1, zigzag64(record.timestamp - batch.first_timestamp))
    p = store_uvarlong(p, zigzag32(batch.count))
    p = put_sized(p, record.key, record.key_size)
    p = put_sized(p, record.value, record.value_size)
    if record.headers_size > 0:
        memcpy(p, record.headers, <size_t>record.headers_size)
        p += record.headers_size
    else:
        p[0] = 0
        p += 1
    size = p - body
    width = varint_size(<int32_t>size)
    if width != guessed:
        memmove(start + width, body, <size_t>size)
    store_uvarlong(start, zigzag32(<int32_t>size))
    batch.size += size + width
    batch.count += 1


# The header, except for what `stamp` writes.
cdef inline void put_header(Batch* batch) noexcept nogil:
    cdef uint8_t* p = batch.data
    memset(p, 0, BATCH_HEADER_BYTES)
    store_i32(p + 8, <int32_t>(batch.size - BATCH_LENGTH_END))
    store_i32(p + BATCH_LENGTH_END, -1)
    p[BATCH_MAGIC_AT] = 2
    store_i32(p + BATCH_LAST_OFFSET_DELTA_AT, batch.count - 1)
    store_i64(p + BATCH_FIRST_TIMESTAMP_AT, batch.first_timestamp)
    store_i64(p + BATCH_MAX_TIMESTAMP_AT, batch.max_timestamp)
    store_i32(p + BATCH_RECORD_COUNT_AT, batch.count)


# Make a new batch one that exists already: `info` is of `data`, and the batch has room for all of it. It stays as it is,
# but for what `stamp` writes and what only brokers say. The caller has the lock, unless nobody else knows the batch.
cdef inline void put_whole(Batch* batch, const uint8_t* data, const BatchInfo* info) noexcept nogil:
    batch.size = info.batch_length + BATCH_LENGTH_END
    batch.count = info.record_count
    batch.codec = <int8_t>(info.attributes & ATTRIBUTE_CODEC_MASK)
    batch.attributes = info.attributes & ~(ATTRIBUTE_CODEC_MASK | ATTRIBUTE_TRANSACTIONAL)
    batch.first_timestamp = info.first_timestamp
    batch.max_timestamp = info.max_timestamp
    batch.charged = batch.size
    memcpy(batch.data, data, <size_t>batch.size)
    store_i64(batch.data, 0)
    store_i32(batch.data + BATCH_LENGTH_END, -1)
    batch.state = BATCH_READY


# What differs between attempts, and the checksum.
cdef inline void stamp(Batch* batch, bint transactional) noexcept nogil:
    cdef uint8_t* p = batch.data
    store_i16(
        p + BATCH_ATTRIBUTES_AT,
        <int16_t>(batch.attributes | batch.codec | (ATTRIBUTE_TRANSACTIONAL if transactional else 0)))
    store_i64(p + BATCH_PRODUCER_ID_AT, batch.producer_id)
    store_i16(p + BATCH_PRODUCER_EPOCH_AT, batch.producer_epoch)
    store_i32(p + BATCH_BASE_SEQUENCE_AT, batch.sequence)
    store_u32(p + BATCH_CRC_AT, crc32c(p + BATCH_CRC_FROM, <size_t>(batch.size - BATCH_CRC_FROM)))


# ---- references ----------------------------------------------------------------------------------

cdef inline void hold(Batch* batch) noexcept nogil:
    kb_add_fetch_i64(&batch.refs, 1)


# With the GIL. BOUND: parts of parts: each has at most half of the records.
cdef inline void release(Batch* batch) noexcept:
    cdef Batch* part
    if kb_add_fetch_i64(&batch.refs, -1) == 0:
        while batch.parts != NULL:
            part = batch.parts
            batch.parts = part.next_part
            release(part)
        Py_XDECREF(batch.error)
        Py_XDECREF(batch.callbacks)
        free(batch.data)
        free(batch)


cdef inline void free_topic(Topic* topic) noexcept:
    cdef int32_t i
    for i in range(topic.room):
        free(topic.parts[i])
    free(topic.parts)
    Py_XDECREF(topic.name)
    free(topic)


# For threads without the GIL: of batches without error, callbacks and parts.
cdef inline void let_go(Batch* batch) noexcept nogil:
    if kb_add_fetch_i64(&batch.refs, -1) == 0:
        free(batch.data)
        free(batch)


# A part of a batch that was sent and is to be split. data: of the part; at: its first record in the batch. NULL: there is
# no memory.
cdef inline Batch* new_part(
    const Batch* batch, const uint8_t* data, int64_t size, int32_t at, int32_t count
) noexcept nogil:
    cdef Batch* made = <Batch*>calloc(1, sizeof(Batch))
    if made == NULL or not resize(&made.data, <size_t>size):
        free(made)
        return NULL
    memcpy(made.data, data, <size_t>size)
    made.refs = 2              # of the accumulator and of the batch
    made.part = batch.part
    made.number = batch.number
    made.split_at = batch.split_at + at
    made.size = made.capacity = size
    made.charged = batch.charged * (at + count) // batch.count - batch.charged * at // batch.count
    made.created_us = batch.created_us
    made.deadline_us = batch.deadline_us
    made.base_offset = made.append_time = -1
    made.producer_id = batch.producer_id
    made.producer_epoch = batch.producer_epoch
    made.count = count
    made.sequence = -1
    if batch.sequence >= 0:
        made.sequence = <int32_t>((<int64_t>batch.sequence + at) & 0x7FFFFFFF)
    made.codec = batch.codec
    made.attributes = batch.attributes
    made.state = BATCH_READY
    return made


# Of parts that are not used.
cdef inline void free_parts(Batch* part) noexcept nogil:
    cdef Batch* next_part
    while part != NULL:
        next_part = part.next_part
        free(part.data)
        free(part)
        part = next_part


# The batch that has the record which was the given one of `batch`; index: of it there. With the GIL or the lock.
cdef inline Batch* batch_of(Batch* batch, int32_t* index) noexcept nogil:
    while batch.state == BATCH_SPLIT:
        batch = batch.parts
        while index[0] >= batch.count:
            index[0] -= batch.count
            batch = batch.next_part
    return batch


# ---- log of a partition --------------------------------------------------------------------------

# With the lock. Another topic has the name, or none has: its log knows no producer.
cdef inline void forget_log(Part* part) noexcept nogil:
    part.known = False
    part.log += 1


# With the lock. Of a batch that was sent before its topic was another one, nobody knows which log has it.
cdef inline void note_appended(const Batch* batch) noexcept nogil:
    cdef Part* part = batch.part
    if batch.log == part.log:
        part.known = True
    if batch.number > part.newest:
        part.newest = batch.number
        part.newest_split_at = batch.split_at
    elif batch.number == part.newest:
        part.newest_split_at = max(part.newest_split_at, batch.split_at)


# ---- queue of a partition ------------------------------------------------------------------------

cdef inline void push(Part* part, Batch* batch) noexcept nogil:
    batch.next = NULL
    if part.last == NULL:
        part.first = batch
    else:
        part.last.next = batch
    part.last = batch
    part.queued += 1


cdef inline Batch* pop(Part* part) noexcept nogil:
    cdef Batch* batch = part.first
    part.first = batch.next
    if part.first == NULL:
        part.last = NULL
    batch.next = NULL
    part.queued -= 1
    return batch


cdef inline bint is_before(const Batch* one, const Batch* other) noexcept nogil:
    return one.number < other.number or (one.number == other.number and one.split_at < other.split_at)


# Insert a batch that was sent before, before those that are newer.
cdef inline void put_in_order(Part* part, Batch* batch) noexcept nogil:
    cdef Batch* before = NULL
    cdef Batch* after = part.first
    while after != NULL and is_before(after, batch):
        before = after
        after = after.next
    batch.next = after
    if before == NULL:
        part.first = batch
    else:
        before.next = batch
    if after == NULL:
        part.last = batch
    part.queued += 1


cdef inline void take_out(Part* part, Batch* batch) noexcept nogil:
    cdef Batch* before = NULL
    cdef Batch* at = part.first
    while at != NULL and at != batch:
        before = at
        at = at.next
    if at == NULL:
        return
    if before == NULL:
        part.first = batch.next
    else:
        before.next = batch.next
    if part.last == batch:
        part.last = before
    batch.next = NULL
    part.queued -= 1
