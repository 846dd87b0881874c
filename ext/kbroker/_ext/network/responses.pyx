"""How responses leave a network process: several short ones in one write, long ones a piece at a time.

Code that has written a response marks it ``ready``; at the end of the turn the loop sends the ready ones, in the order
of the requests of each connection. Long responses (from files) share a turn with short ones: while short responses are
being sent to other connections, all long ones together get SHARED_TURN_BYTES of a turn, and between two turns the io
workers and clients on this core run first.
"""
from kbroker._ext.base.api_keys cimport API_FETCH
from kbroker._ext.base.socket_api cimport iovec, monotonic_ns, sched_yield
from kbroker._ext.fetch.fetch_reply cimport FetchReply
from kbroker._ext.fetch.fetch_send cimport (
    SEND_BLOCKED,
    SEND_FAILED,
    SENT_ALL,
    SENT_SOME,
    send_reply,
)
from kbroker._ext.shared.request_times cimport (
    ROW_FOLLOWER,
    STAGE_LOCAL,
    STAGE_QUEUE,
    STAGE_REMOTE,
    STAGE_RESPONSE_QUEUE,
    STAGE_SEND,
    STAGE_THROTTLE,
    STAGE_TOTAL,
    row_of,
)
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED

from kbroker._ext.shared.client_figures import region_size

cdef enum:
    # BOUND: bytes of a long response sent to one connection in one turn.
    TURN_BYTES = 262144
    # For this long after a short response, another one is expected.
    SHORT_RESPONSES_MS = 25
    # If a yield takes longer than this, another process had more to do than is worth waiting for; then the core is not
    # yielded again for YIELD_SHARE times as long.
    YIELD_LONG_NS = 1000000
    YIELD_SHARE = 8
    GATHER_MAX = 64
    # BOUND: slow requests that are remembered until somebody takes them.
    SLOW_MAX = 100


