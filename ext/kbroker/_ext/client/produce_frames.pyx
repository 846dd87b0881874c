"""Produce requests of versions 3 to 12, and the responses to them that report no error.

The hot path of a producer; whatever is unusual is decoded by ``kbroker.protocol``, whose
``messages/produce.py`` has the fields.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy

from kbroker._ext.base.api_keys cimport API_PRODUCE, PRODUCE_FLEXIBLE
from kbroker._ext.base.wire cimport (
    Reader,
    make_reader,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i16,
    read_i32,
    read_i64,
    read_string,
    skip_tagged_fields,
    store_i16,
    store_i32,
    store_uvarlong,
)
from kbroker._ext.client.producer_batch cimport Batch, Topic
from kbroker._ext.sockets.stream cimport Stream, begin_request, end_request

cdef enum:
    FIRST_LOG_START = 5
    FIRST_RECORD_ERRORS = 8
    # BOUND: bytes of a request beside names and batches: once; per topic; per partition.
    HEAD_BYTES = 64
    TOPIC_BYTES = 16
    PARTITION_BYTES = 16


cdef int64_t frame_bytes_max(const RequestHead* head, const Request* request) noexcept nogil:
    cdef int64_t size = HEAD_BYTES + head.client_id_size + head.transactional_id_size
    cdef int32_t i
    for i in range(request.count):
        size += TOPIC_BYTES + PARTITION_BYTES + request.batches[i].part.topic.text_size + request.batches[i].size
    return size


cdef int compare(const void* one, const void* other) noexcept nogil:
    cdef const Batch* a = (<Batch**>one)[0]
    cdef const Batch* b = (<Batch**>other)[0]
    if a.part.topic != b.part.topic:
        return -1 if <size_t>a.part.topic < <size_t>b.part.topic else 1
    return -1 if a.part.index < b.part.index else 1 if a.part.index > b.part.index else 0


cdef void sort_batches(Request* request) noexcept nogil:
    if request.count > 1:
        qsort(request.batches, <size_t>request.count, sizeof(Batch*), &compare)


# ---- the request ---------------------------------------------------------------------------------

cdef uint8_t* put_text(uint8_t* p, const char* text, int32_t size, bint compact) noexcept nogil:
    if compact:
        p = store_uvarlong(p, <unsigned int>(0 if text == NULL else size + 1))
    else:
        store_i16(p, <int16_t>(-1 if text == NULL else size))
        p += 2
    if text != NULL:
        memcpy(p, text, <size_t>size)
        p += size
    return p


cdef uint8_t* put_count(uint8_t* p, int32_t count, bint compact) noexcept nogil:
    if compact:
        return store_uvarlong(p, <unsigned int>(count + 1))
    store_i32(p, count)
    return p + 4


cdef int32_t run_of(const Request* request, int32_t first) noexcept nogil:
    cdef int32_t n = first
    while n < request.count and request.batches[n].part.topic == request.batches[first].part.topic:
        n += 1
    return n - first


cdef uint8_t* put_batch(uint8_t* p, const Batch* batch, bint flexible) noexcept nogil:
    store_i32(p, batch.part.index)
    p += 4
    if flexible:
        p = store_uvarlong(p, <unsigned long>(batch.size + 1))
    else:
        store_i32(p, <int32_t>batch.size)
        p += 4
    memcpy(p, batch.data, <size_t>batch.size)
    p += batch.size
    if flexible:
        p[0] = 0
        p += 1
    return p


cdef void put_request(Stream* stream, int16_t version, const RequestHead* head, const Request* request) noexcept nogil:
    cdef:
        bint flexible = version >= PRODUCE_FLEXIBLE
        uint8_t* p = begin_request(stream, API_PRODUCE, version, head.client_id, head.client_id_size, flexible)
        const Topic* topic
        int32_t topics = 0
        int32_t at = 0
        int32_t i, run
    p = put_text(p, head.transactional_id, head.transactional_id_size, flexible)
    store_i16(p, head.acks)
    store_i32(p + 2, head.timeout_ms)
    p += 6
    while at < request.count:
        at += run_of(request, at)
        topics += 1
    p = put_count(p, topics, flexible)
    at = 0
    while at < request.count:
        run = run_of(request, at)
        topic = request.batches[at].part.topic
        p = put_text(p, topic.text, topic.text_size, flexible)
        p = put_count(p, run, flexible)
        for i in range(at, at + run):
            p = put_batch(p, request.batches[i], flexible)
        at += run
        if flexible:
            p[0] = 0
            p += 1
    if flexible:
        p[0] = 0
        p += 1
    end_request(stream, p)


# ---- the response --------------------------------------------------------------------------------

# The batch that a row is about: the next one after `at`, unless the broker has another order.
cdef Batch* batch_of(const Request* request, const uint8_t* name, int32_t size, int32_t index, int32_t* at) noexcept nogil:
    cdef int32_t i
    cdef Batch* batch
    for i in range(request.count):
        batch = request.batches[(at[0] + i) % request.count]
        if batch.part.index == index and batch.part.topic.text_size == size:
            if memcmp(batch.part.topic.text, name, <size_t>size) == 0:
                at[0] = (at[0] + i + 1) % request.count
                return batch
    return NULL


cdef Answer read_row(
    Reader* r, int16_t version, const Request* request, const uint8_t* name, int32_t size, int32_t* at
) noexcept nogil:
    cdef:
        int32_t index = 0
        int32_t errors = 0
        int32_t n
        int16_t code = 0
        int64_t offset = 0
        int64_t append_time = 0
        int64_t log_start
        const uint8_t* text
        Batch* batch
        bint flexible = version >= PRODUCE_FLEXIBLE
    if read_i32(r, &index) or read_i16(r, &code) or read_i64(r, &offset) or read_i64(r, &append_time):
        return ANSWER_BAD
    if version >= FIRST_LOG_START and read_i64(r, &log_start):
        return ANSWER_BAD
    if version >= FIRST_RECORD_ERRORS:
        if (read_compact_array_count(r, 1, &errors) if flexible else read_array_count(r, 1, &errors)):
            return ANSWER_BAD
        if errors > 0:
            return ANSWER_TO_DECODE
        if (read_compact_string(r, &text, &n) if flexible else read_string(r, &text, &n)):
            return ANSWER_BAD
    if flexible and skip_tagged_fields(r):
        return ANSWER_BAD
    batch = batch_of(request, name, size, index, at)
    if code != 0 or batch == NULL:
        return ANSWER_TO_DECODE
    batch.base_offset = offset
    batch.append_time = append_time
    return ANSWER_GOOD


cdef Answer read_response(
    const uint8_t* frame, int64_t size, int16_t version, Request* request, int32_t* throttle_ms
) noexcept nogil:
    cdef:
        Reader r = make_reader(frame + 4, <Py_ssize_t>(size - 4))
        bint flexible = version >= PRODUCE_FLEXIBLE
        int32_t topics = 0
        int32_t rows = 0
        int32_t found = 0
        int32_t at = 0
        int32_t n = 0
        const uint8_t* name
        Answer answer
    if flexible and skip_tagged_fields(&r):
        return ANSWER_BAD
    if (read_compact_array_count(&r, 1, &topics) if flexible else read_array_count(&r, 1, &topics)):
        return ANSWER_BAD
    # BOUND: each turn reads at least a byte, or returns.
    while topics > 0:
        topics -= 1
        if (read_compact_string(&r, &name, &n) if flexible else read_string(&r, &name, &n)):
            return ANSWER_BAD
        if (read_compact_array_count(&r, 1, &rows) if flexible else read_array_count(&r, 1, &rows)):
            return ANSWER_BAD
        while rows > 0:
            rows -= 1
            answer = read_row(&r, version, request, name, n, &at)
            if answer != ANSWER_GOOD:
                return answer
            found += 1
        if flexible and skip_tagged_fields(&r):
            return ANSWER_BAD
    if read_i32(&r, throttle_ms) or (flexible and skip_tagged_fields(&r)) or r.pos != r.end:
        return ANSWER_BAD
    # A row for each batch, or one is not accounted for.
    return ANSWER_GOOD if found == request.count else ANSWER_TO_DECODE
