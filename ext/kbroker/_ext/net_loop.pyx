"""The loop of a network process.

A turn waits for events, receives, parses frames where they lie, starts requests and sends answers. Per produce request
in the steady state: one recv and one send shared by what is pipelined, no Python object. Sockets are edge-triggered:
``readable`` and ``writable`` remember what the kernel said until a call proves otherwise.

Order on a connection: Produce requests may be in flight together; any other request starts only when all before it have
been answered and sent, and nothing behind it is looked at before its own answer is sent.
"""
import logging

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport memcpy
from cpython.ref cimport Py_DECREF, Py_INCREF
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close as close_fd

from kbroker._ext.connection cimport (
    FRAME_BAD_LENGTH,
    FRAME_PARTIAL,
    FRAME_READY,
    RECEIVE_EOF,
    RECEIVE_ERROR,
    RECEIVE_STARVED,
    RECEIVED,
    FrameStatus,
    ReceiveStatus,
)
from kbroker._ext.descriptors cimport MSG_PRODUCE_RESULT, MSG_WAKE, Envelope, ProduceResult
from kbroker._ext.fetch_send cimport SEND_BLOCKED, SEND_FAILED, SENT_ALL, SENT_SOME, SendStatus, copy_small, send_reply
from kbroker._ext.lane cimport Lane
from kbroker._ext.requests cimport REQUEST_ANSWERED, REQUEST_WAITING, reserve_response, token_of
from kbroker._ext.wire cimport (
    READ_OK,
    Reader,
    load_i16,
    load_i32,
    make_reader,
    read_i16,
    read_i32,
    read_string,
    skip_tagged_fields,
    store_i32,
)

from kbroker._ext.connection import refused_reason
from kbroker._ext.produce_path import ProduceDecodeError
from kbroker._ext.fetch_decode import FetchDecodeError

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int count, int timeout_ms)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
        EPOLLHUP
        EPOLLERR
    uint32_t EPOLLET

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        void* msg_name
        unsigned int msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    enum:
        MSG_NOSIGNAL

log = logging.getLogger(__name__)

cdef enum:
    EVENTS_MAX = 256
    # BOUND: bytes received from one connection in one turn, so that none starves the others.
    TURN_BYTES = 1048576
    # BOUND: produce requests in flight on one connection.
    IN_FLIGHT_MAX = 256
    GATHER_MAX = 64
    API_WIDTH = 96              # as metrics.catalog has it: what is not below counts in the last cell

    API_PRODUCE = 0
    API_FETCH = 1
    FETCH_FIRST = 4
    FETCH_LAST = 18
    FETCH_FLEXIBLE = 12
    PRODUCE_FIRST = 3
    PRODUCE_LAST = 13
    PRODUCE_FLEXIBLE = 9
    ERROR_NOT_LEADER_OR_FOLLOWER = 6
    ERROR_REQUEST_TIMED_OUT = 7

    # An io worker that has not answered a produce for this long beyond the client's own timeout is not waited for.
    PRODUCE_PATIENCE_MS = 30000


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


class CloseConnection(Exception):
    """The connection is to be closed; the text says why."""


