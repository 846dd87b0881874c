"""The receive buffer and request queue of one client connection.

Bytes are received straight into arena blocks. A connection without a frame in progress holds no block. A frame gets
room as its bytes arrive, not as its length claims: a block is at most 64 KiB, four times what has arrived, or what
earlier frames of this connection really were, whichever is largest. Where several frames came at once before, a block
has room for several.
"""
from libc.string cimport memcpy, memmove

from kbroker._ext.base.api_keys cimport API_API_VERSIONS, API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from kbroker._ext.base.socket_api cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_event, monotonic_ns
from kbroker._ext.base.wire cimport load_i16, load_i32
from kbroker._ext.sockets.transport cimport TRANSPORT_BLOCKED, WAKE_FROM, Transport
from kbroker._ext.sockets.verdicts cimport Verdicts

cdef enum:
    BLOCK_FIRST = 4096
    BLOCK_GRANT = 65536
    # Above this size, a receive stops at the expected end of a frame, so that the next frame starts in a block of its own
    # and need not be moved.
    EXACT_FROM = 4096
    HEADER_BYTES_MIN = 8         # of a request; tokens without a header may be shorter
    CLIENT_ID_AT = 8             # in every request header, its length first
    CLIENT_ID_BYTES_MAX = 128    # BOUND: of it are kept

# The phases by name, for Python.
HANDSHAKE, AUTHENTICATING, TOKENS, FAILED = PHASE_HANDSHAKE, PHASE_AUTHENTICATING, PHASE_TOKENS, PHASE_FAILED
SERVING, SESSION = PHASE_SERVING, PHASE_SESSION


class CloseConnection(Exception):
    """The connection must be closed; the text says why."""


