"""The network side of a produce.

``start`` walks a Produce request (versions 0 to 13) in place in the arena and queues one descriptor per partition for
the io worker that owns it; ``take_result`` collects the results; ``encode`` writes the response. The bytes of records
are neither copied nor read here. They stay unchanged until all partitions have a result, or wait for a commit for longer than
most do, so they can be described again to the next incarnation of an io worker. Python cost of a request: one dict lookup per topic. Runs in a network process.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove

from kbroker._ext.base.error_codes cimport (
    CORRUPT_MESSAGE,
    INVALID_REQUIRED_ACKS,
    INVALID_TOPIC_EXCEPTION,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.wire cimport (
    READ_OK,
    ReadStatus,
    Writer,
    make_writer,
    read_array_count,
    read_bytes,
    read_compact_array_count,
    read_compact_bytes,
    read_compact_string,
    read_i16,
    read_i32,
    read_raw,
    read_string,
    skip_tagged_fields,
    store_i32,
    write_array_count,
    write_compact_array_count,
    write_compact_string,
    write_i16,
    write_i32,
    write_i64,
    write_no_tagged_fields,
    write_raw,
    write_string,
)
from kbroker._ext.fetch.topic_registry cimport Topic
from kbroker._ext.log.refused_batches cimport RefusedBatches, has_sequence
from kbroker._ext.record.record_batch cimport (
    BATCH_HEADER_BYTES,
)
from kbroker._ext.record.record_set cimport whole_entries
from kbroker._ext.shared.descriptors cimport MSG_PRODUCE, RESULT_APPENDED
from kbroker._ext.shared.lane cimport LANE_ITEMS_MAX, Lane
from kbroker._ext.sockets.requests cimport (
    ProducePart,
    ProduceTopic,
    add_part,
    add_topic,
    reserve_response,
    token_of,
)
from kbroker._ext.sockets.verdicts cimport MAY_WRITE_TRANSACTION, unrestricted

cdef enum:
    FIRST_FLEXIBLE = 9
    FIRST_WITH_LEADERS = 10
    FIRST_WITH_TOPIC_ID = 13
    FIRST_WITH_RECORD_ERRORS = 8
    FIRST_WITH_LOG_START = 5
    FIRST_WITH_TRANSACTIONAL_ID = 3
    FIRST_WITH_APPEND_TIME = 2
    FIRST_WITH_THROTTLE = 1

    TOPIC_ID_BYTES = 16
    TOPIC_NAME_MAX = 249

    # BOUND: partitions (and topics) per request; each takes 96 bytes here and 48 in a bundle.
    PARTS_MAX = 100000

    # The smallest message of format 0; anything smaller than that, or than a batch header, cannot be appended.
    MESSAGE_BYTES_MIN = 26

    # What a producer has under way when it learns that a batch was refused arrives sooner than this. There is no log
    # here to tell that another broker has taken the batch, so it is short.
    REFUSED_KEEP_MS = 2000

    ERROR_NONE = 0


# WIRE: one tagged field: tag 0, 9 bytes of a leader, its epoch and no tagged fields.
cdef uint8_t[3] CURRENT_LEADER = [1, 0, 9]


class ProduceDecodeError(ValueError):
    """The bytes are not a Produce request of their version; the connection must be closed."""


cdef inline void end_part(Request* request, ProducePart* part, int16_t error_code) noexcept nogil:
    part.worker = -1
    part.error_code = error_code
    request.parts_left -= 1
    if part.is_appended:
        part.is_appended = False
        request.appended_count -= 1


cdef class ProducePath:
    """Decodes Produce requests into bundles and encodes their responses."""

    def __cinit__(self, Arena arena, TopicRegistry topics, RequestTable requests, int worker_count):
        self.arena = arena
        self.topics = topics
        self.requests = requests
        self.worker_count = worker_count
        self.access = unrestricted()
        self.refused = RefusedBatches.__new__(RefusedBatches, REFUSED_KEEP_MS)
        self.bundles = <Bundle*>calloc(worker_count, sizeof(Bundle))
        if self.bundles == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int i
        if self.bundles != NULL:
            for i in range(self.worker_count):
                free(self.bundles[i].items)
            free(self.bundles)

    cdef int start(self, Request* request, Reader* body) except -1:
        """Queue the descriptors of a request whose header has been read. If parts_left is 0 then, respond at once."""
        cdef:
            const uint8_t* text = NULL
            int32_t size = 0
            bint flexible = request.api_version >= FIRST_FLEXIBLE
            ReadStatus status = READ_OK
        if request.api_version >= FIRST_WITH_TRANSACTIONAL_ID:
            status = read_compact_string(body, &text, &size) if flexible else read_string(body, &text, &size)
        if (
            status != READ_OK
            or read_i16(body, &request.acks) != READ_OK
            or read_i32(body, &request.timeout_ms) != READ_OK
        ):
            raise ProduceDecodeError("truncated before the topics")
        request.transactional_id = text
        request.transactional_id_size = size
        try:
            return self.read_topics(request, body)
        except:
            self.take_back(request)
            raise

    cdef void take_back(self, const Request* request) noexcept nogil:
        """Remove a request from the bundles of this turn: it is rejected as a whole."""
        cdef uint64_t token = token_of(request)
        cdef Bundle* bundle
        cdef int i
        for i in range(self.worker_count):
            bundle = &self.bundles[i]
            while bundle.count > 0 and bundle.items[bundle.count - 1].request == token:
                bundle.count -= 1
                self.queued -= 1

    cdef int16_t transaction_error(self, const Request* request) except? -1:
        """Return the error of the whole request if its client may not use the transactional id."""
        cdef bytes transactional_id
        if request.transactional_id_size <= 0:
            return ERROR_NONE
        transactional_id = PyBytes_FromStringAndSize(
            <const char*>request.transactional_id, request.transactional_id_size
        )
        if self.access.may(MAY_WRITE_TRANSACTION, transactional_id):
            return ERROR_NONE
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    cdef int16_t topic_error(self, Topic known, const ProduceTopic* topic) except? -1:
        """Return the error of a topic that the client may not write to, whether the topic exists or not."""
        cdef bytes name
        if known is not None:
            name = known.name
        elif topic.topic_id != NULL:
            return ERROR_NONE  # an unknown topic id
        else:
            name = PyBytes_FromStringAndSize(<const char*>topic.name, topic.name_size)
        return ERROR_NONE if self.access.may_write_topic(name) else TOPIC_AUTHORIZATION_FAILED

    cdef int read_topics(self, Request* request, Reader* r) except -1:
        cdef:
            bint flexible = request.api_version >= FIRST_FLEXIBLE
            int32_t topic_count = 0, part_count = 0, i, j
            ReadStatus status
            ProduceTopic* topic
            Topic ref
            int16_t error_code, rejected = ERROR_NONE
        if not self.access.everything:
            rejected = self.transaction_error(request)
        status = read_compact_array_count(r, 2, &topic_count) if flexible else read_array_count(r, 6, &topic_count)
        if status != READ_OK or topic_count < 0:
            raise ProduceDecodeError("bad count of topics")
        if topic_count > PARTS_MAX:
            raise ProduceDecodeError(f"more than {PARTS_MAX} topics in one request")
        for i in range(topic_count):
            topic = add_topic(request)
            if request.api_version >= FIRST_WITH_TOPIC_ID:
                if read_raw(r, TOPIC_ID_BYTES, &topic.topic_id) != READ_OK:
                    raise ProduceDecodeError("truncated topic id")
                ref = self.topics.find(topic.topic_id, TOPIC_ID_BYTES, True)
            else:
                status = (
                    read_compact_string(r, &topic.name, &topic.name_size)
                    if flexible
                    else read_string(r, &topic.name, &topic.name_size)
                )
                if status != READ_OK or topic.name_size < 0:
                    raise ProduceDecodeError("bad topic name")
                ref = self.topics.find(topic.name, topic.name_size, False)
            error_code = rejected
            if error_code == ERROR_NONE and not self.access.everything:
                error_code = self.topic_error(ref, topic)
            if error_code == ERROR_NONE and not -1 <= request.acks <= 1:
                error_code = INVALID_REQUIRED_ACKS
            if error_code == ERROR_NONE and ref is None:
                error_code = UNKNOWN_TOPIC_OR_PARTITION if topic.topic_id == NULL else UNKNOWN_TOPIC_ID
            if ref is not None and ref.internal and not self.may_write_internal and error_code == ERROR_NONE:
                error_code = INVALID_TOPIC_EXCEPTION
            status = read_compact_array_count(r, 6, &part_count) if flexible else read_array_count(r, 8, &part_count)
            if status != READ_OK or part_count < 0:
                raise ProduceDecodeError("bad count of partitions")
            if part_count > PARTS_MAX - request.part_count:
                raise ProduceDecodeError(f"more than {PARTS_MAX} partitions in one request")
            topic.part_count = part_count
            for j in range(part_count):
                self.read_partition(request, r, ref, error_code)
            if flexible and skip_tagged_fields(r) != READ_OK:
                raise ProduceDecodeError("bad tagged fields")
        if flexible and skip_tagged_fields(r) != READ_OK:
            raise ProduceDecodeError("bad tagged fields")
        return 0  # COMPAT: bytes after a request are ignored, as in Kafka

    cdef int read_partition(self, Request* request, Reader* r, object topic, int16_t error_code) except -1:
        cdef:
            bint flexible = request.api_version >= FIRST_FLEXIBLE
            ProducePart* part = add_part(request)
            Topic ref = topic
            const uint8_t* records = NULL
            int32_t size = 0
            Py_ssize_t taken
            ReadStatus status
        if read_i32(r, &part.partition) != READ_OK:
            raise ProduceDecodeError("truncated partition")
        status = read_compact_bytes(r, &records, &size) if flexible else read_bytes(r, &records, &size)
        if status != READ_OK:
            raise ProduceDecodeError("bad length of records")
        if flexible and skip_tagged_fields(r) != READ_OK:
            raise ProduceDecodeError("bad tagged fields")
        part.error_code = error_code
        if error_code == ERROR_NONE and not 0 <= part.partition < ref.partition_count:
            part.error_code = UNKNOWN_TOPIC_OR_PARTITION
        elif error_code == ERROR_NONE:
            part.slot = ref.slots[part.partition]
            if part.slot < 0:
                part.error_code = NOT_LEADER_OR_FOLLOWER
        if part.error_code != ERROR_NONE:
            return self.refuse(request, part, records, size)
        if size < (BATCH_HEADER_BYTES if request.api_version >= FIRST_WITH_TRANSACTIONAL_ID else MESSAGE_BYTES_MIN):
            part.error_code = <int16_t>whole_entries(request.api_version, records, size, &taken) or CORRUPT_MESSAGE
            return 0
        part.slot_incarnation = <uint32_t>ref.incarnations[part.partition]
        part.records = records
        part.size = <uint32_t>size
        if self.refused.count and self.is_behind(request, part):
            return 0
        part.worker = part.slot % self.worker_count
        request.parts_left += 1
        self.bytes_in += size
        return self.describe(request, request.part_count - 1)

    cdef int refuse(
        self, const Request* request, const ProducePart* part, const uint8_t* records, int32_t size
    ) except -1:
        # BOUND: what is too long for a topic is never one.
        if has_sequence(records, size) and request.topics[request.topic_count - 1].name_size <= TOPIC_NAME_MAX and (
            part.error_code == NOT_LEADER_OR_FOLLOWER
            or part.error_code == UNKNOWN_TOPIC_OR_PARTITION
            or part.error_code == UNKNOWN_TOPIC_ID
        ):
            self.refused.note(place_of(request, part), records, size, part.error_code)
        return 0

    cdef bint is_behind(self, const Request* request, ProducePart* part) except *:
        cdef object place = place_of(request, part)
        part.error_code = self.refused.error_of(place, part.records, part.size)
        if part.error_code != ERROR_NONE:
            return True
        self.refused.forget(place, part.records, part.size)
        return False

    cdef int describe(self, const Request* request, int32_t ordinal) except -1:
        """Queue the descriptor of a partition that waits for its io worker, for the first time or again."""
        cdef const ProducePart* part = &request.parts[ordinal]
        cdef ProduceDescriptor descriptor
        descriptor.request = token_of(request)
        descriptor.ordinal = <uint32_t>ordinal
        descriptor.slot = part.slot
        descriptor.slot_incarnation = part.slot_incarnation
        descriptor.timeout_ms = request.timeout_ms
        descriptor.arena_offset = <uint64_t>(part.records - self.arena.base)
        descriptor.size = part.size
        descriptor.acks = request.acks
        descriptor.api_version = request.api_version
        descriptor.quota_key = self.quota_key
        descriptor.quota_rate = self.quota_rate
        descriptor.transactional_id_back = 0
        descriptor.transactional_id_size = 0
        if request.transactional_id_size > 0:
            descriptor.transactional_id_back = <uint32_t>(part.records - request.transactional_id)
            descriptor.transactional_id_size = <uint32_t>request.transactional_id_size
        return self.add_descriptor(part.worker, &descriptor)

    cdef bint repeat(self, Request* request, int worker) except *:
        """A batch that is already in the log is recognised by its sequence number. A batch without one may or may not be
        in the log, which cannot be determined, so it gets an error. So does one whose bytes are freed: its client repeats it.
        """
        cdef ProducePart* part
        cdef bint is_whole = True
        cdef int32_t i
        self.quota_key = 0  # its time counts for nobody
        for i in range(request.part_count):
            part = &request.parts[i]
            if part.worker != worker:
                continue
            if part.records != NULL and self.has_numbers(part):
                if part.is_appended:
                    part.is_appended = False
                    request.appended_count -= 1
                self.describe(request, i)
                continue
            if part.records != NULL or not part.has_numbers:
                is_whole = False
            end_part(request, part, NOT_LEADER_OR_FOLLOWER)
        return is_whole

    cdef void fail(self, Request* request, int worker, int16_t error_code) noexcept nogil:
        cdef int32_t i
        for i in range(request.part_count):
            if request.parts[i].worker == worker:
                end_part(request, &request.parts[i], error_code)

    cdef void note_timeout(self, Request* request) noexcept nogil:
        cdef int32_t i
        for i in range(request.part_count):
            if request.parts[i].worker >= 0:
                request.parts[i].error_code = REQUEST_TIMED_OUT

    cdef bint has_numbers(self, const ProducePart* part) noexcept nogil:
        """Whether the log can recognise the batch as a duplicate: by producer id and sequence number."""
        return has_sequence(part.records, part.size)

    cdef int add_descriptor(self, int worker, const ProduceDescriptor* descriptor) except -1:
        cdef Bundle* bundle = &self.bundles[worker]
        bundle.capacity = grow(&bundle.items, bundle.capacity, bundle.count + 1, sizeof(ProduceDescriptor), 64)
        bundle.items[bundle.count] = descriptor[0]
        bundle.count += 1
        self.queued += 1
        return 0

    cdef int send_bundles(self, list lanes) except -1:
        """Send the descriptors of this turn; those that a full lane does not take stay for the next turn."""
        cdef int worker
        cdef uint32_t sent, part
        cdef Bundle* bundle
        for worker in range(self.worker_count):
            bundle = &self.bundles[worker]
            sent = 0
            while sent < bundle.count:
                part = min(bundle.count - sent, <uint32_t>LANE_ITEMS_MAX)
                if not (<Lane>lanes[worker]).send(
                    MSG_PRODUCE, part, bundle.items + sent, part * sizeof(ProduceDescriptor), NULL, 0
                ):
                    break
                sent += part
            self.queued -= sent
            bundle.count -= sent
            if sent and bundle.count:
                memmove(bundle.items, bundle.items + sent, bundle.count * sizeof(ProduceDescriptor))
        return 0

    cdef void drop_bundle(self, int worker) noexcept nogil:
        """Drop unsent batches to an io worker that has died."""
        self.queued -= self.bundles[worker].count
        self.bundles[worker].count = 0

    cdef Request* take_result(self, const ProduceResult* result, const uint8_t* text) except? NULL:
        cdef Request* request = self.requests.find(result.request)
        cdef ProducePart* part
        if request == NULL or result.ordinal >= <uint32_t>request.part_count:
            return NULL
        part = &request.parts[result.ordinal]
        if part.worker < 0:
            return NULL
        if result.error_code == RESULT_APPENDED:
            if not part.is_appended:
                part.is_appended = True
                request.appended_count += 1
            return request if request.appended_count == request.parts_left else NULL
        end_part(request, part, result.error_code)
        request.taken_ns = result.taken_ns  # the last one to complete counts
        request.waits_ns = result.waits_ns
        part.base_offset = result.base_offset
        part.log_append_time_ms = result.log_append_time_ms
        part.log_start_offset = result.log_start_offset
        part.bad_record_index = result.bad_record_index
        if result.error_text_size:
            part.error_text = <uint8_t*>malloc(result.error_text_size + sizeof(int32_t) * result.more_bad_records)
            if part.error_text == NULL:
                raise MemoryError()
            memcpy(part.error_text, text, result.error_text_size + sizeof(int32_t) * result.more_bad_records)
            part.error_text_size = result.error_text_size
            part.more_bad_records = result.more_bad_records
        return request if request.appended_count == request.parts_left else NULL

    cdef int leave_block(self, Request* request) except -1:
        cdef ProduceTopic* topic
        cdef ProducePart* part
        cdef size_t size = 0
        cdef int32_t i
        for i in range(request.topic_count):
            size += <size_t>topic_bytes(&request.topics[i])
        request.names = <uint8_t*>malloc(max(size, <size_t>1))
        if request.names == NULL:
            raise MemoryError()
        size = 0
        for i in range(request.topic_count):
            topic = &request.topics[i]
            if topic.topic_id != NULL:
                memcpy(request.names + size, topic.topic_id, TOPIC_ID_BYTES)
                topic.topic_id = request.names + size
            else:
                memcpy(request.names + size, topic.name, topic.name_size)
                topic.name = request.names + size
            size += <size_t>topic_bytes(topic)
        for i in range(request.part_count):
            part = &request.parts[i]
            if part.worker >= 0:
                part.has_numbers = self.has_numbers(part)
            part.records = NULL
        request.transactional_id = NULL
        request.transactional_id_size = 0
        return 0

    cdef bytes add_leaders(self, Request* request, int listener):
        """Tell where partitions are that this broker does not lead (KIP-951). Returns the response's tagged fields."""
        cdef object leaders = self.find_leaders(listener)
        cdef ProduceTopic* topic
        cdef ProducePart* part = request.parts
        cdef Topic known
        cdef int32_t i
        for i in range(request.topic_count):
            topic = &request.topics[i]
            if topic.topic_id != NULL:
                known = self.topics.find(topic.topic_id, TOPIC_ID_BYTES, True)
            else:
                known = self.topics.find(topic.name, topic.name_size, False)
            for _ in range(topic.part_count):
                if part.error_code == NOT_LEADER_OR_FOLLOWER and known is not None:
                    found = leaders.leader(known.name, part.partition)
                    if found is not None:
                        part.leader_id, part.leader_epoch = found
                part += 1
        return leaders.tagged_fields()

    cdef int encode(self, Request* request, int32_t throttle_ms, int listener) except -1:
        """Write the complete response, including length prefix and header, to the request's response buffer."""
        cdef:
            bint flexible = request.api_version >= FIRST_FLEXIBLE
            Py_ssize_t size = 64
            int32_t i, j, position = 0
            ProduceTopic* topic
            Writer w
            bint has_lost_leaders = False
            bytes tagged = None
        for i in range(request.topic_count):
            size += 32 + max(0, request.topics[i].name_size)
        for i in range(request.part_count):
            has_lost_leaders |= request.parts[i].error_code == NOT_LEADER_OR_FOLLOWER
            size += 64 + (12 + request.parts[i].error_text_size) * <Py_ssize_t>(2 + request.parts[i].more_bad_records)
        if has_lost_leaders and request.api_version >= FIRST_WITH_LEADERS and self.find_leaders is not None:
            tagged = self.add_leaders(request, listener)
            size += len(tagged)
        reserve_response(request, size)
        w = make_writer(request.response, request.response_capacity)
        write_i32(&w, 0)
        write_i32(&w, request.correlation_id)
        if flexible:
            write_no_tagged_fields(&w)
            write_compact_array_count(&w, request.topic_count)
        else:
            write_array_count(&w, request.topic_count)
        for i in range(request.topic_count):
            topic = &request.topics[i]
            if request.api_version >= FIRST_WITH_TOPIC_ID:
                write_raw(&w, topic.topic_id, TOPIC_ID_BYTES)
            elif flexible:
                write_compact_string(&w, topic.name, topic.name_size)
            else:
                write_string(&w, topic.name, topic.name_size)
            if flexible:
                write_compact_array_count(&w, topic.part_count)
            else:
                write_array_count(&w, topic.part_count)
            for j in range(topic.part_count):
                encode_part(&w, &request.parts[position], request.api_version)
                position += 1
            if flexible:
                write_no_tagged_fields(&w)
        if request.api_version >= FIRST_WITH_THROTTLE:
            write_i32(&w, throttle_ms)
        if tagged is not None:
            write_raw(&w, <const uint8_t*><const char*>tagged, len(tagged))
        elif flexible:
            write_no_tagged_fields(&w)
        request.response_size = w.pos - request.response
        assert w.pos <= w.end
        store_i32(request.response, <int32_t>(request.response_size - 4))
        return 0


