"""The connections of a network process: waiting, receiving, framing, sending, closing.

A turn waits for events, receives into the arena and passes complete frames to ``handle_frame`` in place; responses are
sent in request order (``responses``). Sockets are edge-triggered: ``readable`` and ``writable`` remember what the kernel
said until a call proves otherwise. ``net_loop`` knows what requests are. A connection may wait for memory
(``scarcity``), for heavy requests to complete or for the end of a throttle (``admission``), for its next turn
(``_ready``), or for its part of the bytes of long responses (``_sending``), for which nobody else waits.

Time: a connection is served for SLICE_NS per turn, less if many have work, and then queues behind the others.

A connection that ends (``end_connection``) starts no further requests. When all its requests have been responded to,
the sending side is shut down and whatever the peer still sends is discarded until the peer closes: closing a socket
with unread bytes would make the kernel discard responses in transit.

Order on a connection: frames that ``may_pipeline`` allows may be in flight together; any other starts only when the
responses to all earlier ones have been sent, and nothing after it is looked at before its own response has been sent.
"""
from cpython.ref cimport Py_DECREF
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from posix.unistd cimport close as close_fd

from kbroker._ext.base.socket_api cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLLET,
    EPOLLIN,
    EPOLLOUT,
    EPOLLRDHUP,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    monotonic_ns,
)
from kbroker._ext.base.wire cimport load_i32
from kbroker._ext.fetch.fetch_reply cimport FetchReply
from kbroker._ext.fetch.fetch_send cimport SEND_FAILED, SENT_ALL, SENT_SOME, SendStatus
from kbroker._ext.network.connection cimport (
    FRAME_BAD_LENGTH,
    FRAME_READY,
    PHASE_SERVING,
    RECEIVE_EOF,
    RECEIVE_ERROR,
    RECEIVE_STARVED,
    RECEIVED,
    FrameStatus,
    ReceiveStatus,
    is_known,
)
from kbroker._ext.shared.client_figures cimport ClientFigures
from kbroker._ext.shared.request_times cimport RequestTimes
from kbroker._ext.sockets.requests cimport REQUEST_COMPLETE
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, Transport
from kbroker._ext.sockets.verdicts cimport Verdicts

from collections import deque

from kbroker._ext.network.connection import CloseConnection, rejection_reason

cdef enum:
    EVENTS_MAX = 256
    # BOUND: time for one connection per turn, so that none starves the others, and for all that have work, which is
    # divided into slices. A request that has started is not interrupted.
    SLICE_NS = 2000000
    TURN_NS = 8000000
    SLICE_NS_MIN = 50000
    # BOUND: bytes that a connection receives at once if many have work, and if few do.
    RECEIVE_BYTES = 65536
    RECEIVE_BYTES_ALONE = 1073741824
    MANY = 16
    # BOUND: bytes from an ending connection that are discarded at a time, and how often per turn.
    DISCARD_BYTES = 4096
    DISCARD_ROUNDS = 16
    # BOUND: requests in flight on one connection.
    IN_FLIGHT_MAX = 256


