"""The requests of a network process.

Produce requests go to the io workers over lanes and come back as results; ``fetch_requests`` serves Fetch; everything
else is passed to ``dispatch``. Cost of a produce request in the steady state: one recv and one send, shared by
pipelined requests, and no Python object. Produce requests of a connection run concurrently, every other request runs
alone (docs/decisions/0003-order-on-a-connection.md).
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from kbroker._ext.base.api_keys cimport (
    API_FETCH,
    API_PRODUCE,
    API_SASL_AUTHENTICATE,
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
from kbroker._ext.network.client_limits cimport is_of_broker
from kbroker._ext.network.connection cimport PHASE_SERVING, PHASE_TOKENS, is_known
from kbroker._ext.network.express_path cimport express_token, is_express
from kbroker._ext.network.responses cimport Responses
from kbroker._ext.shared.descriptors cimport (
    MSG_RESPONSE,
    MSG_PRODUCE_RESULT,
    MSG_WAKE,
    PART_SIZE_BYTES,
    ResponseHead,
    Envelope,
    ProduceResult,
)
from kbroker._ext.shared.quota_table cimport QuotaTable
from kbroker._ext.sockets.requests cimport REQUEST_WAITING, reserve_response, token_of

from kbroker._ext.network.connection import CloseConnection
from kbroker._ext.network.produce_path import ProduceDecodeError
from kbroker._ext.shared.quota_table import region_size

cdef enum:
    ADMIN_CLIENT_SIZE = 14

    # As handlers.support.coordinated.TIMEOUT_MS.
    COORDINATOR_PATIENCE_MS = 30000

    # A produce for which io workers have no result within its own timeout gets REQUEST_TIMED_OUT, but not before the
    # first of these: a slow append usually succeeds, and after an error the client would send its records again.
    PRODUCE_PATIENCE_MIN_MS = 1000
    PRODUCE_PATIENCE_MAX_MS = 60000

    # BOUND: how often a connection continues with its pipelined requests in one turn, and the total time for that; the
    # rest waits for the next turn.
    ROUNDS_MAX = 8
    ROUNDS_NS = 2000000
    # Requests that Python decodes are heavy from this size on.
    HEAVY_FROM_BYTES = 16384


cdef Py_ssize_t load_part_size(const uint8_t* data, Py_ssize_t left) except -1:
    """Read the size in front of a part of a MSG_RESPONSE."""
    cdef uint32_t size
    assert left >= PART_SIZE_BYTES, left
    memcpy(&size, data, PART_SIZE_BYTES)
    assert size <= left - PART_SIZE_BYTES, (size, left)
    return size


cdef const char* ADMIN_CLIENT = "__admin_client"


cdef class NetLoop(ConnectionLoop):
    """The loop of one network process.

    dispatch(connection, token, frame): called for every request that is not served here; ``answer`` takes the response.
    on_close: see ConnectionLoop. quotas: what clients have used of theirs, in all processes of the broker.
    """

    def __cinit__(
        self, Arena arena, RequestTable requests, int64_t frame_max, on_close, ProducePath produce, FetchEngine fetch,
        dispatch, QuotaTable quotas=None,
    ):
        if quotas is None:  # nobody else counts
            quotas = QuotaTable(bytearray(region_size(1)), 1, 1000)
        self.limits = ClientLimits(quotas, self._muted, self._memory)
        self._lanes = []
        self.produce = produce
        self.express = ExpressPath(produce.topics, requests, produce.worker_count)
        self.fetch = fetch
        self._fetches = FetchRequests(fetch, requests, self._responses, self.limits)
        self._dispatch = dispatch

    @property
    def lane_drops(self) -> int:
        """Dropped messages of earlier incarnations of io workers."""
        return sum((<Lane>lane).dropped for lane in self._lanes)

    @property
    def responses(self) -> Responses:
        """How responses are sent."""
        return self._responses

    def take_request_counts(self):
        """Return [(api key, requests)] since the last call."""
        cdef int i
        counts = []
        for i in range(API_WIDTH):
            if self._api_requests[i]:
                counts.append((i, self._api_requests[i]))
                self._api_requests[i] = 0
        return counts

    def forget_quotas(self, bint on):
        """The quotas have changed: whoever waits for an old one goes on. on: whether there are any."""
        self.limits.on = on
        self.limits.forget(self._connections.values())
        for c in self._muted.end_all(self.now_ms):
            self.continue_later(<Connection>c)

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
        """Take the messages of an io worker: results, responses, and slots that have advanced."""
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
                self.take_results(body, size, envelope.count, monotonic_ns())
            elif envelope.kind == MSG_WAKE:
                assert <Py_ssize_t>(envelope.count * sizeof(int32_t)) <= size, (envelope.count, size)
                for i in range(envelope.count):
                    self.fetch.wake((<const int32_t*>body)[i], self.now_ms)
                self._fetches.drain(self.now_ms)
            elif envelope.kind == MSG_RESPONSE:
                self.take_responses(lane.peer_index, body, size, monotonic_ns())

    cdef int take_responses(self, int worker, const uint8_t* body, Py_ssize_t size, int64_t now_ns) except -1:
        """Take the responses of coordinators, to requests forwarded here and to calls of handlers."""
        cdef:
            Py_ssize_t at = 0
            Py_ssize_t part, others = 0
            ResponseHead head
            Request* request
            int32_t throttle_ms
        while at < size:
            part = load_part_size(body + at, size - at)
            assert part >= <Py_ssize_t>sizeof(ResponseHead), (part, size - at)
            memcpy(&head, body + at + PART_SIZE_BYTES, sizeof(ResponseHead))
            part += PART_SIZE_BYTES
            request = self.express.find(head.token)
            if not is_express(head.token):
                others += 1
            elif request != NULL and request.connection != NULL and request.state == REQUEST_WAITING:
                text = body + at + PART_SIZE_BYTES + sizeof(ResponseHead)
                if head.error == 0 and head.total == part - PART_SIZE_BYTES - sizeof(ResponseHead):
                    if self.limits.on:
                        self.limits.throttle(<Connection>request.connection, 0, self.now_ms)
                    throttle_ms = (<Connection>request.connection).throttle_ms(self.now_ms)
                    self.express.take_response(request, text, head.total, throttle_ms)
                    if self._responses.times is not None:
                        self.express.count_errors(request, text, head.total, self._responses.times)
                    request.throttle_ms = throttle_ms
                    self._responses.ready(request, now_ns)
                else:
                    # A response in several parts is longer than any valid one to such a request, so it is an error.
                    self.reject_express(
                        request, head.error or UNKNOWN_SERVER_ERROR,
                        (<const char*>text)[: part - PART_SIZE_BYTES - sizeof(ResponseHead)] if head.error else b"")
            at += part
        if others:
            self.call_out(self.on_response, (worker, (<const char*>body)[:size]))
        return 0

    cdef int reject_express(self, Request* request, int error_code, object text) except -1:
        """Pass an error to the request's handler, which knows how to encode it."""
        frame = self.express.forget(request)
        return self.call_out(
            self.on_rejected, (<Connection>request.connection, token_of(request), frame, error_code, text))

    cdef int forget_express(self, Request* request) except -1:
        self.express.forget(request)
        return 0

    # -- requests ---

    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        cdef int64_t began
        c.count_request(size)
        if not self.limits.on or not is_known(c):
            return self.handle_request(c, frame, size)
        self.limits.identify(c, frame, size)
        if not c.usage.request.key:
            return self.handle_request(c, frame, size)
        began = monotonic_ns()
        self.handle_request(c, frame, size)
        if not is_of_broker(load_i16(frame)) and not (
            load_i16(frame) == API_FETCH and self.fetch.follower_session >= 0
        ):
            self.limits.charge_time(c, monotonic_ns() - began, self.now_ms)
        return 0

    cdef int handle_request(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        cdef int16_t api_key, version
        cdef Request* request
        if c.phase != PHASE_SERVING:  # sessions that may have ended are among these
            if c.phase == PHASE_TOKENS:
                return self.start_token(c, frame, size)
            c.check_phase(load_i16(frame), self.now_ms)
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
        request.arrived_ns = c.received_ns
        request.started_ns = request.taken_ns = self.frame_ns
        c.push(request)
        c.exclusive = True
        if api_key == API_FETCH and FETCH_FIRST <= version <= FETCH_LAST:
            return self._fetches.start(c, request, frame, size, self.now_ms)
        # Coordinators get only authorized requests: if the principal may not do everything, Python checks it.
        if c.access.everything and self.express.takes(api_key, version) and self.start_express(c, request, frame, size):
            return 0
        return self.call_out(self._dispatch, (c, token_of(request), (<const char*>frame)[:size]))

    cdef int start_token(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        """Dispatch a token without a header, as it follows SaslHandshake 0. Its response has none either."""
        cdef Request* request = self._requests.acquire()
        request.connection = <void*>c
        request.api_key = API_SASL_AUTHENTICATE
        request.arrived_ns = c.received_ns
        request.started_ns = request.taken_ns = self.frame_ns
        self._api_requests[API_SASL_AUTHENTICATE] += 1
        c.push(request)
        c.exclusive = True
        return self.call_out(self._dispatch, (c, token_of(request), (<const char*>frame)[:size]))

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
            int64_t body_size
            Request* request
        if read_string(&r, &client_id, &client_id_size) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad client id")
        if version >= PRODUCE_FLEXIBLE and skip_tagged_fields(&r) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad header tags")
        # COMPAT: as in Kafka, only a client with this client id may write to internal topics.
        self.produce.may_write_internal = (
            client_id_size == ADMIN_CLIENT_SIZE and memcmp(client_id, ADMIN_CLIENT, ADMIN_CLIENT_SIZE) == 0
        )
        self.produce.access = c.access
        self.produce.quota_key = self.limits.time_quota(c, &self.produce.quota_rate) if self.limits.on else 0
        body_size = r.end - r.pos
        request = self._requests.acquire()
        request.connection = <void*>c
        request.api_key = API_PRODUCE
        request.api_version = version
        request.correlation_id = correlation_id
        request.arrived_ns = c.received_ns
        request.started_ns = request.taken_ns = self.frame_ns
        request.block = c.block
        c.block.refs += 1
        c.push(request)
        try:
            self.produce.start(request, &r)
        except ProduceDecodeError as reason:
            request.parts_left = 0  # none of it has been sent to an io worker
            raise CloseConnection(f"a malformed Produce request: {reason}") from None
        request.silent = request.acks == 0
        if self.limits.on and c.usage is not None:
            self.limits.charge_produce(c, body_size, self.now_ms)
        if request.parts_left == 0:
            self.finish_produce(request, monotonic_ns())
        return 0

    cdef int finish_produce(self, Request* request, int64_t now_ns) except -1:
        """Write the response when all partitions have a result."""
        cdef int32_t i
        if request.silent:
            # WIRE: acks=0 has no response; the only way to report a failure is to close the connection.
            for i in range(request.part_count):
                if request.parts[i].error_code != 0:
                    request.close_after = True
                    (<Connection>request.connection).close_reason = (
                        f"a produce with acks=0 failed with error {request.parts[i].error_code}"
                    )
        else:
            if self.limits.on:
                self.limits.throttle(<Connection>request.connection, 0, self.now_ms)
            request.throttle_ms = (<Connection>request.connection).throttle_ms(self.now_ms)
            self.produce.encode(request, request.throttle_ms, (<Connection>request.connection).listener)
        if self._responses.times is not None:
            for i in range(request.part_count):
                self._responses.times.count_error(API_PRODUCE, request.parts[i].error_code)
        return self._responses.ready(request, now_ns)

    cdef int take_results(self, const uint8_t* body, Py_ssize_t size, uint32_t count, int64_t now_ns) except -1:
        """Take a PRODUCE_RESULT message: ``count`` structs, then the error text and record indexes of each in order."""
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
            if request == NULL:
                continue
            if request.parts_left == 0:
                self.all_parts_done(request, now_ns)
            elif request.block != NULL:
                self.free_block(request)
        return 0

    cdef int free_block(self, Request* request) except -1:
        """Give back the memory of a request that only waits for commits: others need it. A slow follower would have
        kept it.
        """
        self.produce.leave_block(request)
        self._arena.release(request.block)
        request.block = NULL
        if request.connection == NULL:
            self.end_request(request)  # its client has disconnected, or got a timeout error
        return 0

    cdef int note_restarts(self) except -1:
        """Retry or fail the requests that died with an io worker, before anything is sent to its next incarnation."""
        cdef Lane lane
        for lane in self._lanes:
            if lane.peer_renewed():
                self.ask_again(lane.peer_index)
        return 0

    cdef int ask_again(self, int worker) except -1:
        """Send everything that a restarted io worker had not completed to its next incarnation.

        In the order of each connection, and before any later request. Requests that cannot be repeated without changing
        their meaning get a retriable error (docs/decisions/0008-death-of-an-io-worker.md).

        INVARIANT: what fails here was never described to a living io worker, so its arena bytes may be reused.
        """
        cdef uint32_t index = 0
        cdef Request* request = self._requests.at(0)
        cdef Request* following
        cdef Connection c
        self._called_out = True  # calls to its coordinators are repeated or fail, too
        self.produce.drop_bundle(worker)
        self.express.drop_bundle(worker)
        while request != NULL:
            # Its client has disconnected, or got a timeout error and will retry by itself.
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
        self.fetch.report_again(worker)
        # It may have cleared waiter bits when it published and died before sending the wake-ups.
        self.fetch.wake_worker(worker, <int>len(self._lanes), self.now_ms)
        return self._fetches.drain(self.now_ms)

    cdef int repeat_produce(self, Connection c, Request* request, int worker) except -1:
        """Send the batches that an io worker had not completed to its next incarnation.

        A batch that may or may not have been appended gets an error, and the connection ends, so that later batches of
        the client are not appended before it is retried.
        """
        if not self.produce.repeat(request, worker):
            self.end_connection(c)
        return self.finish_produce(request, monotonic_ns()) if request.parts_left == 0 else 0

    cdef bint start_express(self, Connection c, Request* request, const uint8_t* frame, int32_t size) except -1:
        self.express.quota_key = self.limits.time_quota(c, &self.express.quota_rate) if self.limits.on else 0
        return self.express.start(c, request, frame, size, self._lanes)

    cdef int repeat_express(self, Connection c, Request* request) except -1:
        """Forward a request to the next incarnation of an io worker, if repeating it cannot change its meaning."""
        cdef bytes frame
        if self.express.may_repeat(request.api_key):
            frame = self.express.frames[express_token(request)]
            if self.start_express(c, request, <const uint8_t*><const char*>frame, <int32_t>len(frame)):
                return 0
        return self.reject_express(request, NOT_COORDINATOR, b"")

    cdef int fail_parts(self, Request* request, int worker, int16_t error_code) except -1:
        """Fail the open partitions of a request whose io worker will not respond any more."""
        self.produce.fail(request, worker, error_code)
        return self.all_parts_done(request, monotonic_ns()) if request.parts_left == 0 else 0

    cdef int all_parts_done(self, Request* request, int64_t now_ns) except -1:
        if request.connection == NULL:
            return self.end_request(request)  # its client has disconnected
        if request.state == REQUEST_WAITING:
            return self.finish_produce(request, now_ns)
        return 0  # it has timed out, and its response is not sent yet: flush ends it

    # -- responses ---

    def respond(self, uint64_t token, response):
        """Respond to a request with bytes (without length prefix); None closes the connection, False is no response."""
        cdef Request* request = self._requests.find(token)
        cdef Py_ssize_t size
        cdef Py_buffer view
        if request == NULL or request.connection == NULL or request.state != REQUEST_WAITING:
            return
        if response is None or response is False:
            request.close_after = response is None
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
        request.throttle_ms = (<Connection>request.connection).throttle_ms(self.now_ms)
        self._responses.ready(request, monotonic_ns())

    def end_turn(self):
        """Respond to expired fetches, send the responses of this turn and the messages for io workers.

        True if an io worker's lane is full: call again soon.
        """
        cdef int rounds = 0
        cdef int64_t until = monotonic_ns() + ROUNDS_NS
        cdef bint held_back
        self.note_restarts()
        self.now_ms = self._fetches.expire(self.now_ms)
        while self._responses.dirty and rounds < ROUNDS_MAX:
            self.flush_responses()
            rounds += 1
            if monotonic_ns() >= until:
                break
        if self.fetch.reader.epoch_questions:
            self.call_out(self.on_epoch_questions, ())
        self.produce.send_bundles(self._lanes)
        held_back = not self.fetch.reports.send(self._lanes)
        return not self.express.send_bundles(self._lanes) or self.produce.queued > 0 or held_back

    def turns(self, int timeout_ms):
        """Run complete turns for ``timeout_ms``, or until Python code of the process has run or is needed.

        True if an io worker's lane is full: call again soon. The Python code around a turn costs more than the turn.
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
        """Also free file descriptors of segments, if a fetch got no bytes because all are in flight."""
        cdef Connection c
        ConnectionLoop.relieve(self, now_ms)
        for c in self._fetches.relief(self._connections.values(), now_ms):
            self.close_connection(c, "it reads too slowly, and other fetches need the files that it holds open")

    def next_fetch_deadline_ms(self) -> int:
        """Return the earliest deadline of a parked fetch; -1 if none is parked."""
        return self.fetch.next_deadline_ms()

    # -- timeouts ---

    cdef int forget_parked(self, Request* request) except -1:
        return self._fetches.forget(request)

    cdef int forget_follower(self, Connection c) except -1:
        return self.fetch.end_follower(c.follower_session)

    def hurry_followers(self, frozenset brokers not None):
        """Respond to the waiting fetches of these brokers with what there is: they may want to fetch more by now."""
        self._fetches.hurry(brokers, self.now_ms)

    def put_epoch_ends(self, list replies not None):
        """``FetchEngine.put_epoch_ends``; responds to the fetches that have waited for it."""
        self.now_ms = monotonic_ns() // 1000000
        self.fetch.put_epoch_ends(replies, self.now_ms)
        self._fetches.drain(self.now_ms)

    def sweep(self):
        """Also time out produce requests."""
        ConnectionLoop.sweep(self)
        self.expire_requests(monotonic_ns())

    def expire_at(self, int64_t now_ns):
        """Run the expiry of produce requests as of this time; for tests."""
        self.expire_requests(now_ns)

    cdef int expire_requests(self, int64_t now_ns) except -1:
        """Respond to produce requests that have timed out. Results may still arrive; the bytes are kept until then."""
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
                self.finish_produce(request, now_ns)
            elif (
                request.express_worker >= 0
                and request.connection != NULL
                and now_ns - request.started_ns > <int64_t>COORDINATOR_PATIENCE_MS * 1000000
            ):
                self.reject_express(request, NOT_COORDINATOR, b"the coordinator did not respond in time")
            index += 1
            request = self._requests.at(index)
        return 0

    def produces_in_flight(self) -> int:
        """Count the requests for which io workers still owe results."""
        cdef uint32_t index = 0
        cdef int count = 0
        cdef Request* request = self._requests.at(0)
        while request != NULL:
            if request.parts_left > 0:
                count += 1
            index += 1
            request = self._requests.at(index)
        return count
