"""The express path: frequent requests about one group or transactional id, forwarded to their coordinator undecoded.

Commits and heartbeats are the bulk of a coordinator's requests. Only the key, the first field of the body, is read here.
The io worker gets the body as received (ipc/lane_calls.py has the layout), and its response follows the response header.
Unusual requests (no such topic, a key that is not ASCII, an error) go through their handler in Python. Per request: no
Python object but the frame, which is kept in case of an error.
"""
from libc.stdint cimport uint16_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cpython.unicode cimport PyUnicode_AsUTF8AndSize

from kbroker._ext.base.api_keys cimport (
    ADD_OFFSETS_TO_TXN_FLEXIBLE,
    ADD_OFFSETS_TO_TXN_LAST,
    API_ADD_OFFSETS_TO_TXN,
    API_CONSUMER_GROUP_HEARTBEAT,
    API_END_TXN,
    API_HEARTBEAT,
    API_OFFSET_COMMIT,
    API_WIDTH,
    CONSUMER_GROUP_HEARTBEAT_FLEXIBLE,
    CONSUMER_GROUP_HEARTBEAT_LAST,
    END_TXN_FLEXIBLE,
    END_TXN_LAST,
    HEARTBEAT_FLEXIBLE,
    HEARTBEAT_LAST,
    OFFSET_COMMIT_FLEXIBLE,
    OFFSET_COMMIT_LAST,
)
from kbroker._ext.base.text cimport is_ascii
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    ReadStatus,
    load_i16,
    make_reader,
    read_array_count,
    read_compact_array_count,
    read_compact_string,
    read_i16,
    read_i32,
    read_raw,
    read_string,
    skip_tagged_fields,
    store_i32,
)
from kbroker._ext.coordinator.offset_requests cimport TOPIC_ID_BYTES, TOPIC_ID_FIRST
from kbroker._ext.fetch.topic_registry cimport Topic
from kbroker._ext.shared.descriptors cimport (
    EXPRESS_BIT,
    LANE_MESSAGE_BYTES,
    MSG_REQUEST,
    RequestHead,
)
from kbroker._ext.shared.lane cimport Lane
from kbroker._ext.sockets.requests cimport reserve_response

cdef enum:
    NO_KIND = 0
    OF_GROUP = 1
    OF_TRANSACTION = 2
    REQUEST_BYTES_MAX = 32768      # a larger one goes through its handler
    TEXT_BYTES_MAX = 1024
    CORRELATION_AT = 4

cdef uint64_t EXPRESS = <uint64_t>1 << EXPRESS_BIT


cdef struct Route:
    int kind
    int16_t first_version
    int16_t last_version
    int16_t first_flexible
    int16_t first_throttled    # responses from here on begin with the throttle time
    bint repeats               # idempotent: may be sent again (lane_calls.REPEATED)


cdef Route[API_WIDTH] ROUTES


cdef void add_route(
    int api_key, int kind, int first_version, int last_version, int first_flexible, int first_throttled, bint repeats
) noexcept:
    ROUTES[api_key].kind = kind
    ROUTES[api_key].first_version = <int16_t>first_version
    ROUTES[api_key].last_version = <int16_t>last_version
    ROUTES[api_key].first_flexible = <int16_t>first_flexible
    ROUTES[api_key].first_throttled = <int16_t>first_throttled
    ROUTES[api_key].repeats = repeats


# Version 0 of a commit goes to the metadata store.
add_route(API_OFFSET_COMMIT, OF_GROUP, 1, OFFSET_COMMIT_LAST, OFFSET_COMMIT_FLEXIBLE, 3, True)
add_route(API_HEARTBEAT, OF_GROUP, 0, HEARTBEAT_LAST, HEARTBEAT_FLEXIBLE, 1, True)
add_route(
    API_CONSUMER_GROUP_HEARTBEAT, OF_GROUP, 0, CONSUMER_GROUP_HEARTBEAT_LAST, CONSUMER_GROUP_HEARTBEAT_FLEXIBLE, 0, False)
add_route(API_ADD_OFFSETS_TO_TXN, OF_TRANSACTION, 0, ADD_OFFSETS_TO_TXN_LAST, ADD_OFFSETS_TO_TXN_FLEXIBLE, 0, True)
add_route(API_END_TXN, OF_TRANSACTION, 0, END_TXN_LAST, END_TXN_FLEXIBLE, 0, True)


def repeated() -> list[int]:
    """API keys of the requests that are sent again when an io worker dies; for tests."""
    return [key for key in range(API_WIDTH) if ROUTES[key].repeats]


def routes() -> list[tuple[int, int, int, int, int]]:
    """(API key, first, last, first flexible and first throttled version) of each request on this path."""
    return [
        (
            key, ROUTES[key].first_version, ROUTES[key].last_version, ROUTES[key].first_flexible,
            ROUTES[key].first_throttled,
        )
        for key in range(API_WIDTH)
        if ROUTES[key].kind != NO_KIND
    ]