cdef class Responses:
    """The responses of one network process."""

    def __cinit__(self):
        self.dirty = []
        self.clients = ClientFigures(bytearray(region_size(1)), 0)  # until there are others
        self.slow_ns = -1
        self.slow = []

    def watch_for(self, int64_t slow_ms):
        """Remember requests that take longer than this; -1: none."""
        self.slow_ns = slow_ms * 1000000 if slow_ms >= 0 else -1

    def take_slow(self) -> tuple:
        """Return ([(connection, API key, version, correlation id, bytes of the response or -1, [total, queue, local, remote,
        throttle, response queue and send time in ns])...], how many more there were) since the last call.
        """
        found = self.slow, self.slow_left_out
        self.slow = []
        self.slow_left_out = 0
        return found

    cdef int note_slow(self, const Request* request, int64_t began_ns, int64_t now_ns) except -1:
        cdef int64_t local_end = request.waits_ns if request.waits_ns else request.ready_ns
        if len(self.slow) >= SLOW_MAX or request.connection == NULL:
            self.slow_left_out += 1
            return 0
        self.slow.append((
            <Connection>request.connection, request.api_key, request.api_version, request.correlation_id,
            request.response_size if request.fetch_reply == NULL else -1,
            [
                now_ns - request.arrived_ns, request.taken_ns - request.arrived_ns, local_end - request.taken_ns,
                request.ready_ns - request.waits_ns if request.waits_ns else 0,
                <int64_t>request.throttle_ms * 1000000, began_ns - request.ready_ns, now_ns - began_ns,
            ]))
        return 0

    cdef int let_others_run(self) except -1:
        """Yield the core between the pieces of long responses, to io workers and clients that others wait for."""
        cdef int64_t begun = monotonic_ns()
        self.long_bytes = 0
        if begun >= self.yield_at_ns:
            sched_yield()
            self.yield_at_ns = monotonic_ns()
            if self.yield_at_ns - begun > YIELD_LONG_NS:
                self.yield_at_ns += YIELD_SHARE * (self.yield_at_ns - begun)
        return 0

    cdef SendStatus send_short(self, Connection c, int64_t now_ms, int* whole) noexcept:
        cdef:
            iovec vectors[GATHER_MAX]
            int count = 0
            ssize_t sent, left
            int64_t now_ns, began_ns = self.idle_since_ns
            Request* request = c.first
        while request != NULL and count < GATHER_MAX:
            if request.state != REQUEST_COMPLETE or request.silent or request.fetch_reply != NULL:
                break
            vectors[count].iov_base = request.response + request.sent
            vectors[count].iov_len = request.response_size - request.sent
            count += 1
            request = request.next
        if count == 1:
            sent = c.transport.send(vectors[0].iov_base, vectors[0].iov_len, False)
        else:
            sent = c.transport.send_all(vectors, count)
        if sent == TRANSPORT_BLOCKED:
            note_blocked(c, now_ms)
            note_begun(c.first, began_ns)
            return SEND_BLOCKED
        if sent < 0:
            return SEND_FAILED
        c.blocked_since_ms = -1
        self.short_response_ms = now_ms
        self.bytes_sent += sent
        c.client.bytes_out += sent
        now_ns = self.idle_since_ns = monotonic_ns()
        request = c.first
        while sent > 0:
            left = request.response_size - request.sent
            if sent < left:
                request.sent += sent
                note_begun(request, began_ns)
                return SENT_SOME
            sent -= left
            whole[0] += 1
            self.note_sent(request, began_ns, now_ns)
            request = request.next
        return SENT_ALL

    cdef void note_sent(self, const Request* request, int64_t began_ns, int64_t now_ns) noexcept:
        cdef RequestTimes times = self.times
        cdef int row
        cdef int64_t local_end = request.waits_ns if request.waits_ns else request.ready_ns
        cdef int64_t asked_for = 0     # time that the client allows for waiting for data
        if times is None:
            return
        row = ROW_FOLLOWER if request.of_follower else row_of(request.api_key)
        if request.sending_ns:
            began_ns = request.sending_ns
        began_ns = max(began_ns, request.ready_ns)
        times.count_version(row, request.api_version)
        times.record(row, STAGE_TOTAL, now_ns - request.arrived_ns)
        times.record(row, STAGE_QUEUE, request.taken_ns - request.arrived_ns)
        times.record(row, STAGE_LOCAL, local_end - request.taken_ns)
        if request.waits_ns:
            times.record(row, STAGE_REMOTE, request.ready_ns - request.waits_ns)
        if request.throttle_ms:
            times.record(row, STAGE_THROTTLE, <int64_t>request.throttle_ms * 1000000)
        times.record(row, STAGE_RESPONSE_QUEUE, began_ns - request.ready_ns)
        times.record(row, STAGE_SEND, now_ns - began_ns)
        if self.slow_ns >= 0:
            if request.api_key == API_FETCH and request.waits_ns:
                asked_for = request.ready_ns - request.waits_ns
            if now_ns - request.arrived_ns - asked_for > self.slow_ns:
                self.note_slow(request, began_ns, now_ns)

    cdef SendStatus send_long(self, Connection c, int64_t now_ms) noexcept:
        cdef int64_t sent = 0
        cdef bint shared = now_ms - self.short_response_ms < SHORT_RESPONSES_MS
        cdef int64_t budget = SHARED_TURN_BYTES - self.long_bytes if shared else TURN_BYTES
        cdef SendStatus status = SENT_SOME
        note_begun(c.first, self.idle_since_ns)
        if budget > 0:
            status = send_reply(c.transport, c.first, <FetchReply>c.first.fetch_reply, budget, &sent)
            self.bytes_sent += sent
            c.client.bytes_out += sent
            if shared:
                self.long_bytes += sent
        if sent:
            c.blocked_since_ms = -1
        if status == SEND_BLOCKED:
            note_blocked(c, now_ms)
        elif status == SENT_ALL:
            self.idle_since_ns = monotonic_ns()
            self.note_sent(c.first, c.first.sending_ns, self.idle_since_ns)
        return status


cdef inline void note_begun(Request* request, int64_t now_ns) noexcept:
    if request.sending_ns == 0:
        request.sending_ns = max(now_ns, request.ready_ns)


cdef inline void note_blocked(Connection c, int64_t now_ms) noexcept:
    c.writable = False
    if c.blocked_since_ms < 0:
        c.blocked_since_ms = now_ms
