# One client connection of a network process: its receive buffer in the arena and its queue of requests.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.base.socket_api cimport epoll_event
from kbroker._ext.shared.arena cimport Arena, Block
from kbroker._ext.shared.client_figures cimport ClientFigures, ClientRow
from kbroker._ext.sockets.client_usage cimport ClientUsage
from kbroker._ext.sockets.requests cimport Request
from kbroker._ext.sockets.transport cimport Transport
from kbroker._ext.sockets.verdicts cimport Verdicts


cdef enum Phase:
    PHASE_HANDSHAKE = 0        # the client has to choose an authentication mechanism
    PHASE_AUTHENTICATING = 1   # the mechanism's tokens are exchanged
    PHASE_TOKENS = 2           # the same after SaslHandshake 0: each frame is a token
    PHASE_FAILED = 3           # no request is served any more
    # From here on the client is known, and any request is served.
    PHASE_SERVING = 4
    PHASE_SESSION = 5          # until session_end_ms; then it has to authenticate again (KIP-368)


cdef enum FrameStatus:
    FRAME_READY = 0        # a whole frame is there
    FRAME_PARTIAL = 1      # more bytes are needed
    FRAME_BAD_LENGTH = 2   # close; rejection_reason() says why


cdef enum ReceiveStatus:
    RECEIVED = 0           # there are new bytes
    RECEIVED_NONE = 1      # the socket has none
    RECEIVE_EOF = 2
    RECEIVE_ERROR = 3
    RECEIVE_STARVED = 4    # the arena is full


cdef class Connection:
    cdef readonly int fd               # of its transport
    cdef uint64_t event_key            # of its events: its fd, and what tells it from earlier connections with that
    cdef Transport transport
    cdef readonly int listener
    cdef readonly object peer_host
    cdef readonly object peer_port
    cdef readonly bytes client_id      # of the first request, None without one; for the log
    cdef readonly bytes software       # as its client has named it (KIP-511), and its version; empty before that
    cdef readonly bytes software_version
    cdef ClientFigures figures         # what is counted of clients, and its client's row there
    cdef ClientRow* client
    cdef public object local_address
    cdef public object turn            # of its handlers (ipc/slices.Turn), None before the first
    cdef public uint8_t phase          # a Phase; what it may send (net_loop.check_phase)
    cdef public object login           # of a client that authenticates by SASL, else None
    cdef public int64_t session_end_ms     # in PHASE_SESSION
    cdef int64_t unknown_since_ms      # since when its client is to authenticate, in the phases for that
    cdef readonly Verdicts access      # the client's principal and what it may do; never None
    cdef public object close_reason    # set by a handler that cannot respond to a request, else None
    cdef Block* block
    cdef int64_t start                 # of the bytes not parsed yet, from the block's first byte
    cdef int64_t end                   # of the bytes received
    cdef int64_t frame_size_last       # of the last whole frame, length prefix included
    cdef int64_t frame_size_max
    cdef int64_t burst                 # bytes received since the socket was empty
    cdef int64_t burst_last            # the same of the last time until it was empty
    cdef Request* first                # oldest request whose response is not completely sent
    cdef Request* last
    cdef int32_t request_count
    cdef bint readable
    cdef bint writable
    cdef bint peer_closed
    cdef bint exclusive                # a request that runs alone is in progress
    cdef bint closed
    cdef int64_t ending_since_ms       # when it stopped taking requests, else -1; it closes after the last response
    cdef bint half_closed              # and no more is sent: the peer reads what it was sent, and closes
    cdef bint in_ready
    cdef bint in_dirty
    cdef bint in_starved
    cdef bint in_line
    cdef bint held_back                # a heavy request of it waits for others to be over
    cdef int32_t heavy_bytes           # of its heavy request that may begin or has begun, 0 without one
    cdef bint wants_large              # the block it starves for can only come from the large part
    cdef bint had_request
    cdef int64_t last_active_ms
    cdef int64_t partial_since_ms      # when the frame in progress began, -1 when there is none
    cdef int64_t received_ms           # when bytes last arrived
    cdef int64_t received_ns           # the same, of the monotonic clock; for request_times
    cdef int64_t starved_since_ms      # when it began to wait for arena memory, -1 when it does not
    cdef int64_t blocked_since_ms      # when the peer stopped reading, -1 when it reads
    cdef int32_t follower_session      # fetch session of a follower that lasts as long as the connection, 0: none
    cdef ClientUsage usage             # of its client's quotas (client_limits); None: not looked up yet
    cdef int64_t fetch_prepaid         # bytes of a Fetch for which it has been muted already
    cdef readonly int64_t muted_until_ms   # no request is read before then; 0: not muted

    cdef FrameStatus next_frame(self, const uint8_t* base, int64_t frame_max, const uint8_t** frame, int32_t* size) noexcept nogil
    cdef ReceiveStatus receive(
        self, Arena arena, int64_t frame_max, bint from_large, int64_t most, int64_t* received
    ) noexcept nogil
    cdef bint make_room(self, Arena arena, int64_t frame_max, bint from_large) noexcept nogil
    cdef int check_phase(self, int16_t api_key, int64_t now_ms) except -1
    cdef int note_first_request(self, const uint8_t* frame, int32_t size) except -1
    cdef int count_apart(self) except -1
    cdef int begin_counting(self, ClientFigures figures) except -1
    cdef inline void count_request(self, int32_t size) noexcept nogil:
        self.client.requests += 1
        self.client.bytes_in += size + 4
    cdef bint take_event(self, const epoll_event* event) noexcept nogil
    cdef void drained(self, Arena arena) noexcept nogil
    cdef int32_t throttle_ms(self, int64_t now_ms) noexcept nogil
    cdef Block* acquire(self, Arena arena, int64_t capacity, bint from_large) noexcept nogil
    cdef void drop_empty_block(self, Arena arena) noexcept nogil
    cdef void push(self, Request* request) noexcept nogil
    cdef Request* pop(self) noexcept nogil


# Whether its client has authenticated, or need not: it is served, its quotas count, and it has the time of others.
cdef inline bint is_known(Connection c) noexcept nogil:
    return c.phase >= PHASE_SERVING
