"""The fast path of OffsetCommit through an io worker.

A commit of few partitions, which is what group members send every few seconds, goes from the lane message to the log and
the store in one function. Its response waits in the log's ``committed_queue`` as the bytes that go back over the lane.
This does the same as ``workers.coordinators``, ``coordinator.shard`` and ``coordinator.offsets.commits``
(docs/decisions/0005-coordinators.md): write records, replay them, respond once they are committed. Everything else takes
that slow path: other requests, versions with an explicit retention time, text that is not ASCII, anything that gets an
error, and shards that are not active. The path is chosen before anything is written. The slow path is the tests' oracle.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from kbroker._ext.base.api_keys cimport API_OFFSET_COMMIT
from kbroker._ext.base.growing cimport reserve
from kbroker._ext.base.socket_api cimport monotonic_ns
from kbroker._ext.base.text cimport is_ascii
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    make_reader,
    read_i32,
    read_i64,
    read_raw,
    skip_tagged_fields,
    store_i32,
    store_uvarlong,
    uvarlong_size,
    zigzag32,
)
from kbroker._ext.coordinator.offset_requests cimport (
    FIRST_VERSION,
    FLEXIBLE_FIRST,
    INSTANCE_FIRST,
    KEY_OVERHEAD,
    LAST_VERSION,
    PARTITION_BYTES_MIN,
    RETENTION_LAST,
    THROTTLE_FIRST,
    TOPIC_ID_BYTES,
    TOPIC_ID_FIRST,
    VALUE_OVERHEAD,
    read_count,
    read_partition,
    read_text,
    size_of,
    store_count,
    store_end,
    store_key,
    store_name,
    store_outcome,
    store_value,
)
from kbroker._ext.coordinator.offset_store cimport Commit
from kbroker._ext.log.committed_queue cimport CommittedQueue, Waiter
from kbroker._ext.log.log_append cimport AppendResult
from kbroker._ext.log.log_transactions cimport NO_QUESTION
from kbroker._ext.record.plain_batch cimport begin_batch, end_batch
from kbroker._ext.record.record_batch cimport BATCH_HEADER_BYTES
from kbroker._ext.shared.log_figures cimport Written
from kbroker._ext.shared.descriptors cimport ResponseHead, LANE_MESSAGE_BYTES, MSG_RESPONSE, RequestHead

from kbroker.errors import ErrorCode, StorageError, WireError

cdef enum:
    RECORD_OVERHEAD = 32         # at most, besides key and value
    TOPIC_RESPONSE_MAX = 32        # at most, besides its name and partitions; with its id
    PARTITION_RESPONSE_MAX = 7
    RESPONSE_MAX = 16              # throttle time, count of topics, tagged fields


cdef Py_ssize_t part_size(const uint8_t* message, Py_ssize_t size) noexcept:
    cdef uint32_t wanted
    if size < <Py_ssize_t>sizeof(uint32_t):
        return size
    memcpy(&wanted, message, sizeof(uint32_t))
    if <Py_ssize_t>wanted > size - <Py_ssize_t>sizeof(uint32_t):
        return size
    return <Py_ssize_t>sizeof(uint32_t) + wanted


# ---- the request -------------------------------------------------------------------------------------------------

cdef inline bint read_ascii(Reader* r, Text* text, bint flexible) noexcept:
    # A string that is not null.
    return read_text(r, text, flexible) and text.data != NULL and is_ascii(text.data, text.size)


cdef bint read_topics(Reader* r, Request* request) noexcept:
    cdef:
        bint flexible = request.version >= FLEXIBLE_FIRST
        int32_t count = 0, partition_count = 0
        Topic* topic
        Partition* partition
    request.topic_count = request.partition_count = 0
    if not read_count(r, &count, 1, flexible) or count == 0 or count > TOPICS_MAX:
        return False
    while request.topic_count < count:
        topic = &request.topics[request.topic_count]
        topic.id = NULL
        if request.version >= TOPIC_ID_FIRST:
            if read_raw(r, TOPIC_ID_BYTES, &topic.id) != READ_OK:
                return False
        elif not read_ascii(r, &topic.name, flexible):
            return False
        if not read_count(r, &partition_count, PARTITION_BYTES_MIN, flexible):
            return False
        # BOUND: a topic without partitions would take space in the response, but none in the batch.
        if partition_count == 0 or partition_count > PARTITIONS_MAX - request.partition_count:
            return False
        topic.first = request.partition_count
        topic.count = partition_count
        while request.partition_count < topic.first + partition_count:
            partition = &request.partitions[request.partition_count]
            if not read_partition(r, partition, request.version) or not is_ascii(partition.metadata.data, partition.metadata.size):
                return False
            request.partition_count += 1
        if flexible and skip_tagged_fields(r) != READ_OK:
            return False
        request.topic_count += 1
    return not flexible or skip_tagged_fields(r) == READ_OK


cdef bint read_request(const uint8_t* body, Py_ssize_t size, int version, Request* request) noexcept:
    """False: the slow path must handle the request."""
    cdef Reader r = make_reader(body, size)
    cdef bint flexible = version >= FLEXIBLE_FIRST
    cdef int64_t retention = -1
    request.version = version
    if not read_ascii(&r, &request.group, flexible):
        return False
    if read_i32(&r, &request.epoch) != READ_OK or not read_ascii(&r, &request.member, flexible):
        return False
    request.instance.data = NULL
    request.instance.size = 0
    if version >= INSTANCE_FIRST:
        if not read_text(&r, &request.instance, flexible) or not is_ascii(request.instance.data, request.instance.size):
            return False
    if version <= RETENTION_LAST and (read_i64(&r, &retention) != READ_OK or retention != -1):
        return False
    return read_topics(&r, request)


cdef Py_ssize_t batch_bound(const Request* request) noexcept:
    cdef Py_ssize_t size = BATCH_HEADER_BYTES
    cdef Py_ssize_t key
    cdef int i, j
    for i in range(request.topic_count):
        key = KEY_OVERHEAD + request.group.size + request.topics[i].name.size
        size += request.topics[i].count * (RECORD_OVERHEAD + key + VALUE_OVERHEAD)
    for j in range(request.partition_count):
        size += size_of(&request.partitions[j].metadata)
    return size


cdef inline str str_of(Text text):
    return PyUnicode_DecodeASCII(<const char*>text.data, text.size, NULL)


# ---- the batch ---------------------------------------------------------------------------------------------------

cdef inline uint8_t* store_size(uint8_t* p, Py_ssize_t size) noexcept:
    return store_uvarlong(p, zigzag32(<int32_t>size))


cdef inline Py_ssize_t size_size(Py_ssize_t size) noexcept:
    return uvarlong_size(zigzag32(<int32_t>size))


cdef Py_ssize_t write_batch(uint8_t* start, const Request* request, int64_t now_ms) noexcept:
    """Write the batch, at most ``batch_bound`` bytes; its size."""
    cdef:
        uint8_t* p = start + BATCH_HEADER_BYTES
        Py_ssize_t key, value
        const Topic* topic
        const Partition* partition
        int i, j
    for i in range(request.topic_count):
        topic = &request.topics[i]
        key = KEY_OVERHEAD + request.group.size + topic.name.size
        for j in range(topic.first, topic.first + topic.count):
            partition = &request.partitions[j]
            value = VALUE_OVERHEAD + size_of(&partition.metadata)
            # Attributes, timestamp delta, offset delta, key, value, count of headers.
            p = store_size(p, 3 + size_size(j) + size_size(key) + key + size_size(value) + value)
            p[0] = 0
            p[1] = 0
            p = store_size(p + 2, j)
            p = store_key(store_size(p, key), request.group, topic.name, partition.index)
            p = store_value(store_size(p, value), partition, now_ms)
            p[0] = 0
            p += 1
    begin_batch(start, p - start, request.partition_count, now_ms, -1, -1)
    end_batch(start, p - start)
    return p - start


# ---- a shard -----------------------------------------------------------------------------------------------------

cdef class ShardCommits:
    """The commits of one shard; created by ``CommitPath.open``."""

    cdef bint serves(self, uint32_t incarnation) except *:
        shard = self.shard
        if shard.state is not self.path.active or self.appender.committed.is_under_min_isr:
            return False
        topic = (<dict>self.path.worker.image.topics).get(self.topic)
        if topic is None or self.partition >= len(topic.partitions):
            return False
        if topic.partitions[self.partition].slot_incarnation != incarnation:
            return False
        machine = shard.machine
        if machine is not self.machine:
            self.offsets = machine.offsets
            self.store = machine.offsets.store
            self.groups = machine.groups
            self.machine = machine
        return True

    cdef bint finds_topics(self, Request* request) except *:
        """Whether all topics of the request exist. Names are valid until the image changes, which no commit does."""
        cdef:
            image = self.path.worker.image
            Topic* topic
            Py_ssize_t name_size = 0
            int i
        for i in range(request.topic_count):
            topic = &request.topics[i]
            if topic.id != NULL:
                known = (<dict>image.topics_by_id).get((<const char*>topic.id)[:TOPIC_ID_BYTES])
            else:
                known = (<dict>image.topics).get(str_of(topic.name))
            if known is None:
                return False
            topic.known_count = len(known.partitions)
            if topic.id != NULL:
                topic.name.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(known.name, &name_size)
                topic.name.size = <int32_t>name_size
        return True

    cdef bint admits(self, const Request* request) except *:
        """Whether every partition of the request may be committed. Errors are left to the slow path."""
        cdef Py_ssize_t metadata_max = -1
        cdef int i, j
        cdef const Partition* partition
        for i in range(request.topic_count):
            for j in range(request.topics[i].first, request.topics[i].first + request.topics[i].count):
                partition = &request.partitions[j]
                if partition.index < 0 or partition.index >= request.topics[i].known_count:
                    return False
                if partition.metadata.size > 0:
                    if metadata_max < 0:
                        metadata_max = self.path.worker.config["offset.metadata.max.bytes"]
                    if partition.metadata.size > metadata_max:
                        return False
        group = self.groups.get(str_of(request.group)) if self.groups else None
        if group is None:
            return request.epoch < 0
        try:
            group.check_commit(
                str_of(request.member),
                None if request.instance.data == NULL else str_of(request.instance),
                request.epoch,
                version=request.version,
            )
        except Exception:
            return False  # the slow path checks again and returns the error
        return True

    cdef int commit(
        self, int network, uint32_t peer, uint64_t token, const Request* request, int64_t now_ms
    ) except -1:
        """Write, replay and queue the response. 0 if the batch could not be written; nothing is changed then."""
        cdef:
            AppendResult result
            WaitingResponse* waiting
            uint8_t* payload
            Py_ssize_t size
            int64_t started_ns = monotonic_ns()
        self.write_response(token, request)
        size = write_batch(self.path.batch, request, now_ms)
        try:
            self.appender.append(self.path.batch, size, now_ms, &result, NO_QUESTION)
        except StorageError:
            self.path.worker.on_storage_failure(self.appender.slot)
            return 0
        if result.error_code:
            return 0
        self.count(request.partition_count, size)
        size = self.path.response.size
        payload = self.appender.committed.add(
            result.end_offset, self, started_ns // 1_000_000, <Py_ssize_t>sizeof(WaitingResponse) + size)
        waiting = <WaitingResponse*>payload
        waiting.started_ns = started_ns
        waiting.peer = peer
        waiting.network = network
        memcpy(payload + sizeof(WaitingResponse), self.path.response.data, <size_t>size)
        self.path.offsets_committed += request.partition_count
        try:
            self.take_records(request, result.base_offset, now_ms)
        except Exception as error:
            self.shard.replay_failed(error)
        return 1

    cdef void count(self, int records, Py_ssize_t size) noexcept:
        cdef Written* row
        cdef int32_t slot = self.appender.slot
        self.path.batches += 1
        self.path.bytes_total += size
        if self.path.figures is not None:
            row = self.path.figures.written_of(slot, self.appender.table.slots[slot].data.slot_incarnation)
            row.produces += 1
            row.messages_in += records
            row.bytes_in += size

    cdef int take_records(self, const Request* request, int64_t base_offset, int64_t now_ms) except -1:
        cdef:
            Commit commit
            Py_ssize_t known = self.store.committed_count
            int i, j
        memset(&commit, 0, sizeof(Commit))
        commit.group = request.group
        commit.commit_timestamp = now_ms
        commit.expire_timestamp = -1
        for i in range(request.topic_count):
            commit.topic = request.topics[i].name
            for j in range(request.topics[i].first, request.topics[i].first + request.topics[i].count):
                commit.partition = request.partitions[j].index
                commit.offset = request.partitions[j].offset
                commit.leader_epoch = request.partitions[j].leader_epoch
                commit.metadata.data = request.partitions[j].metadata.data
                commit.metadata.size = size_of(&request.partitions[j].metadata)
                self.store.put(&commit, base_offset + j, -1)
        self.store.log_end = base_offset + request.partition_count
        if self.store.committed_count != known:
            self.offsets.count()
        return 0

    cdef int write_response(self, uint64_t token, const Request* request) except -1:
        """Build the response as the part of a lane message."""
        cdef:
            bint flexible = request.version >= FLEXIBLE_FIRST
            Py_ssize_t bound = sizeof(uint32_t) + sizeof(ResponseHead) + RESPONSE_MAX
            ResponseHead head
            uint32_t size
            uint8_t* start
            uint8_t* p
            int i, j
        for i in range(request.topic_count):
            bound += TOPIC_RESPONSE_MAX + request.topics[i].name.size
        self.path.response.size = 0
        reserve(&self.path.response, bound + request.partition_count * PARTITION_RESPONSE_MAX)
        start = self.path.response.data
        p = start + sizeof(uint32_t) + sizeof(ResponseHead)
        if request.version >= THROTTLE_FIRST:
            store_i32(p, 0)  # of the network process (express_path.take_response)
            p += 4
        p = store_count(p, request.topic_count, flexible)
        for i in range(request.topic_count):
            if request.topics[i].id != NULL:
                memcpy(p, request.topics[i].id, TOPIC_ID_BYTES)
                p += TOPIC_ID_BYTES
            else:
                p = store_name(p, request.topics[i].name, flexible)
            p = store_count(p, request.topics[i].count, flexible)
            for j in range(request.topics[i].first, request.topics[i].first + request.topics[i].count):
                p = store_outcome(p, request.partitions[j].index, 0, flexible)
            p = store_end(p, flexible)
        p = store_end(p, flexible)
        size = <uint32_t>(p - start - sizeof(uint32_t))
        memcpy(start, &size, sizeof(uint32_t))
        memset(&head, 0, sizeof(ResponseHead))
        head.token = token
        head.total = <uint32_t>(size - sizeof(ResponseHead))
        memcpy(start + sizeof(uint32_t), &head, sizeof(ResponseHead))
        self.path.response.size = p - start
        return 0

    cdef int64_t limit_ms(self) except? -2:
        return self.shard.wait_max_ms

    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1:
        cdef const WaitingResponse* head = <const WaitingResponse*>payload
        cdef const uint8_t* response = payload + sizeof(WaitingResponse)
        self.path.commits += 1
        if error is None and queue.is_maximal_under_min_isr:
            error = WireError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if error is not None:
            return self.put_error(head, response, self.shard.failure(error))
        self.path.commit_ns += monotonic_ns() - head.started_ns
        return self.put_response(head, response, waiter.size - <Py_ssize_t>sizeof(WaitingResponse))

    cdef bint expire(self, const Waiter* waiter, const uint8_t* payload, list ready) except *:
        self.path.commits += 1
        self.put_error(
            <const WaitingResponse*>payload, payload + sizeof(WaitingResponse), self.shard.expiry_error())
        return True

    cdef int put_response(self, const WaitingResponse* head, const uint8_t* response, Py_ssize_t size) except -1:
        cdef Bytes* outbox = &self.path.outboxes[head.network]
        if (<Lane>self.path.lanes[head.network]).peer_incarnation != head.peer:
            return 0  # the network process that sent the request has died
        reserve(outbox, size)
        memcpy(outbox.data + outbox.size, response, <size_t>size)
        outbox.size += size
        return 0

    cdef int put_error(self, const WaitingResponse* head, const uint8_t* response, object error) except -1:
        """Queue the response with an error in place of its body."""
        cdef:
            ResponseHead made
            bytes text = self.path.error_text(error.message)
            uint32_t size = <uint32_t>(sizeof(ResponseHead) + len(text))
            Bytes* part = &self.path.response
        memcpy(&made, response + sizeof(uint32_t), sizeof(ResponseHead))
        made.total = <uint32_t>len(text)
        made.error = int(error.code)
        part.size = 0
        reserve(part, <Py_ssize_t>sizeof(uint32_t) + size)
        memcpy(part.data, &size, sizeof(uint32_t))
        memcpy(part.data + sizeof(uint32_t), &made, sizeof(ResponseHead))
        memcpy(part.data + sizeof(uint32_t) + sizeof(ResponseHead), <const char*>text, <size_t>len(text))
        self.path.has_errors = True
        return self.put_response(head, part.data, <Py_ssize_t>sizeof(uint32_t) + size)


# ---- the io worker -----------------------------------------------------------------------------------------------

cdef class CommitPath:
    """The parts of an io worker that the fast path needs, and the responses to send.

    worker: has ``image``, ``config`` and ``on_storage_failure``. lanes: to the network processes, by index. active: the
    state of a shard that serves. error_text: the bytes of an error's message in a response.
    """

    def __cinit__(self, worker, list lanes not None, active, error_text):
        self.worker = worker
        self.active = active
        self.error_text = error_text
        self.lanes = lanes
        self.network_count = <int>len(lanes)
        self.shards = {}
        self.outboxes = <Bytes*>calloc(max(1, len(lanes)), sizeof(Bytes))
        self.batch = <uint8_t*>malloc(BATCH_BYTES_MAX)
        if self.outboxes == NULL or self.batch == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.outboxes != NULL:
            for i in range(self.network_count):
                free(self.outboxes[i].data)
        free(self.outboxes)
        free(self.batch)
        free(self.response.data)

    def open(self, shard, LogAppender appender not None) -> ShardCommits:
        """Serve the commits of a group coordinator's shard, which must not compress its batches."""
        cdef ShardCommits commits = ShardCommits.__new__(ShardCommits)
        commits.shard = shard
        commits.appender = appender
        commits.path = self
        commits.topic = shard.topic
        commits.partition = shard.partition
        self.shards[shard.slot] = commits
        return commits

    def close(self, int slot) -> None:
        """Forget a closed shard; its waiting commits have been completed with an error."""
        self.shards.pop(slot, None)

    cdef LogAppender take(self, Lane lane, const uint8_t* part, Py_ssize_t size, int64_t now_ms):
        cdef:
            RequestHead head
            Request request
            ShardCommits commits
            Py_ssize_t start = sizeof(uint32_t) + sizeof(RequestHead)
        if size < start:
            return None
        memcpy(&head, part + sizeof(uint32_t), sizeof(RequestHead))
        if head.api_key != API_OFFSET_COMMIT or head.version < FIRST_VERSION or head.version > LAST_VERSION:
            return None
        start += head.client_id_size + head.host_size + head.principal_size
        if head.offset != 0 or <Py_ssize_t>head.total != size - start:
            return None
        commits = self.shards.get(head.slot)
        if commits is None or not read_request(part + start, size - start, head.version, &request):
            return None
        if not commits.serves(head.slot_incarnation) or not commits.finds_topics(&request):
            return None
        if batch_bound(&request) > BATCH_BYTES_MAX or not commits.admits(&request):
            return None
        if not commits.commit(lane.peer_index, lane.peer_incarnation, head.token, &request, now_ms):
            return None
        return commits.appender

    cdef bint send(self, Lane lane) except -1:
        cdef:
            Bytes* outbox = &self.outboxes[lane.peer_index]
            Py_ssize_t done = 0, size, more
        while done < outbox.size:
            size = outbox.size - done
            if size > LANE_MESSAGE_BYTES:
                size = part_size(outbox.data + done, size)
                while done + size < outbox.size:
                    more = part_size(outbox.data + done + size, outbox.size - done - size)
                    if size + more > LANE_MESSAGE_BYTES:
                        break
                    size += more
            if not lane.send(MSG_RESPONSE, 1, outbox.data + done, <size_t>size, NULL, 0):
                break
            done += size
        outbox.size -= done
        if outbox.size:
            memmove(outbox.data, outbox.data + done, <size_t>outbox.size)
            return False
        return True

    cdef void forget(self, int network) noexcept:
        self.outboxes[network].size = 0

    # ---- called from Python, by tests only -----------------------------------------------------------------------

    def take_message(self, int network, bytes message not None, int64_t now_ms) -> list:
        """Handle the parts that can take the fast path; return the others, each as a message."""
        cdef:
            const uint8_t* p = <const uint8_t*><const char*>message
            Py_ssize_t done = 0, size
            Lane lane = <Lane>self.lanes[network]
            list rest = []
        while done < len(message):
            size = part_size(p + done, len(message) - done)
            if self.take(lane, p + done, size, now_ms) is None:
                rest.append(message[done : done + size])
            done += size
        return rest

    def end_turn(self) -> bool:
        """Send the responses that are ready; True when a lane is full."""
        cdef bint held_back = False
        cdef Lane lane
        self.has_errors = False
        for lane in self.lanes:
            if not self.send(lane):
                held_back = True
        return held_back