cdef class ConnectionLoop:
    """Connections of one network process.

    on_close(connection, reason): called when a connection has been closed; reason is None if the peer closed it.
    """

    def __cinit__(self, Arena arena, RequestTable requests, int64_t frame_max, on_close, *rest):
        self._epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        self._connections = {}
        self._readers = {}
        self._by_listener = {}
        self._ready = deque()
        self._sending = deque()
        self._responses = Responses()
        self._memory = MemoryQueue(arena)
        self._heavy = HeavyRequests(arena, frame_max)
        self._muted = MutedConnections()
        self._patience = Patience()
        self.slice_ns_max = SLICE_NS
        self._receive_bytes = RECEIVE_BYTES_ALONE
        self._arena = arena
        self._requests = requests
        self._frame_max = self.unknown_frame_max = frame_max
        self._on_close = on_close

    # -- requests: implemented by NetLoop ---

    cdef int handle_frame(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        """Start one request. The frame has been consumed; its bytes stay valid until the block is released.

        Raises CloseConnection for bytes that are not a request, or not one that the connection's phase allows. Before
        authentication is complete, a frame may be shorter than any header.
        """
        raise NotImplementedError

    cdef bint may_pipeline(self, const uint8_t* frame) noexcept nogil:
        """Whether a frame may start while earlier ones on its connection are in flight."""
        return False

    cdef bint is_heavy(self, const uint8_t* frame, int32_t size) noexcept nogil:
        """Whether a frame is decoded into many objects."""
        return False

    cdef int forget_parked(self, Request* request) except -1:
        """Drop a parked request: its connection is closed."""
        raise NotImplementedError

    cdef int forget_express(self, Request* request) except -1:
        """Drop a request that was forwarded undecoded: its connection is closed."""
        raise NotImplementedError

    cdef int forget_follower(self, Connection c) except -1:
        """End the session of a follower: its connection is closed."""
        raise NotImplementedError

    cdef int on_readable(self, object reader) except -1:
        """Called when a file descriptor that is not a connection is readable."""
        return self.call_out(reader, ())

    # -- descriptors ---

    def add_reader(self, int fd, callback):
        """Call ``callback`` in each turn in which ``fd`` is readable (level-triggered)."""
        cdef epoll_event event
        event.events = EPOLLIN
        event.data.u64 = <uint32_t>fd
        if epoll_ctl(self._epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self._readers[fd] = callback

    def add_connection(
        self, int fd, int listener, peer_host, peer_port, Verdicts access not None, uint8_t phase=PHASE_SERVING
    ):
        """Take over a connected, non-blocking socket; the loop closes it. access, phase: the initial ones."""
        return self.add_transport(Transport(fd), listener, peer_host, peer_port, access, phase)

    def add_transport(
        self, Transport transport not None, int listener, peer_host, peer_port, Verdicts access not None,
        uint8_t phase=PHASE_SERVING,
    ):
        """The same for a socket with a transport of its own, such as an encrypted one."""
        cdef epoll_event event
        cdef int fd = transport.fd
        cdef int64_t now_ms = monotonic_ns() // 1000000
        cdef Connection c = Connection(transport, listener, peer_host, peer_port, access, now_ms)
        c.phase = phase
        c.begin_counting(self._responses.clients)
        self._added_total += 1
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        event.data.u64 = c.event_key = self._added_total << 32 | <uint32_t>fd
        if epoll_ctl(self._epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self._connections[fd] = c
        self._by_listener[listener] = self._by_listener.get(listener, 0) + 1
        self.continue_later(c)
        return c

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def by_listener(self):
        """{index of a listener: its open connections}."""
        return dict(self._by_listener)

    def peer_hosts(self):
        """{host: connections}."""
        cdef Connection c
        counts = {}
        for c in self._connections.values():
            counts[c.peer_host] = counts.get(c.peer_host, 0) + 1
        return counts

    @property
    def requests_in_flight(self) -> int:
        return self._requests.in_use

    @property
    def starved_count(self) -> int:
        """Connections that wait for arena memory."""
        return len(self._memory.small) + len(self._memory.line)

    @property
    def starved_total(self) -> int:
        return self._memory.starved_total

    @property
    def heavy_bytes(self) -> int:
        """Bytes of the heavy requests in progress."""
        return self._heavy.bytes

    @property
    def bytes_sent(self) -> int:
        return self._responses.bytes_sent

    def keep_times(self, RequestTimes times, ClientFigures clients=None):
        """Note there how long requests take, and what clients do, from the first connection on."""
        self._responses.times = times
        self._responses.clients = clients or self._responses.clients

    # -- the turn ---

    def turn(self, int timeout_ms):
        """Wait for events and serve them. Responses that become ready are sent by ``flush_responses``."""
        cdef:
            epoll_event events[EVENTS_MAX]
            int count, i
            int64_t now_ns
            Connection c
            # Connections added during this turn wait for the next one.
            Py_ssize_t again = len(self._ready)
            Py_ssize_t sending = len(self._sending)
        if self._responses.long_bytes:
            self._responses.let_others_run()
        if again or sending or self._responses.dirty or self._memory.may_retry():
            timeout_ms = 0
        elif self._muted.next_end_ms >= 0:
            timeout_ms = <int>min(
                <int64_t>timeout_ms, max(<int64_t>0, self._muted.next_end_ms - monotonic_ns() // 1000000))
        now_ns = monotonic_ns()
        with nogil:
            count = epoll_wait(self._epoll_fd, events, EVENTS_MAX, timeout_ms)
        self.idle_ns -= now_ns
        now_ns = monotonic_ns()
        self.idle_ns += now_ns
        self.now_ms = now_ns // 1000000
        if 0 <= self._muted.next_end_ms <= self.now_ms:
            for c in self._muted.take_due(self.now_ms):
                self.continue_later(c)
        self._slice_ns = min(self.slice_ns_max, max(<int64_t>SLICE_NS_MIN, TURN_NS // max(1, count + again)))
        self._receive_bytes = RECEIVE_BYTES if count + again > MANY else RECEIVE_BYTES_ALONE
        if sending and self._sending_waits:  # in the last turn, others have sent all that a turn may
            sending -= 1
            self.serve_next(self._sending)
        for i in range(count):
            found = self._connections.get(<int32_t>events[i].data.u64)
            if found is None:
                reader = self._readers.get(<int32_t>events[i].data.u64)
                if reader is not None:
                    self.on_readable(reader)
                continue
            c = <Connection>found
            if c.take_event(&events[i]) and not c.in_ready:
                self.serve(c)
        for i in range(again):
            self.serve_next(self._ready)
        while sending > 0 and self._responses.has_room_for_long():
            sending -= 1
            self.serve_next(self._sending)
        self._sending_waits = sending > 0
        if self._memory.may_retry():
            self.retry_starved()

    cdef int serve_next(self, object queue) except -1:
        cdef Connection c = queue.popleft()
        c.in_ready = False
        return self.serve(c)

    cdef int serve(self, Connection c) except -1:
        """Send ready responses and read what has arrived. A failure affects only this connection."""
        if c.closed:
            return 0
        try:
            if c.first != NULL and c.writable:
                self.flush(c)
            if c.ending_since_ms >= 0:
                self.finish_ending(c)
            elif not c.closed:
                self.parse(c)
            if c.peer_closed and not c.closed and c.first != NULL and c.first.parked:
                # Nothing more is read from it, so otherwise it would stay until the fetch's deadline, which the client
                # chooses.
                self.close_connection(c, None)
        except CloseConnection as reason:
            self.close_connection(c, str(reason))
        return 0

    cdef int parse(self, Connection c) except -1:
        """Handle complete frames and receive more, until nothing is left or this connection's slice is used up."""
        cdef:
            const uint8_t* frame = NULL
            int32_t size = 0
            # No request changes the phase while this runs: before it is served, they run alone.
            int64_t frame_max = self._frame_max if is_known(c) else self.unknown_frame_max
            int64_t received, now_ns = monotonic_ns(), until = now_ns + self._slice_ns
            bint begun = False
            FrameStatus status
            ReceiveStatus got
        while not c.closed:
            if c.exclusive or c.request_count >= IN_FLIGHT_MAX or c.held_back or self._draining:
                return 0
            if c.ending_since_ms >= 0:
                return 0
            if c.muted_until_ms:
                c.drop_empty_block(self._arena)  # others need it meanwhile
                return 0
            if begun:
                now_ns = monotonic_ns()
                if now_ns >= until:
                    self.continue_later(c)
                    break
            status = c.next_frame(self._arena.base, frame_max, &frame, &size)
            if status == FRAME_READY:
                if c.request_count > 0 and (not is_known(c) or not self.may_pipeline(frame)):
                    return 0  # runs alone: continued by flush
                if self.is_heavy(frame, size) and not self._heavy.begin(c, size):
                    return 0  # continued when another one completes
                c.start += size + 4
                c.frame_size_last = size + 4
                if c.frame_size_last > c.frame_size_max:
                    c.frame_size_max = c.frame_size_last
                c.partial_since_ms = -1
                c.last_active_ms = self.now_ms
                if not c.had_request:
                    c.note_first_request(frame, size)
                self.frame_ns = now_ns
                self.handle_frame(c, frame, size)
                begun = True
                continue
            if status == FRAME_BAD_LENGTH:
                size = load_i32(self._arena.base + c.block.offset + c.start)
                raise CloseConnection(rejection_reason(size, frame_max, is_known(c)))
            c.drop_empty_block(self._arena)
            if not c.readable:
                break
            received = 0
            got = c.receive(
                self._arena, frame_max, self._memory.may_use_large(c), self._receive_bytes, &received
            )
            if c.starved_since_ms >= 0 and got != RECEIVE_STARVED:
                c.starved_since_ms = -1
                self._memory.leave(c)
            if got == RECEIVED:
                begun = True
                c.received_ms = self.now_ms
                c.received_ns = now_ns
                self.bytes_received += received
            elif got == RECEIVE_EOF or got == RECEIVE_ERROR:
                self.close_connection(c, None)
            elif got == RECEIVE_STARVED:
                self._memory.enter(c, self.now_ms)
                break
        if not c.closed:
            c.drop_empty_block(self._arena)
            if c.block != NULL and c.end > c.start and c.partial_since_ms < 0:
                c.partial_since_ms = self.now_ms
        return 0

    cdef int continue_later(self, Connection c) except -1:
        """Queue it behind all others that have work."""
        return self.queue(c, self._ready)

    cdef int queue(self, Connection c, object queue) except -1:
        if not c.in_ready:
            c.in_ready = True
            queue.append(c)
        return 0

    cdef int retry_starved(self) except -1:
        """Serve the waiting connections after blocks were freed; those in line only as long as each gets its block."""
        cdef Connection c
        for c in self._memory.take_small():
            self.serve(c)
        while self._memory.line:
            c = self._memory.line[0]
            self.serve(c)
            if c.in_line:
                break
        return 0

    def mute(self, Connection c, int64_t until_ms):
        """Read no further request from it before this (monotonic) time.

        Requests in progress continue, and their responses carry the throttle time. A connection that is already muted
        stays muted until the later of the two times.
        """
        if self._muted.add(c, until_ms):
            self._memory.leave(c)

    def lighten(self, Connection c):
        """Note that a handler has forwarded the connection's request and now only waits for the result."""
        if c.heavy_bytes and not c.closed:
            self.heavy_over(c)

    cdef int heavy_over(self, Connection c) except -1:
        """Note that its heavy request no longer takes memory here, so that others may start."""
        for c in self._heavy.over(c):
            self.continue_later(c)
        return 0

    def relieve(self, int64_t now_ms):
        """Free memory that incomplete requests hold while others wait for it; to be called a few times per second."""
        self.now_ms = now_ms
        self.relieve_part(False)
        self.relieve_part(True)

    cdef int relieve_part(self, bint large) except -1:
        cdef Connection c
        for c in self._memory.relief(self._connections.values(), large, self.now_ms):
            self.close_connection(c, "the request arena is full and its request is incomplete")
        return 0

    # -- responses ---

    cdef int flush_responses(self) except -1:
        """Send ready responses. A connection that becomes free continues with its next frame, and may be dirty again.
        """
        cdef Connection c
        cdef list dirty = self._responses.dirty
        self._responses.dirty = []
        self._responses.idle_since_ns = monotonic_ns()
        for c in dirty:
            c.in_dirty = False
            if not c.closed:
                self.serve(c)
        return 0

    cdef int flush(self, Connection c) except -1:
        """Send responses in request order until one is not ready or the socket is full."""
        cdef Request* request
        cdef int i, whole
        while c.first != NULL and c.first.state == REQUEST_COMPLETE and c.writable and not c.closed:
            request = c.first
            if request.silent:
                c.pop()
                self._responses.note_sent(request, request.ready_ns, request.ready_ns)
                if request.close_after:
                    self.end_request(request)
                    raise CloseConnection(c.close_reason or "a request to which there is no response")
                self.end_request(request)
            elif request.fetch_reply != NULL:
                if not self.send_long(c):
                    break
            else:
                whole = 0
                if self._responses.send_short(c, self.now_ms, &whole) == SEND_FAILED:
                    self.close_connection(c, None)
                for i in range(whole):
                    self.end_request(c.pop())
        if c.first == NULL:
            c.exclusive = False
            c.last_active_ms = self.now_ms  # idle from here on
            if c.heavy_bytes:
                self.heavy_over(c)
        return 0

    cdef bint send_long(self, Connection c) except *:
        """Send from the long response at the head of its queue; returns whether it has been sent completely."""
        cdef SendStatus status = self._responses.send_long(c, self.now_ms)
        if status == SENT_ALL:
            self.end_request(c.pop())
        elif status == SENT_SOME:
            self.queue(c, self._sending)
        elif status == SEND_FAILED:
            self.close_connection(c, None)
        return status == SENT_ALL

    cdef int end_request(self, Request* request) except -1:
        """Release a request that was taken off its connection, unless an io worker still uses its bytes. A result that
        comes later finds nothing.
        """
        request.connection = NULL
        if request.parked:
            request.parked = False
            self.forget_parked(request)
        if request.express_worker >= 0:
            self.forget_express(request)
        if request.fetch_reply != NULL:
            (<FetchReply>request.fetch_reply).release()
            Py_DECREF(<FetchReply>request.fetch_reply)
            request.fetch_reply = NULL
        if request.parts_left > 0 and request.block != NULL:
            return 0
        if request.block != NULL:
            self._arena.release(request.block)
            request.block = NULL
        self._requests.release(request)
        return 0

    # -- the end of a connection ---

    cdef int end_connection(self, Connection c) except -1:
        """Start no further request from it, and close it when those in progress have been responded to."""
        if c.ending_since_ms >= 0 or c.closed:
            return 0
        c.ending_since_ms = self.now_ms
        c.starved_since_ms = c.partial_since_ms = -1
        self._memory.leave(c)
        return self._responses.look_at(c)

    cdef int finish_ending(self, Connection c) except -1:
        """Once all responses of an ending connection are sent, shut down sending and wait for the peer to close it."""
        cdef uint8_t unread[DISCARD_BYTES]
        cdef int i
        cdef ssize_t got
        if c.first != NULL or c.closed:
            return 0
        if not c.half_closed:
            c.half_closed = True
            c.transport.end_sending()
        for i in range(DISCARD_ROUNDS):
            if not c.readable:
                return 0
            got = c.transport.receive(unread, DISCARD_BYTES)
            if got == TRANSPORT_BLOCKED:
                c.readable = False
            elif got <= 0:
                return self.close_connection(c, None)
        return self.continue_later(c) if c.readable else 0

    cdef int close_connection(self, Connection c, object reason) except -1:
        """Close now. Unsent responses are dropped; arena bytes stay valid until the io workers are done with them."""
        cdef Request* request
        if c.closed:
            return 0
        c.closed = True
        c.client.connections -= 1
        self.closed_total += 1
        del self._connections[c.fd]
        self._by_listener[c.listener] -= 1
        c.transport.close()
        while c.first != NULL:
            request = c.pop()
            self.end_request(request)
        if c.follower_session:
            self.forget_follower(c)
        if c.block != NULL:
            self._arena.release(c.block)
            c.block = NULL
        self._memory.leave(c)
        self._heavy.leave(c)
        if c.heavy_bytes:
            self.heavy_over(c)
        if reason is not None:
            self.rejected_total += 1
        return self.call_out(self._on_close, (c, reason))

    def end(self, Connection c not None):
        """Start no further request from it, and close it when those in progress have been responded to."""
        self.end_connection(c)

    def close(self, Connection c, reason):
        """Close a connection from a handler."""
        self.close_connection(c, reason)

    def set_timeouts(self, int64_t idle_ms, int64_t first_request_ms, int64_t request_ms, int64_t write_ms):
        """Set when ``sweep`` closes a connection: idle, without a first request, with an incomplete request, or not
        reading its responses.
        """
        self._patience.idle_ms = idle_ms
        self._patience.first_request_ms = first_request_ms
        self._patience.request_ms = request_ms
        self._patience.write_ms = write_ms

    def sweep(self):
        """Close connections that have been idle, sending a request or not reading for too long."""
        cdef Connection c
        self.now_ms = monotonic_ns() // 1000000
        for c in list(self._connections.values()):
            if self._patience.is_over(c, self.now_ms):
                self.close_connection(c, self._patience.reason)

    def stop_reading(self):
        """Start no further requests; those in flight continue."""
        self._draining = True

    def close_all(self):
        """Close every connection because the process ends."""
        for c in list(self._connections.values()):
            self.close_connection(c, None)
        close_fd(self._epoll_fd)
        self._epoll_fd = -1