cdef tuple place_of(const Request* request, const ProducePart* part):
    """The partition as its client names it."""
    cdef const ProduceTopic* topic = &request.topics[request.topic_count - 1]
    if topic.topic_id != NULL:
        return PyBytes_FromStringAndSize(<const char*>topic.topic_id, TOPIC_ID_BYTES), part.partition
    return PyBytes_FromStringAndSize(<const char*>topic.name, topic.name_size), part.partition


cdef inline int32_t topic_bytes(const ProduceTopic* topic) noexcept nogil:
    return TOPIC_ID_BYTES if topic.topic_id != NULL else topic.name_size


cdef void encode_part(Writer* w, const ProducePart* part, int16_t version) noexcept nogil:
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef int32_t record_errors = 1 + <int32_t>part.more_bad_records if part.bad_record_index >= 0 else 0
    cdef const uint8_t* text = part.error_text
    cdef int32_t text_size = part.error_text_size if text != NULL else -1
    cdef int32_t i
    write_i32(w, part.partition)
    write_i16(w, part.error_code)
    write_i64(w, part.base_offset)
    if version >= FIRST_WITH_APPEND_TIME:
        write_i64(w, part.log_append_time_ms)
    if version >= FIRST_WITH_LOG_START:
        write_i64(w, part.log_start_offset)
    if version < FIRST_WITH_RECORD_ERRORS:
        return
    if not flexible:
        write_array_count(w, record_errors)
        for i in range(record_errors):
            write_i32(w, bad_record(part, i))
            write_string(w, text, text_size)
        write_string(w, text, text_size)
        return
    write_compact_array_count(w, record_errors)
    for i in range(record_errors):
        write_i32(w, bad_record(part, i))
        write_compact_string(w, text, text_size)
        write_no_tagged_fields(w)
    write_compact_string(w, text, text_size)
    if part.leader_id < 0:
        write_no_tagged_fields(w)
    else:
        write_raw(w, CURRENT_LEADER, sizeof(CURRENT_LEADER))
        write_i32(w, part.leader_id)
        write_i32(w, part.leader_epoch)
        write_no_tagged_fields(w)


cdef inline int32_t bad_record(const ProducePart* part, int32_t number) noexcept nogil:
    cdef int32_t index = part.bad_record_index
    if number > 0:
        memcpy(&index, part.error_text + part.error_text_size + sizeof(int32_t) * (number - 1), sizeof(int32_t))
    return index