cdef class Connection:
    """State of a connection; net_loop drives it."""

    def __cinit__(
        self, Transport transport not None, int listener, peer_host, peer_port, Verdicts access not None, int64_t now_ms
    ):
        self.transport = transport
        self.fd = transport.fd
        self.listener = listener
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.phase = PHASE_SERVING
        self.unknown_since_ms = now_ms
        self.access = access
        self.writable = True
        self.readable = True
        self.last_active_ms = now_ms
        self.partial_since_ms = -1
        self.starved_since_ms = -1
        self.received_ms = now_ms
        self.blocked_since_ms = -1
        self.ending_since_ms = -1
        self.software = self.software_version = b""

    def identify(self, Verdicts access not None):
        """Its client has authenticated. Requests in progress continue with the former principal."""
        self.access = access
        self.usage = None
        self.fetch_prepaid = 0

    def authenticate_again(self, uint8_t phase):
        """Enter a phase of authentication; its client has as much time as that of a new connection."""
        self.phase = phase
        self.unknown_since_ms = monotonic_ns() // 1000000

    cdef int check_phase(self, int16_t api_key, int64_t now_ms) except -1:
        """Check that its client may send this before it has authenticated, or after its session has ended; as in Kafka,
        anything else closes the connection.
        """
        if self.phase == PHASE_SESSION:
            if now_ms < self.session_end_ms:
                return 0
            if api_key in (API_SASL_HANDSHAKE, API_SASL_AUTHENTICATE, API_API_VERSIONS):
                return 0
            raise CloseConnection(f"its session has ended, and it sent a request (API key {api_key}) instead of "
                                  "authenticating again")
        if self.phase == PHASE_AUTHENTICATING:
            if api_key == API_SASL_AUTHENTICATE:
                return 0
        elif self.phase == PHASE_HANDSHAKE and (api_key == API_SASL_HANDSHAKE or api_key == API_API_VERSIONS):
            return 0
        raise CloseConnection(f"a request (API key {api_key}) before authentication was complete")

    cdef int note_first_request(self, const uint8_t* frame, int32_t size) except -1:
        """Remember the client id; the bytes may be anything, not just a request."""
        cdef int32_t length = load_i16(frame + CLIENT_ID_AT) if size >= CLIENT_ID_AT + 2 else -1
        self.had_request = True
        if 0 < length <= size - CLIENT_ID_AT - 2:
            self.client_id = (<const char*>frame)[CLIENT_ID_AT + 2 : CLIENT_ID_AT + 2 + min(length, CLIENT_ID_BYTES_MAX)]
        self.count_apart()
        return 0

    # -- what its client does (client_figures) ---

    cdef int begin_counting(self, ClientFigures figures) except -1:
        """Without a name, before its first request."""
        self.figures = figures
        self.client = figures.first()
        self.client.connections += 1
        return 0

    def name_software(self, bytes name not None, bytes version not None):
        """Its client says what software it is."""
        if not self.closed and (name != self.software or version != self.software_version):
            self.software = name
            self.software_version = version
            self.count_apart()

    cdef int count_apart(self) except -1:
        """In the row of its client from now on."""
        self.client = self.figures.move(
            self.client, self.client_id or b"", self.software, self.software_version, self.listener)
        return 0

    cdef bint take_event(self, const epoll_event* event) noexcept nogil:
        """Note what the kernel says of its socket; returns whether it does, and not of an earlier one's.

        A connection that is closed while others' events are served leaves its own event behind, and the next connection
        may have the same descriptor by then.
        """
        if event.data.u64 != self.event_key:
            return False
        if event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self.peer_closed = True
        if event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            self.readable = True
        if event.events & EPOLLOUT:
            self.writable = True
        return True

    cdef FrameStatus next_frame(
        self, const uint8_t* base, int64_t frame_max, const uint8_t** frame, int32_t* size
    ) noexcept nogil:
        """The next whole frame in the buffer, without its length prefix. Does not consume it."""
        cdef int64_t have = self.end - self.start
        cdef int32_t length
        if self.block == NULL or have < 4:
            return FRAME_PARTIAL
        length = load_i32(base + self.block.offset + self.start)
        if length < (0 if self.phase == PHASE_TOKENS else HEADER_BYTES_MIN) or length > frame_max:
            return FRAME_BAD_LENGTH
        if have < <int64_t>length + 4:
            return FRAME_PARTIAL
        frame[0] = base + self.block.offset + self.start + 4
        size[0] = length
        return FRAME_READY

    cdef ReceiveStatus receive(
        self, Arena arena, int64_t frame_max, bint from_large, int64_t most, int64_t* received
    ) noexcept nogil:
        """Receive once, as much as there is room for, and ``most`` bytes at the most.

        from_large: whether it may use the arena's large part.
        """
        cdef:
            int64_t room, expected, rest
            ssize_t n
        if not self.make_room(arena, frame_max, from_large):
            return RECEIVE_STARVED
        room = self.block.capacity - self.end
        expected = self.frame_size_last
        if self.end - self.start >= 4:
            expected = <int64_t>load_i32(arena.base + self.block.offset + self.start) + 4
        rest = expected - (self.end - self.start)
        if expected >= EXACT_FROM and 0 < rest < room:
            room = rest + (room - rest) // expected * expected
        room = min(room, most)
        n = self.transport.receive(arena.base + self.block.offset + self.end, <size_t>room)
        if n > 0:
            self.end += n
            self.burst += n
            received[0] = n
            if n < room and self.transport.short_is_empty and not self.peer_closed:
                self.drained(arena)  # the next bytes make a new edge
            return RECEIVED
        if n == 0:
            return RECEIVE_EOF
        if n != TRANSPORT_BLOCKED:
            return RECEIVE_ERROR
        self.drained(arena)
        return RECEIVED_NONE

    cdef void drained(self, Arena arena) noexcept nogil:
        cdef int64_t have = self.end - self.start
        cdef int64_t missing = 0
        self.readable = False
        if have >= 4 and self.burst >= WAKE_FROM:  # it sends fast: one event for more of a long frame
            missing = <int64_t>load_i32(arena.base + self.block.offset + self.start) + 4 - have
        self.transport.wake_at(missing)
        self.burst_last = self.burst
        self.burst = 0

    cdef int32_t throttle_ms(self, int64_t now_ms) noexcept nogil:
        """The throttle time of a response sent now (KIP-219): the time for which the connection is muted."""
        if self.muted_until_ms <= now_ms:
            return 0
        return <int32_t>min(self.muted_until_ms - now_ms, <int64_t>0x7FFFFFFF)

    @property
    def throttle_time_ms(self) -> int:
        """The same for the responses of handlers."""
        return self.throttle_ms(monotonic_ns() // 1000000) if self.muted_until_ms else 0

    cdef Block* acquire(self, Arena arena, int64_t capacity, bint from_large) noexcept nogil:
        cdef Block* block = arena.acquire(capacity, from_large)
        if block == NULL:
            self.wants_large = capacity > arena.small_max
        return block

    cdef bint make_room(self, Arena arena, int64_t frame_max, bint from_large) noexcept nogil:
        """Make room in the block for more of the frame in progress; False when the arena is full."""
        cdef:
            int64_t have = self.end - self.start
            int64_t need, grant
            Block* larger
        if self.block == NULL:
            need = max(self.frame_size_last, min(self.burst_last, <int64_t>BLOCK_GRANT))
            need = min(max(need, <int64_t>BLOCK_FIRST), frame_max + 4)
            self.block = self.acquire(arena, need, from_large)
            if self.block == NULL and need > BLOCK_FIRST:
                # This frame may be smaller than the one before.
                self.block = self.acquire(arena, BLOCK_FIRST, from_large)
            self.start = self.end = 0
            return self.block != NULL
        need = 4
        if have >= 4:
            # The length was checked by next_frame before anyone receives more.
            need = <int64_t>load_i32(arena.base + self.block.offset + self.start) + 4
        grant = max(max(<int64_t>BLOCK_GRANT, 4 * have), self.frame_size_max)
        need = max(min(need, grant), have + 1)
        if need <= self.block.capacity - self.start:
            return True
        if need <= self.block.capacity and self.block.refs == 1:
            # COPY: the first part of a frame moves to the front of its block.
            memmove(arena.base + self.block.offset, arena.base + self.block.offset + self.start, <size_t>have)
        else:
            larger = self.acquire(arena, need, from_large)
            if larger == NULL:
                return False
            # COPY: the first part of a frame moves to a block that can hold more of it.
            memcpy(arena.base + larger.offset, arena.base + self.block.offset + self.start, <size_t>have)
            arena.release(self.block)
            self.block = larger
        self.start = 0
        self.end = have
        return True

    cdef void drop_empty_block(self, Arena arena) noexcept nogil:
        """Release the block unless a frame in progress is in it."""
        if self.block != NULL and self.start == self.end:
            arena.release(self.block)
            self.block = NULL
            self.start = self.end = 0

    cdef void push(self, Request* request) noexcept nogil:
        """Queue a request behind the others."""
        request.next = NULL
        if self.last == NULL:
            self.first = request
        else:
            self.last.next = request
        self.last = request
        self.request_count += 1

    cdef Request* pop(self) noexcept nogil:
        """Unlink the oldest request."""
        cdef Request* request = self.first
        self.first = request.next
        if self.first == NULL:
            self.last = NULL
        self.request_count -= 1
        request.next = NULL
        return request


def rejection_reason(int length, int64_t frame_max, bint is_known=True) -> str:
    """Why a frame with this length prefix is rejected; names the protocol if it is recognised."""
    prefix = length.to_bytes(4, "big", signed=True)
    if prefix in (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "):
        return "an HTTP request on a Kafka listener"
    if prefix[0] in (0x14, 0x15, 0x16, 0x17) and prefix[1] == 3:
        return "a TLS handshake on a plaintext listener"
    if length < 0:
        return f"a negative request length ({length})"
    if length < HEADER_BYTES_MIN:
        return f"a request of {length} bytes, shorter than any header"
    setting = "socket.request.max.bytes" if is_known else "sasl.server.max.receive.size, before authentication"
    return f"a request of {length} bytes, more than {setting} ({frame_max})"
