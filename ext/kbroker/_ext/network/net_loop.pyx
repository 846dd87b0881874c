"""The requests of a network process.

Produce goes to the io workers over lanes and comes back as results; Fetch is served by ``fetch_requests``; everything
else is handed to ``dispatch``. Per produce request in the steady state: one recv and one send shared by what is
pipelined, no Python object. Produces of a connection run together, everything else alone
(docs/decisions/0003-order-on-a-connection.md).
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kbroker._ext.base.api_keys cimport (
    API_API_VERSIONS,
    API_FETCH,
    API_PRODUCE,
    API_SASL_AUTHENTICATE,
    API_SASL_HANDSHAKE,
    API_WIDTH,
    FETCH_FIRST,
    FETCH_LAST,
    PRODUCE_FIRST,
    PRODUCE_FLEXIBLE,
    PRODUCE_LAST,
)
from kbroker._ext.base.buffers cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from kbroker._ext.base.error_codes cimport (
    NOT_COORDINATOR,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_SERVER_ERROR,
)
from kbroker._ext.base.socket_api cimport monotonic_ns
from kbroker._ext.base.wire cimport (
    READ_OK,
    Reader,
    load_i16,
    load_i32,
    make_reader,
    read_string,
    skip_tagged_fields,
    store_i32,
)
from kbroker._ext.network.connection cimport PHASE_AUTHENTICATING, PHASE_SERVING
from kbroker._ext.network.express_path cimport express_token, is_express
from kbroker._ext.shared.descriptors cimport (
    MSG_ANSWER,
    MSG_PRODUCE_RESULT,
    MSG_WAKE,
    PART_SIZE_BYTES,
    AnswerHead,
    Envelope,
    ProduceResult,
)
from kbroker._ext.sockets.requests cimport REQUEST_WAITING, reserve_response, token_of

from kbroker._ext.network.connection import CloseConnection
from kbroker._ext.network.produce_path import ProduceDecodeError

cdef enum:
    HEADER_BYTES_MIN = 8
    ADMIN_CLIENT_SIZE = 14

    # As handlers.support.coordinated.TIMEOUT_MS.
    COORDINATOR_PATIENCE_MS = 30000

    # A produce that io workers have not answered within its own timeout is answered with REQUEST_TIMED_OUT. Not before
    # the first of these: a slow append mostly succeeds, and a client that was told otherwise sends its records again.
    PRODUCE_PATIENCE_MIN_MS = 1000
    PRODUCE_PATIENCE_MAX_MS = 60000

    # BOUND: how often a connection goes on with what it has pipelined in one turn, and for how long all do; what is
    # left is for the next turn.
    ROUNDS_MAX = 8
    ROUNDS_NS = 2000000
    # From this size on what Python decodes is heavy.
    HEAVY_FROM_BYTES = 16384


cdef Py_ssize_t load_part_size(const uint8_t* data, Py_ssize_t left) except -1:
    """The size in front of a part of a MSG_ANSWER."""
    cdef uint32_t size
    assert left >= PART_SIZE_BYTES, left
    memcpy(&size, data, PART_SIZE_BYTES)
    assert size <= left - PART_SIZE_BYTES, (size, left)
    return size


cdef const char* ADMIN_CLIENT = "__admin_client"


cdef class NetLoop(ConnectionLoop):
    """The loop of one network process.

    dispatch(connection, token, frame): called for every request that is not served here; answer it with ``answer``.
    on_close: see ConnectionLoop.
    """

    def __cinit__(
        self, Arena arena, RequestTable requests, int64_t frame_max, on_close, ProducePath produce, FetchEngine fetch,
        dispatch,
    ):
        self._lanes = []
        self.produce = produce
        self.express = ExpressPath(produce.topics, requests, produce.worker_count)
        self.fetch = fetch
        self._fetches = FetchRequests(fetch, requests, self._answers)
        self._dispatch = dispatch

    @property
    def lane_drops(self) -> int:
        """Messages of gone incarnations that were dropped."""
        return sum((<Lane>lane).dropped for lane in self._lanes)

    def take_request_counts(self):
        """[(api key, requests)] since the last call."""
        cdef int i
        counts = []
        for i in range(API_WIDTH):
            if self._api_requests[i]:
                counts.append((i, self._api_requests[i]))
                self._api_requests[i] = 0
        return counts

    # -- lanes ---

    def add_lane(self, Lane lane):
        """Use ``lane`` for the io worker ``lane.peer_index``; lanes are added in index order."""
        assert lane.peer_index == len(self._lanes), lane.peer_index
        self.add_reader(lane.fd, lane)
        self._lanes.append(lane)

    cdef int on_readable(self, object reader) except -1:
        if type(reader) is Lane:
            return self.read_lane(<Lane>reader)
        return ConnectionLoop.on_readable(self, reader)

    cdef int read_lane(self, Lane lane) except -1:
        """Take what an io worker has sent: answers, and slots that have advanced."""
        cdef:
            Envelope envelope
            Py_ssize_t size = 0
            const uint8_t* body
            uint32_t i
        while True:
            body = lane.receive(&envelope, &size)
            if body == NULL:
                return 0
            if lane.peer_renewed():
                self.ask_again(lane.peer_index)
            if envelope.kind == MSG_PRODUCE_RESULT:
                self.take_results(body, size, envelope.count)
            elif envelope.kind == MSG_WAKE:
                assert <Py_ssize_t>(envelope.count * sizeof(int32_t)) <= size, (envelope.count, size)
                for i in range(envelope.count):
                    self.fetch.wake((<const int32_t*>body)[i], self.now_ms)
                self._fetches.drain(self.now_ms)
            elif envelope.kind == MSG_ANSWER:
                self.take_answers(lane.peer_index, body, size)

    cdef int take_answers(self, int worker, const uint8_t* body, Py_ssize_t size) except -1:
        """Answers of coordinators: to what was handed on here, and to what handlers have asked."""
        cdef:
            Py_ssize_t at = 0
            Py_ssize_t part, others = 0
            AnswerHead head
            Request* request
            int32_t throttle_ms
        while at < size:
            part = load_part_size(body + at, size - at)
            assert part >= <Py_ssize_t>sizeof(AnswerHead), (part, size - at)
            memcpy(&head, body + at + PART_SIZE_BYTES, sizeof(AnswerHead))
            part += PART_SIZE_BYTES
            request = self.express.find(head.token)
            if not is_express(head.token):
                others += 1
            elif request != NULL and request.connection != NULL and request.state == REQUEST_WAITING:
                text = body + at + PART_SIZE_BYTES + sizeof(AnswerHead)
                if head.error == 0 and head.total == part - PART_SIZE_BYTES - sizeof(AnswerHead):
                    throttle_ms = (<Connection>request.connection).throttle_ms(self.now_ms)
                    self.express.take_answer(request, text, head.total, throttle_ms)
                    self._answers.ready(request)
                else:
                    # An answer in parts, longer than any request of this kind calls for, is none.
                    self.refuse_express(
                        request, head.error or UNKNOWN_SERVER_ERROR,
                        (<const char*>text)[: part - PART_SIZE_BYTES - sizeof(AnswerHead)] if head.error else b"")
            at += part
        if others:
            self.call_out(self.on_answer, (worker, (<const char*>body)[:size]))
        return 0

    cdef int refuse_express(self, Request* request, int error_code, object text) except -1:
        """How an error is put depends on the request: its handler does it."""
        frame = self.express.forget(request)
        return self.call_out(
            self.on_refused, (<Connection>request.connection, token_of(request), frame, error_code, text))

    cdef int forget_express(self, Request* request) except -1:
        self.express.forget(request)
        return 0

    # -- requests ---

    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        cdef int16_t api_key, version
        cdef Request* request
        if c.phase != PHASE_SERVING:
            self.check_phase(c, frame, size)
        api_key = load_i16(frame)
        version = load_i16(frame + 2)
        self._api_requests[api_key if 0 <= api_key < API_WIDTH else API_WIDTH - 1] += 1
        if api_key == API_PRODUCE and PRODUCE_FIRST <= version <= PRODUCE_LAST:
            return self.start_produce(c, frame, size, version, load_i32(frame + 4))
        request = self._requests.acquire()
        request.connection = <void*>c
        request.api_key = api_key
        request.api_version = version
        request.correlation_id = load_i32(frame + 4)
        request.started_ns = monotonic_ns()
        c.push(request)
        c.exclusive = True
        if api_key == API_FETCH and FETCH_FIRST <= version <= FETCH_LAST:
            return self._fetches.start(c, request, frame, size, self.now_ms)
        # A coordinator is handed what was found to be allowed: who may not do everything is asked for in Python.
        if c.access.everything and self.express.takes(api_key, version) and self.express.start(c, request, frame, size, self._lanes):
            return 0
        return self.call_out(self._dispatch, (c, token_of(request), (<const char*>frame)[:size]))

    cdef int check_phase(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        """Whether a connection may send this before it is authenticated; as in Kafka, anything else closes it."""
        cdef int16_t api_key
        if size < HEADER_BYTES_MIN:
            raise CloseConnection(f"{size} bytes that are no request, before authentication was over")
        api_key = load_i16(frame)
        if c.phase == PHASE_AUTHENTICATING:
            if api_key == API_SASL_AUTHENTICATE:
                return 0
        elif api_key == API_SASL_HANDSHAKE or api_key == API_API_VERSIONS:
            return 0
        raise CloseConnection(f"a request (API key {api_key}) before authentication was over")

    cdef bint may_pipeline(self, const uint8_t* frame) noexcept nogil:
        return load_i16(frame) == API_PRODUCE and PRODUCE_FIRST <= load_i16(frame + 2) <= PRODUCE_LAST

    cdef bint is_heavy(self, const uint8_t* frame, int32_t size) noexcept nogil:
        return size >= HEAVY_FROM_BYTES and load_i16(frame) != API_PRODUCE and load_i16(frame) != API_FETCH

    # -- produce ---

    cdef int start_produce(
        self, Connection c, const uint8_t* frame, int32_t size, int16_t version, int32_t correlation_id
    ) except -1:
        cdef:
            Reader r = make_reader(frame + 8, size - 8)
            const uint8_t* client_id = NULL
            int32_t client_id_size = 0
            Request* request
        if read_string(&r, &client_id, &client_id_size) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad client id")
        if version >= PRODUCE_FLEXIBLE and skip_tagged_fields(&r) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad header tags")
        # COMPAT: as in Kafka, only a client of this name writes to the topics of the coordinators.
        self.produce.may_write_internal = (
            client_id_size == ADMIN_CLIENT_SIZE and memcmp(client_id, ADMIN_CLIENT, ADMIN_CLIENT_SIZE) == 0
        )
        self.produce.access = c.access
        request = self._requests.acquire()
        request.connection = <void*>c
        request.api_key = API_PRODUCE
        request.api_version = version
        request.correlation_id = correlation_id
        request.started_ns = monotonic_ns()
        request.block = c.block
        c.block.refs += 1
        c.push(request)
        try:
            self.produce.start(request, &r)
        except ProduceDecodeError as reason:
            request.parts_left = 0  # nothing of it is on its way
            raise CloseConnection(f"a malformed Produce request: {reason}") from None
        request.silent = request.acks == 0
        if request.parts_left == 0:
            self.finish_produce(request)
        return 0

    cdef int finish_produce(self, Request* request) except -1:
        """All partitions are answered: write the response."""
        cdef int32_t i
        if request.silent:
            # WIRE: acks=0 has no response; a failure can only be shown by closing the connection.
            for i in range(request.part_count):
                if request.parts[i].error_code != 0:
                    request.close_after = True
                    (<Connection>request.connection).close_reason = (
                        f"a produce without acks failed with error {request.parts[i].error_code}"
                    )
        else:
            self.produce.encode(request, (<Connection>request.connection).throttle_ms(self.now_ms))
        return self._answers.ready(request)

    cdef int take_results(self, const uint8_t* body, Py_ssize_t size, uint32_t count) except -1:
        """A PRODUCE_RESULT message: ``count`` structs, then the error text and the indexes of each in order."""
        cdef:
            const ProduceResult* results = <const ProduceResult*>body
            const uint8_t* text = body + count * sizeof(ProduceResult)
            const uint8_t* end = body + size
            Request* request
            Py_ssize_t behind
            uint32_t i
        assert <Py_ssize_t>(count * sizeof(ProduceResult)) <= size, (count, size)
        for i in range(count):
            behind = results[i].error_text_size + sizeof(int32_t) * <Py_ssize_t>results[i].more_bad_records
            assert behind <= end - text
            request = self.produce.take_result(&results[i], text)
            text += behind
            if request != NULL:
                self.all_parts_done(request)
        return 0

    cdef int note_restarts(self) except -1:
        """See to what died with an io worker, before anything is sent to the next one."""
        cdef Lane lane
        for lane in self._lanes:
            if lane.peer_renewed():
                self.ask_again(lane.peer_index)
        return 0

    cdef int ask_again(self, int worker) except -1:
        """An io worker was restarted: what it had not answered is asked of the next one.

        In the order of each connection, and before anything that comes behind it. What cannot be repeated without
        changing its meaning is answered with a retriable error (docs/decisions/0008-death-of-an-io-worker.md).

        INVARIANT: what is failed here was never described to a living io worker, so its arena bytes may be used again.
        """
        cdef uint32_t index = 0
        cdef Request* request = self._requests.at(0)
        cdef Request* following
        cdef Connection c
        self._called_out = True  # calls to its coordinators are repeated, or end, too
        self.produce.drop_bundle(worker)
        self.express.drop_bundle(worker)
        while request != NULL:
            # Its client is gone, or was told that its time is up, and asks again itself.
            if request.parts_left > 0 and (request.connection == NULL or request.state != REQUEST_WAITING):
                self.fail_parts(request, worker, NOT_LEADER_OR_FOLLOWER)
            index += 1
            request = self._requests.at(index)
        for c in list(self._connections.values()):
            request = c.first
            while request != NULL and not c.closed:
                following = request.next
                if request.state == REQUEST_WAITING and request.parts_left > 0:
                    self.repeat_produce(c, request, worker)
                elif request.express_worker == worker:
                    self.repeat_express(c, request)
                request = following
        # It may have taken the waiter bits of what it published and died before it sent the wake-ups.
        self.fetch.wake_worker(worker, <int>len(self._lanes), self.now_ms)
        return self._fetches.drain(self.now_ms)

    cdef int repeat_produce(self, Connection c, Request* request, int worker) except -1:
        """Have the next incarnation of an io worker do what the last one did not answer.

        A batch that may be there, or not, is answered with an error, and the connection ends, so that nothing that the
        client has sent behind it comes to lie before it.
        """
        if not self.produce.repeat(request, worker):
            self.end_connection(c)
        return self.finish_produce(request) if request.parts_left == 0 else 0

    cdef int repeat_express(self, Connection c, Request* request) except -1:
        """Ask the next incarnation of an io worker what the last one did not answer, where that is exact."""
        cdef bytes frame
        if self.express.may_repeat(request.api_key):
            frame = self.express.frames[express_token(request)]
            if self.express.start(c, request, <const uint8_t*><const char*>frame, <int32_t>len(frame), self._lanes):
                return 0
        return self.refuse_express(request, NOT_COORDINATOR, b"")

    cdef int fail_parts(self, Request* request, int worker, int16_t error_code) except -1:
        """Answer a request's open partitions of one io worker that will not answer any more."""
        self.produce.fail(request, worker, error_code)
        return self.all_parts_done(request) if request.parts_left == 0 else 0

    cdef int all_parts_done(self, Request* request) except -1:
        if request.connection == NULL:
            return self.end_request(request)  # its client is gone
        if request.state == REQUEST_WAITING:
            return self.finish_produce(request)
        return 0  # answered at its timeout, not sent yet: flush ends it

    # -- answers ---

    def answer(self, uint64_t token, response):
        """Answer a dispatched request with response bytes (without length prefix); None closes the connection."""
        cdef Request* request = self._requests.find(token)
        cdef Py_ssize_t size
        cdef Py_buffer view
        if request == NULL or request.connection == NULL or request.state != REQUEST_WAITING:
            return
        if response is None:
            request.close_after = True
            request.silent = True
        else:
            PyObject_GetBuffer(response, &view, PyBUF_SIMPLE)
            try:
                size = view.len
                reserve_response(request, size + 4)
                store_i32(request.response, <int32_t>size)
                memcpy(request.response + 4, view.buf, size)
                request.response_size = size + 4
            finally:
                PyBuffer_Release(&view)
        self._answers.ready(request)

    def end_turn(self):
        """Answer fetches whose time is up, send what this turn has answered and collected.

        True when an io worker's lane is full: come back soon.
        """
        cdef int rounds = 0
        cdef int64_t until = monotonic_ns() + ROUNDS_NS
        self.note_restarts()
        self.now_ms = self._fetches.expire(self.now_ms)
        while self._answers.dirty and rounds < ROUNDS_MAX:
            self.flush_answers()
            rounds += 1
            if monotonic_ns() >= until:
                break
        self.produce.send_bundles(self._lanes)
        return not self.express.send_bundles(self._lanes) or self.produce.queued > 0

    def turns(self, int timeout_ms):
        """Turns, each with its end, for ``timeout_ms`` or until code of the process ran or is needed.

        True when an io worker's lane is full: come back soon. The Python around a turn costs more than the turn.
        """
        cdef int64_t until_ms = monotonic_ns() // 1000000 + timeout_ms
        cdef int64_t fetch_ms
        cdef bint held_back
        self._called_out = False
        while True:
            self.turn(timeout_ms)
            held_back = self.end_turn()
            timeout_ms = <int>(until_ms - self.now_ms)
            if held_back or self._called_out or timeout_ms <= 0:
                return held_back
            fetch_ms = self.fetch.next_deadline_ms()
            if fetch_ms >= 0:
                timeout_ms = <int>max(min(fetch_ms - self.now_ms, <int64_t>timeout_ms), <int64_t>0)

    def relieve(self, int64_t now_ms):
        """Also free descriptors of segments when a fetch got no bytes because all are in flight."""
        cdef Connection c
        ConnectionLoop.relieve(self, now_ms)
        for c in self._fetches.relief(self._connections.values(), now_ms):
            self.close_connection(c, "it reads too slowly, and others need the files it holds")

    def next_fetch_deadline_ms(self) -> int:
        """When a parked fetch has to be answered; -1 when nothing is parked."""
        return self.fetch.next_deadline_ms()

    # -- timeouts ---

    cdef int forget_parked(self, Request* request) except -1:
        return self._fetches.forget(request)

    def sweep(self):
        """Also answer produces that nobody answers."""
        ConnectionLoop.sweep(self)
        self.expire_requests(monotonic_ns())

    def expire_at(self, int64_t now_ns):
        """What a sweep at that time does to produces; for tests."""
        self.expire_requests(now_ns)

    cdef int expire_requests(self, int64_t now_ns) except -1:
        """Answer produces whose time is up. Their results may still come, and their bytes are held until then."""
        cdef uint32_t index = 0
        cdef int64_t patience_ms
        cdef Request* request = self._requests.at(0)
        while request != NULL:
            patience_ms = min(max(request.timeout_ms, PRODUCE_PATIENCE_MIN_MS), PRODUCE_PATIENCE_MAX_MS)
            if (
                request.state == REQUEST_WAITING
                and request.connection != NULL
                and request.parts_left > 0
                and now_ns - request.started_ns > patience_ms * 1000000
            ):
                self.produce.note_timeout(request)
                self.finish_produce(request)
            elif (
                request.express_worker >= 0
                and request.connection != NULL
                and now_ns - request.started_ns > <int64_t>COORDINATOR_PATIENCE_MS * 1000000
            ):
                self.refuse_express(request, NOT_COORDINATOR, b"the coordinator did not answer in time")
            index += 1
            request = self._requests.at(index)
        return 0

    def produces_in_flight(self) -> int:
        """Requests that io workers have not wholly answered."""
        cdef uint32_t index = 0
        cdef int count = 0
        cdef Request* request = self._requests.at(0)
        while request != NULL:
            if request.parts_left > 0:
                count += 1
            index += 1
            request = self._requests.at(index)
        return count