cdef uint64_t express_token(const Request* request) noexcept nogil:
    """Mark the token as one of this path, in the highest bit of its generation."""
    return EXPRESS | (<uint64_t>(request.generation & 0x7FFFFFFF) << 32) | request.index


cdef int32_t partition_of(const uint8_t* key, Py_ssize_t size, int32_t partitions) noexcept nogil:
    """Like coordinator.partitioner.coordinator_partition, for an ASCII key."""
    cdef uint32_t value = 0
    cdef Py_ssize_t i
    for i in range(size):
        value = 31 * value + key[i]
    if value >> 31:
        value = 0 - value
    # The smallest int is unchanged by that; it counts as 0.
    return <int32_t>((value & 0x7FFFFFFF) % <uint32_t>partitions)


cdef class ExpressPath:
    """One for each network process."""

    def __cinit__(self, TopicRegistry topics, RequestTable requests, int worker_count):
        cdef int worker
        self.topics = topics
        self.requests = requests
        self.worker_count = worker_count
        self.frames = {}
        self.bundles = <ExpressBundle*>malloc(max(1, worker_count) * sizeof(ExpressBundle))
        if self.bundles == NULL:
            raise MemoryError()
        for worker in range(worker_count):
            self.bundles[worker].data = <uint8_t*>malloc(LANE_MESSAGE_BYTES)
            self.bundles[worker].size = 0
            self.bundles[worker].count = 0
            if self.bundles[worker].data == NULL:
                raise MemoryError()

    def __dealloc__(self):
        cdef int worker
        if self.bundles != NULL:
            for worker in range(self.worker_count):
                free(self.bundles[worker].data)
            free(self.bundles)

    cdef bint takes(self, int16_t api_key, int16_t version) noexcept nogil:
        """Whether requests of this kind may take this path."""
        return (
            0 <= api_key < API_WIDTH
            and ROUTES[api_key].kind != NO_KIND
            and ROUTES[api_key].first_version <= version <= ROUTES[api_key].last_version
        )

    cdef bint may_repeat(self, int16_t api_key) noexcept nogil:
        """Whether a forwarded request without a response may be forwarded again."""
        return ROUTES[api_key].repeats

    cdef bint start(self, Connection c, Request* request, const uint8_t* frame, int32_t size, list lanes) except -1:
        """Forward a request; False if its handler must serve it. ``request`` has key and version."""
        cdef:
            Route* route = &ROUTES[request.api_key]
            bint flexible = request.api_version >= route.first_flexible
            Reader r = make_reader(frame + 8, size - 8)
            const uint8_t* client_id = NULL
            const uint8_t* key = NULL
            const uint8_t* body
            const char* host
            int32_t client_id_size = 0, key_size = 0, partition, slot
            Py_ssize_t host_size = 0, principal_size = len(c.access.principal_wire), body_size
            size_t entry_size
            Topic topic
            ExpressBundle* bundle
            RequestHead head
            uint32_t part_size
            uint64_t token
            int worker
        if size > REQUEST_BYTES_MAX or read_string(&r, &client_id, &client_id_size) != READ_OK:
            return False
        client_id_size = max(client_id_size, 0)
        if client_id_size > TEXT_BYTES_MAX or (flexible and skip_tagged_fields(&r) != READ_OK):
            return False
        body = r.pos
        body_size = r.end - r.pos
        if (read_compact_string(&r, &key, &key_size) if flexible else read_string(&r, &key, &key_size)) != READ_OK:
            return False
        if key_size <= 0 or not is_ascii(key, key_size) or not is_ascii(client_id, client_id_size):
            return False
        if route.kind == OF_GROUP:
            topic = self.topics.find(<const uint8_t*>b"__consumer_offsets", 18, False)
        else:
            topic = self.topics.find(<const uint8_t*>b"__transaction_state", 19, False)
        if topic is None or topic.partition_count == 0:
            return False
        partition = partition_of(key, key_size, topic.partition_count)
        slot = topic.slots[partition]
        host = PyUnicode_AsUTF8AndSize(c.peer_host, &host_size)
        if slot < 0 or host_size > TEXT_BYTES_MAX or principal_size > TEXT_BYTES_MAX:
            return False
        worker = slot % self.worker_count
        bundle = &self.bundles[worker]
        entry_size = sizeof(uint32_t) + sizeof(RequestHead) + client_id_size + host_size + principal_size + body_size
        if bundle.size + entry_size > LANE_MESSAGE_BYTES and not self.send_bundle(worker, lanes):
            return False
        token = express_token(request)
        self.frames[token] = (<const char*>frame)[:size]
        head.token = token
        head.total = <uint32_t>body_size
        head.offset = 0
        head.slot = slot
        head.slot_incarnation = <uint32_t>topic.incarnations[partition]
        head.api_key = request.api_key
        head.version = request.api_version
        head.client_id_size = <uint16_t>client_id_size
        head.host_size = <uint16_t>host_size
        head.principal_size = <uint16_t>principal_size
        head.quota_key = self.quota_key
        head.quota_rate = self.quota_rate
        part_size = <uint32_t>(entry_size - sizeof(uint32_t))
        append(bundle, &part_size, sizeof(uint32_t))
        append(bundle, &head, sizeof(RequestHead))
        append(bundle, client_id, client_id_size)
        append(bundle, host, host_size)
        append(bundle, <const char*>c.access.principal_wire, principal_size)
        append(bundle, body, body_size)
        bundle.count += 1
        request.express_worker = worker
        return True

    cdef bint send_bundle(self, int worker, list lanes) except -1:
        """Send the requests collected for an io worker; False when its lane is full."""
        cdef ExpressBundle* bundle = &self.bundles[worker]
        if bundle.size == 0:
            return True
        if not (<Lane>lanes[worker]).send(MSG_REQUEST, bundle.count, bundle.data, bundle.size, NULL, 0):
            return False
        bundle.size = 0
        bundle.count = 0
        return True

    cdef bint send_bundles(self, list lanes) except -1:
        """False when a lane is full: try again soon."""
        cdef int worker
        cdef bint sent = True
        for worker in range(self.worker_count):
            if not self.send_bundle(worker, lanes):
                sent = False
        return sent

    cdef void drop_bundle(self, int worker) noexcept nogil:
        """Drop unsent requests to an io worker that has died."""
        self.bundles[worker].size = 0
        self.bundles[worker].count = 0

    cdef Request* find(self, uint64_t token) noexcept nogil:
        """The request of a token; NULL if it is not of this path, or was given up."""
        cdef Request* request
        if not is_express(token):
            return NULL
        request = self.requests.at(<uint32_t>token)
        if request == NULL or request.express_worker < 0 or express_token(request) != token:
            return NULL
        return request

    cdef bint take_response(self, Request* request, const uint8_t* body, size_t size, int32_t throttle_ms) except -1:
        """Append the coordinator's response body to the response header, and set the throttle time in it."""
        cdef bint flexible = request.api_version >= ROUTES[request.api_key].first_flexible
        cdef Py_ssize_t head = 8 + flexible
        self.forget(request)
        reserve_response(request, head + <Py_ssize_t>size)
        store_i32(request.response, <int32_t>(head - 4 + <Py_ssize_t>size))
        store_i32(request.response + CORRELATION_AT, request.correlation_id)
        if flexible:
            request.response[8] = 0
        memcpy(request.response + head, body, size)
        if throttle_ms and request.api_version >= ROUTES[request.api_key].first_throttled and size >= 4:
            store_i32(request.response + head, throttle_ms)
        request.response_size = head + <Py_ssize_t>size
        return True

    cdef void count_errors(
        self, const Request* request, const uint8_t* body, Py_ssize_t size, RequestTimes times
    ) noexcept:
        cdef:
            Reader r = make_reader(body, size)
            const Route* route = &ROUTES[request.api_key]
            bint flexible = request.api_version >= route.first_flexible
            const uint8_t* name = NULL
            int32_t number = 0, name_size = 0, topics = 0, partitions = 0
            int16_t error = 0
            ReadStatus status
        if request.api_version >= route.first_throttled and read_i32(&r, &number) != READ_OK:
            return
        if request.api_key != API_OFFSET_COMMIT:
            if read_i16(&r, &error) == READ_OK:
                times.count_error(request.api_key, error)
            return
        status = read_compact_array_count(&r, 2, &topics) if flexible else read_array_count(&r, 6, &topics)
        while status == READ_OK and topics > 0:
            topics -= 1
            if request.api_version >= TOPIC_ID_FIRST:
                status = read_raw(&r, TOPIC_ID_BYTES, &name)
            else:
                status = read_compact_string(&r, &name, &name_size) if flexible else read_string(&r, &name, &name_size)
            if status == READ_OK:
                status = read_compact_array_count(&r, 6, &partitions) if flexible else read_array_count(&r, 6, &partitions)
            while status == READ_OK and partitions > 0:
                partitions -= 1
                if read_i32(&r, &number) != READ_OK or read_i16(&r, &error) != READ_OK:
                    return
                times.count_error(API_OFFSET_COMMIT, error)
                if flexible:
                    status = skip_tagged_fields(&r)
            if flexible and status == READ_OK:
                status = skip_tagged_fields(&r)

    cdef object forget(self, Request* request):
        """Take the request off this path; returns its frame."""
        frame = self.frames.pop(express_token(request), None)
        request.express_worker = -1
        return frame


cdef void append(ExpressBundle* bundle, const void* data, size_t size) noexcept nogil:
    if size:
        memcpy(bundle.data + bundle.size, data, size)
        bundle.size += size