cdef class NetLoop:
    """Connections of one network process.

    dispatch(connection, token, frame): called for every request that is not served here; answer it with ``answer``.
    on_close(connection, reason): called once a connection is closed; reason is None when the peer closed it.
    """

    def __cinit__(self, Arena arena, RequestTable requests, ProducePath produce, FetchEngine fetch, int64_t frame_max, dispatch, on_close):
        self._epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        self._connections = {}
        self._readers = {}
        self._lanes = []
        self._ready = []
        self._dirty = []
        self._starved = []
        self._arena = arena
        self._requests = requests
        self.produce = produce
        self.fetch = fetch
        self._frame_max = frame_max
        self._dispatch = dispatch
        self._on_close = on_close

    # -- descriptors ---------------------------------------------------------------------------------------------

    def add_reader(self, int fd, callback):
        """Call back in the turn in which ``fd`` becomes readable (level-triggered)."""
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.fd = fd
        if epoll_ctl(self._epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self._readers[fd] = callback

    def add_connection(self, int fd, int listener, peer_host, peer_port):
        """Take over a connected, non-blocking socket; the loop closes it."""
        cdef epoll_event event
        cdef Connection c = Connection(fd, listener, peer_host, peer_port, monotonic_ns() // 1000000)
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        event.data.fd = fd
        if epoll_ctl(self._epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self._connections[fd] = c
        c.in_ready = True
        self._ready.append(c)
        return c

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

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def requests_in_flight(self) -> int:
        return self._requests.in_use

    def add_lane(self, Lane lane):
        """Use ``lane`` for the io worker ``lane.peer_index``; lanes are added in index order."""
        cdef epoll_event event
        assert lane.peer_index == len(self._lanes), lane.peer_index
        event.events = EPOLLIN
        event.data.fd = lane.fd
        if epoll_ctl(self._epoll_fd, EPOLL_CTL_ADD, lane.fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self._lanes.append(lane)
        self._readers[lane.fd] = lane

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
            if envelope.kind == MSG_PRODUCE_RESULT:
                self.take_results(body, size, envelope.count)
            elif envelope.kind == MSG_WAKE:
                assert <Py_ssize_t>(envelope.count * sizeof(int32_t)) <= size, (envelope.count, size)
                for i in range(envelope.count):
                    self.fetch.wake((<const int32_t*>body)[i], self.now_ms)
                self.drain_fetches()

    # -- the turn ------------------------------------------------------------------------------------------------

    def turn(self, int timeout_ms):
        """Wait for events and serve them. Answers that become ready are sent by ``flush_answers``."""
        cdef:
            epoll_event events[EVENTS_MAX]
            int count, i
            uint32_t mask
            Connection c
            list again
        if self._ready:
            timeout_ms = 0
        with nogil:
            count = epoll_wait(self._epoll_fd, events, EVENTS_MAX, timeout_ms)
        self.now_ms = monotonic_ns() // 1000000
        for i in range(count):
            found = self._connections.get(events[i].data.fd)
            if found is None:
                callback = self._readers.get(events[i].data.fd)
                if type(callback) is Lane:
                    self.read_lane(<Lane>callback)
                elif callback is not None:
                    callback()
                continue
            c = <Connection>found
            mask = events[i].events
            if mask & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                c.peer_closed = True
            if mask & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                c.readable = True
            if mask & EPOLLOUT:
                c.writable = True
            self.serve(c)
        if self._ready:
            again = self._ready
            self._ready = []
            for c in again:
                c.in_ready = False
                self.serve(c)
        if self._starved and self._arena.allocated < self._arena.size:
            again = self._starved
            self._starved = []
            for c in again:
                self.serve(c)

    cdef int serve(self, Connection c) except -1:
        """Send what is answered, read what is there; a failure costs this connection only."""
        if c.closed:
            return 0
        try:
            if c.first != NULL and c.writable:
                self.flush(c)
            if not c.closed:
                self.parse(c)
        except CloseConnection as reason:
            self.close_connection(c, str(reason))
        except ProduceDecodeError as reason:
            self.close_connection(c, f"a malformed Produce request: {reason}")
        except FetchDecodeError as reason:
            self.close_connection(c, f"a malformed Fetch request: {reason}")
        return 0

    cdef int parse(self, Connection c) except -1:
        """Handle whole frames and receive more until there is nothing to do or this connection's turn is over."""
        cdef:
            const uint8_t* frame = NULL
            int32_t size = 0
            int64_t received, taken = 0
            FrameStatus status
            ReceiveStatus got
        while not c.closed:
            if c.exclusive or c.request_count >= IN_FLIGHT_MAX or self._draining:
                return 0
            status = c.next_frame(self._arena.base, self._frame_max, &frame, &size)
            if status == FRAME_READY:
                if c.request_count > 0 and not is_produce(frame):
                    return 0  # runs alone: continued by flush
                c.start += size + 4
                c.frame_size_last = size + 4
                if c.frame_size_last > c.frame_size_max:
                    c.frame_size_max = c.frame_size_last
                c.partial_since_ms = -1
                c.last_active_ms = self.now_ms
                c.had_request = True
                self.handle_frame(c, frame, size)
                continue
            if status == FRAME_BAD_LENGTH:
                raise CloseConnection(
                    refused_reason(load_i32(self._arena.base + c.block.offset + c.start), self._frame_max)
                )
            c.drop_empty_block(self._arena)
            if not c.readable:
                break
            if taken >= TURN_BYTES:
                if not c.in_ready:
                    c.in_ready = True
                    self._ready.append(c)
                break
            received = 0
            got = c.receive(self._arena, self._frame_max, &received)
            if got == RECEIVED:
                taken += received
                self.bytes_received += received
            elif got == RECEIVE_EOF or got == RECEIVE_ERROR:
                self.close_connection(c, None)
            elif got == RECEIVE_STARVED:
                self.starved_total += 1
                self._starved.append(c)
                break
        if not c.closed:
            c.drop_empty_block(self._arena)
            if c.block != NULL and c.end > c.start and c.partial_since_ms < 0:
                c.partial_since_ms = self.now_ms
        return 0

    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        """Start one request. The frame was consumed; its bytes stay until the block is released."""
        cdef:
            int16_t api_key = load_i16(frame)
            int16_t version = load_i16(frame + 2)
            Request* request
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
            return self.start_fetch(c, request, frame, size)
        self._dispatch(c, token_of(request), (<const char*>frame)[:size])
        return 0

    # -- produce -------------------------------------------------------------------------------------------------

    cdef int start_produce(
        self, Connection c, const uint8_t* frame, int32_t size, int16_t version, int32_t correlation_id
    ) except -1:
        cdef:
            Reader r = make_reader(frame + 8, size - 8)
            const uint8_t* client_id = NULL
            int32_t client_id_size = 0
            int16_t acks = 0
            Request* request
        if read_string(&r, &client_id, &client_id_size) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad client id")
        if version >= PRODUCE_FLEXIBLE and skip_tagged_fields(&r) != READ_OK:
            raise CloseConnection("a malformed Produce request: bad header tags")
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
            self.produce.start(request, &r, &acks)
        except:
            request.parts_left = 0  # nothing of it is on its way
            raise
        request.silent = acks == 0
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
        else:
            self.produce.encode(request)
        return self.answered(request)

    cdef int take_results(self, const uint8_t* body, Py_ssize_t size, uint32_t count) except -1:
        """A PRODUCE_RESULT message: ``count`` structs, then the error texts in order."""
        cdef:
            const ProduceResult* results = <const ProduceResult*>body
            const uint8_t* text = body + count * sizeof(ProduceResult)
            const uint8_t* end = body + size
            Request* request
            uint32_t i
        assert <Py_ssize_t>(count * sizeof(ProduceResult)) <= size, (count, size)
        for i in range(count):
            assert results[i].error_text_size <= end - text
            request = self.produce.take_result(&results[i], text)
            text += results[i].error_text_size
            if request != NULL:
                self.all_parts_done(request)
        return 0

    def fail_worker(self, int worker):
        """An io worker was restarted: what it had not answered is answered with a retriable error."""
        cdef uint32_t index = 0
        cdef Request* request = self._requests.at(0)
        self.produce.drop_bundle(worker)
        while request != NULL:
            if request.parts_left > 0:
                self.fail_parts(request, worker, ERROR_NOT_LEADER_OR_FOLLOWER)
            index += 1
            request = self._requests.at(index)

    cdef int fail_parts(self, Request* request, int worker, int16_t error_code) except -1:
        """Answer a request's open partitions of one io worker that will not answer any more."""
        cdef int32_t i
        for i in range(request.part_count):
            if request.parts[i].worker == worker:
                request.parts[i].worker = -1
                request.parts[i].error_code = error_code
                request.parts_left -= 1
        return self.all_parts_done(request) if request.parts_left == 0 else 0

    cdef int all_parts_done(self, Request* request) except -1:
        if request.connection == NULL:
            return self.end_request(request)  # its client is gone
        if request.state == REQUEST_WAITING:
            return self.finish_produce(request)
        return 0  # answered at its timeout, not sent yet: flush ends it

    # -- fetch ---------------------------------------------------------------------------------------------------

    cdef int start_fetch(self, Connection c, Request* request, const uint8_t* frame, int32_t size) except -1:
        cdef:
            Reader r = make_reader(frame + 8, size - 8)
            const uint8_t* client_id = NULL
            int32_t client_id_size = 0
            FetchReply reply
        if read_string(&r, &client_id, &client_id_size) != READ_OK:
            raise CloseConnection("a malformed Fetch request: bad client id")
        if request.api_version >= FETCH_FLEXIBLE and skip_tagged_fields(&r) != READ_OK:
            raise CloseConnection("a malformed Fetch request: bad header tags")
        reply = self.fetch.handle(
            r.pos, r.end - r.pos, request.api_version, request.correlation_id, token_of(request), self.now_ms
        )
        if reply is not None:
            self.finish_fetch(request, reply)
        else:
            request.parked = True
        return self.drain_fetches()

    cdef int finish_fetch(self, Request* request, FetchReply reply) except -1:
        cdef int copied = copy_small(request, reply)
        request.parked = False
        if copied == 0:
            Py_INCREF(reply)
            request.fetch_reply = <void*>reply
        else:
            reply.release()
            if copied < 0:
                request.silent = True
                request.close_after = True
        return self.answered(request)

    cdef int drain_fetches(self) except -1:
        """Answer the parked fetches that were completed."""
        cdef FetchReply reply
        cdef Request* request
        while True:
            reply = self.fetch.next_completed()
            if reply is None:
                return 0
            request = self._requests.find(reply.token)
            if request == NULL or request.connection == NULL or request.state != REQUEST_WAITING:
                reply.release()
            else:
                self.finish_fetch(request, reply)

    cdef int expire_fetches(self) except -1:
        """Answer the parked fetches whose time is up."""
        cdef int64_t deadline = self.fetch.next_deadline_ms()
        cdef int64_t now
        if deadline >= 0:
            now = monotonic_ns() // 1000000
            if deadline <= now:
                self.now_ms = now
                self.fetch.expire(now)
        return self.drain_fetches()  # also what a change of topics has completed

    def next_fetch_deadline_ms(self) -> int:
        """When expire_fetches has something to do; -1 when nothing is parked."""
        return self.fetch.next_deadline_ms()

    cdef int send_fetch(self, Connection c, Request* request) except -1:
        """Send more of a large fetch reply, at most TURN_BYTES at a time."""
        cdef int64_t sent = 0
        cdef FetchReply reply = <FetchReply>request.fetch_reply
        cdef SendStatus status = send_reply(c.fd, request, reply, TURN_BYTES, &sent)
        self.bytes_sent += sent
        if sent:
            c.blocked_since_ms = -1
        if status == SENT_ALL:
            c.pop()
            self.end_request(request)
        elif status == SENT_SOME:
            if not c.in_ready:
                c.in_ready = True
                self._ready.append(c)
        elif status == SEND_BLOCKED:
            c.writable = False
            if c.blocked_since_ms < 0:
                c.blocked_since_ms = self.now_ms
        elif status == SEND_FAILED:
            self.close_connection(c, None)
        return status == SENT_ALL

    # -- answers -------------------------------------------------------------------------------------------------

    def answer(self, uint64_t token, response):
        """Answer a dispatched request with response bytes (without length prefix); None closes the connection."""
        cdef Request* request = self._requests.find(token)
        cdef Py_ssize_t size
        cdef const unsigned char[::1] view
        if request == NULL or request.connection == NULL or request.state != REQUEST_WAITING:
            return
        if response is None:
            request.close_after = True
            request.silent = True
        else:
            view = response
            size = view.shape[0]
            reserve_response(request, size + 4)
            store_i32(request.response, <int32_t>size)
            if size:
                memcpy(request.response + 4, &view[0], size)
            request.response_size = size + 4
        self.answered(request)

    cdef int answered(self, Request* request) except -1:
        cdef Connection c = <Connection>request.connection
        request.state = REQUEST_ANSWERED
        if not c.in_dirty:
            c.in_dirty = True
            self._dirty.append(c)
        return 0

    def end_turn(self):
        """Answer fetches whose time is up, send what this turn has answered and collected.

        True when an io worker's lane is full: come back soon.
        """
        self.expire_fetches()
        while self._dirty or self.produce.queued > 0:
            self.flush_answers()
            self.produce.send_bundles(self._lanes)
            if not self._dirty:
                break
        return self.produce.queued > 0

    cdef int flush_answers(self) except -1:
        """Send answers. A connection that is free again goes on with its next frame."""
        cdef Connection c
        cdef list dirty
        while self._dirty:
            dirty = self._dirty
            self._dirty = []
            for c in dirty:
                c.in_dirty = False
                if not c.closed:
                    self.serve(c)
        return 0

    cdef int flush(self, Connection c) except -1:
        """Send answers in request order until one is missing or the socket is full."""
        cdef Request* request
        while c.first != NULL and c.first.state == REQUEST_ANSWERED and c.writable and not c.closed:
            request = c.first
            if request.silent:
                c.pop()
                if request.close_after:
                    self.end_request(request)
                    raise CloseConnection("a request that cannot be answered")
                self.end_request(request)
            elif request.fetch_reply != NULL:
                if not self.send_fetch(c, request):
                    break
            else:
                self.send_some(c)
        if c.first == NULL:
            c.exclusive = False
        return 0

    cdef int send_some(self, Connection c) except -1:
        """One gathered write of the responses at the head of the queue."""
        cdef:
            iovec vectors[GATHER_MAX]
            msghdr message
            int count = 0
            ssize_t sent, left
            Request* request = c.first
        while request != NULL and count < GATHER_MAX:
            if request.state != REQUEST_ANSWERED or request.silent or request.fetch_reply != NULL:
                break
            vectors[count].iov_base = request.response + request.sent
            vectors[count].iov_len = request.response_size - request.sent
            count += 1
            request = request.next
        if count == 1:
            sent = send(c.fd, vectors[0].iov_base, vectors[0].iov_len, MSG_NOSIGNAL)
        else:
            message.msg_name = NULL
            message.msg_namelen = 0
            message.msg_iov = vectors
            message.msg_iovlen = count
            message.msg_control = NULL
            message.msg_controllen = 0
            message.msg_flags = 0
            sent = sendmsg(c.fd, &message, MSG_NOSIGNAL)
        if sent < 0:
            if errno == EAGAIN:
                c.writable = False
                if c.blocked_since_ms < 0:
                    c.blocked_since_ms = self.now_ms
            elif errno != EINTR:
                self.close_connection(c, None)
            return 0
        c.blocked_since_ms = -1
        self.bytes_sent += sent
        while sent > 0:
            request = c.first
            left = request.response_size - request.sent
            if sent < left:
                request.sent += sent
                return 0
            sent -= left
            c.pop()
            self.end_request(request)
        return 0

    cdef int end_request(self, Request* request) except -1:
        """Let go of a request that left its connection, unless an io worker still uses its bytes."""
        request.connection = NULL
        if request.parked:
            request.parked = False
            self.fetch.cancel(token_of(request))
        if request.fetch_reply != NULL:
            (<FetchReply>request.fetch_reply).release()
            Py_DECREF(<FetchReply>request.fetch_reply)
            request.fetch_reply = NULL
        if request.parts_left > 0:
            return 0
        if request.block != NULL:
            self._arena.release(request.block)
            request.block = NULL
        self._requests.release(request)
        return 0

    # -- the end of a connection ---------------------------------------------------------------------------------

    cdef int close_connection(self, Connection c, object reason) except -1:
        """Close now. Answers not sent are dropped; arena bytes live on until the io workers are done with them."""
        cdef Request* request
        if c.closed:
            return 0
        c.closed = True
        self.closed_total += 1
        del self._connections[c.fd]
        close_fd(c.fd)
        while c.first != NULL:
            request = c.pop()
            self.end_request(request)
        if c.block != NULL:
            self._arena.release(c.block)
            c.block = NULL
        if reason is not None:
            self.refused_total += 1
        self._on_close(c, reason)
        return 0

    def close(self, Connection c, reason):
        """Close a connection from a handler."""
        self.close_connection(c, reason)

    def set_timeouts(self, int64_t idle_ms, int64_t first_request_ms, int64_t request_ms, int64_t write_ms):
        """When sweep closes a connection: nothing asked, no first request, a request not whole, nothing read."""
        self._idle_ms = idle_ms
        self._first_request_ms = first_request_ms
        self._request_ms = request_ms
        self._write_ms = write_ms

    def sweep(self):
        """Close what is idle, half sent or not read for too long, and answer produces nobody answers."""
        cdef Connection c
        cdef int64_t now = monotonic_ns() // 1000000
        self.now_ms = now
        for c in list(self._connections.values()):
            if c.partial_since_ms >= 0 and now - c.partial_since_ms > self._request_ms:
                self.close_connection(c, f"a request that was not whole after {self._request_ms} ms")
            elif c.blocked_since_ms >= 0 and now - c.blocked_since_ms > self._write_ms:
                self.close_connection(c, f"a peer that read nothing for {self._write_ms} ms")
            elif not c.had_request and now - c.last_active_ms > self._first_request_ms:
                self.close_connection(c, f"no request within {self._first_request_ms} ms")
            elif c.first == NULL and self._idle_ms > 0 and now - c.last_active_ms > self._idle_ms:
                self.close_connection(c, None)
        self.expire_requests(monotonic_ns())
        if self._starved and self._requests.in_use == 0:
            self.relieve_arena()

    cdef int relieve_arena(self) except -1:
        """Every block is held by requests that are not whole and nothing else will free one: close the oldest of them."""
        cdef Connection c, oldest = None
        for c in self._connections.values():
            if c.partial_since_ms >= 0 and (oldest is None or c.partial_since_ms < oldest.partial_since_ms):
                oldest = c
        if oldest is not None:
            self.close_connection(oldest, "the request arena is full of requests that are not whole")
        return 0

    cdef int expire_requests(self, int64_t now_ns) except -1:
        cdef uint32_t index = 0
        cdef int32_t i
        cdef Request* request = self._requests.at(0)
        while request != NULL:
            if (
                request.state == REQUEST_WAITING
                and request.connection != NULL
                and request.parts_left > 0
                and now_ns - request.started_ns > <int64_t>PRODUCE_PATIENCE_MS * 1000000
            ):
                for i in range(request.part_count):
                    if request.parts[i].worker >= 0:
                        request.parts[i].error_code = ERROR_REQUEST_TIMED_OUT
                self.finish_produce(request)
            index += 1
            request = self._requests.at(index)
        return 0

    def stop_reading(self):
        """Start no further request; what is in flight goes on."""
        self._draining = True

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

    def close_all(self):
        """Close every connection; the process ends."""
        for c in list(self._connections.values()):
            self.close_connection(c, None)
        close_fd(self._epoll_fd)
        self._epoll_fd = -1


cdef inline bint is_produce(const uint8_t* frame) noexcept nogil:
    cdef int16_t version = load_i16(frame + 2)
    return load_i16(frame) == API_PRODUCE and PRODUCE_FIRST <= version <= PRODUCE_LAST
