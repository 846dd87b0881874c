# The load generator of perf/saturate.py: sends prebuilt Produce frames and checks every response.
#
# A benchmark tool, built beside perf/ by `make build`; it is in no wheel. One thread, one epoll set, N non-blocking sockets
# that Python connected. Per request: one share of an epoll_wait, one recv, one send, no Python
# object. Frames that differ in their correlation id alone are laid side by side, so that one send
# carries several.
#
# A run sends until its deadline and then waits for what is still out, so that every request of a
# run is answered, checked and counted in that run, and none is in flight between two runs.

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memmove, memset, strerror
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef extern from "<endian.h>" nogil:
    uint32_t be32toh(uint32_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t be64toh(uint64_t value)

cdef extern from "<sys/socket.h>" nogil:
    int MSG_NOSIGNAL
    Py_ssize_t send(int fd, const void* data, size_t size, int flags)
    Py_ssize_t recv(int fd, void* data, size_t size, int flags)

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLLIN
    int EPOLLOUT
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    ctypedef union epoll_data_t:
        uint32_t u32
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from *:
    """
    static inline int highest_bit(uint64_t value) { return 63 - __builtin_clzll(value); }
    """
    int highest_bit(uint64_t value) noexcept nogil


cdef enum:
    # Histogram: exact below 128 ns, above it 64 buckets to each power of two (error below 1.6 %).
    SUB_BUCKETS = 64
    SUB_BITS = 6
    BUCKETS = (64 - SUB_BITS) * SUB_BUCKETS
    # BOUND: a Produce response for one partition is below 200 bytes; longer data is not one.
    RECEIVE_BYTES = 16384
    # Frames are copied side by side up to this size; larger ones share one copy and stay in the
    # CPU's cache.
    BURST_BYTES = 16384
    MAX_EVENTS = 256
    WIRE_CODES = 256
    CORRELATION_AT = 8
    SIZE_BYTES = 4
    MAX_IN_FLIGHT = 1048576

cdef enum Status:
    RUN_OK = 0
    RUN_PAUSE = 1
    RUN_CLOSED = 2
    RUN_ERRNO = 3
    RUN_MALFORMED = 4
    RUN_TIMEOUT = 5

cdef struct Connection:
    int fd
    bint want_write
    uint8_t* frames            # `copies` frames of frame_size bytes each
    Py_ssize_t frame_size
    int32_t copies
    Py_ssize_t send_at         # unsent bytes of the current burst: frames[send_at:send_end]
    Py_ssize_t send_end
    int32_t next_sent          # correlation id of the next request
    int32_t next_received      # correlation id of the next response
    int64_t* sent_at_ns        # ring of in_flight entries by correlation id
    const uint8_t* prefix      # what stands between correlation id and error code
    Py_ssize_t prefix_size
    uint8_t* received
    Py_ssize_t received_size


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef inline int bucket_of(int64_t value) noexcept nogil:
    # Twin: perf.percentiles.bucket_of.
    cdef int shift
    if value < 2 * SUB_BUCKETS:
        return <int>value if value > 0 else 0
    shift = highest_bit(<uint64_t>value) - SUB_BITS
    return shift * SUB_BUCKETS + <int>(value >> shift)


def latency_bucket(int64_t value_ns) -> int:
    return bucket_of(value_ns)


class LoadError(RuntimeError):
    """The run cannot continue: the broker closed a connection, sent a bad response, or none at all."""


@cython.final
cdef class LoadGenerator:
    """Keeps `in_flight` requests out on each socket. Not thread-safe; the sockets stay open."""

    cdef:
        Connection* connections
        int count
        int32_t in_flight
        bint expects_responses              # False with acks=0: there are no responses
        int epoll_fd
        int failed_connection
        int failed_errno
        Status failure
        int64_t outstanding
        int64_t requests
        int64_t max_ns
        int64_t sum_ns
        int64_t codes[WIRE_CODES]
        int64_t histogram[BUCKETS]
        object keep_alive

    def __cinit__(self):
        self.connections = NULL
        self.count = 0
        self.epoll_fd = -1

    def __init__(self, sockets, frames, prefixes, int32_t in_flight, bint expects_responses=True):
        cdef Py_ssize_t i
        if self.connections != NULL:
            raise RuntimeError("a LoadGenerator is initialised once")
        if not 0 < len(sockets) <= 4096 or not len(sockets) == len(frames) == len(prefixes):
            raise ValueError("sockets, frames and prefixes must be 1 to 4,096 and equally many")
        if not 0 < in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"in_flight must be 1 to {MAX_IN_FLIGHT}, not {in_flight}")
        self.keep_alive = (list(sockets), [bytes(p) for p in prefixes])
        self.in_flight = in_flight
        self.expects_responses = expects_responses
        self.connections = <Connection*>PyMem_Malloc(len(sockets) * sizeof(Connection))
        if self.connections == NULL:
            raise MemoryError
        memset(self.connections, 0, len(sockets) * sizeof(Connection))
        self.count = <int>len(sockets)
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise OSError(errno, "epoll_create1")
        for i in range(self.count):
            self._prepare(i, sockets[i].fileno(), bytes(frames[i]), self.keep_alive[1][i])

    cdef int _prepare(self, Py_ssize_t index, int fd, bytes frame, bytes prefix) except -1:
        cdef:
            Connection* c = &self.connections[index]
            Py_ssize_t size = len(frame)
            Py_ssize_t copies = 1
            Py_ssize_t i
            epoll_event event
        if size < CORRELATION_AT + 4:
            raise ValueError(f"a frame of {size} bytes has no room for a request header")
        if int.from_bytes(frame[:SIZE_BYTES], "big") != size - SIZE_BYTES:
            raise ValueError("a frame must begin with its own length")
        copies = min(self.in_flight, max(1, BURST_BYTES // size))
        c.fd = fd
        c.frame_size = size
        c.copies = <int32_t>copies
        c.prefix = <const uint8_t*>prefix
        c.prefix_size = len(prefix)
        c.frames = <uint8_t*>PyMem_Malloc(copies * size)
        c.sent_at_ns = <int64_t*>PyMem_Malloc(self.in_flight * sizeof(int64_t))
        c.received = <uint8_t*>PyMem_Malloc(RECEIVE_BYTES)
        if c.frames == NULL or c.sent_at_ns == NULL or c.received == NULL:
            raise MemoryError
        for i in range(copies):
            memcpy(c.frames + i * size, <const uint8_t*>frame, size)
        event.events = EPOLLIN
        event.data.u32 = <uint32_t>index
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        return 0

    def __dealloc__(self):
        cdef int i
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
        if self.connections != NULL:
            for i in range(self.count):
                PyMem_Free(self.connections[i].frames)
                PyMem_Free(self.connections[i].sent_at_ns)
                PyMem_Free(self.connections[i].received)
            PyMem_Free(self.connections)

    def run(self, double seconds, double drain_seconds=30.0):
        """Load the broker for `seconds`, then wait up to `drain_seconds` for the last responses.

        Returns a dict: requests (answered, or sent with acks=0), elapsed_ns, codes {error code:
        count}, histogram (a list of counts by `latency_bucket`), max_ns, sum_ns. Raises LoadError;
        the generator is useless after it.
        """
        cdef:
            int64_t started_at = now_ns()
            int64_t deadline = started_at + <int64_t>(seconds * 1e9)
            int64_t drain_deadline = deadline + <int64_t>(drain_seconds * 1e9)
            int64_t ended_at = 0
            Status status = RUN_PAUSE
        if self.failure != RUN_OK:
            raise LoadError("an earlier run failed")
        self.requests = self.max_ns = self.sum_ns = 0
        memset(self.codes, 0, sizeof(self.codes))
        memset(self.histogram, 0, sizeof(self.histogram))
        with nogil:
            status = self._start_all()
        # A pause each 100 ms lets Python see a signal such as ^C.
        while status == RUN_PAUSE:
            PyErr_CheckSignals()
            with nogil:
                status = self._turns(deadline, drain_deadline, &ended_at)
        if status != RUN_OK:
            self.failure = status
            raise LoadError(self._describe(status))
        return {
            "requests": self.requests,
            "elapsed_ns": ended_at - started_at,
            "codes": {code - 1: self.codes[code] for code in range(WIRE_CODES) if self.codes[code]},
            "histogram": [self.histogram[i] for i in range(BUCKETS)],
            "max_ns": self.max_ns,
            "sum_ns": self.sum_ns,
        }

    def _describe(self, Status status):
        cdef Connection* c = &self.connections[self.failed_connection]
        kind = "responses" if self.expects_responses else "requests"
        where = f"socket {self.failed_connection}, after {c.next_received} {kind}"
        if status == RUN_CLOSED:
            return f"{where}: the broker closed the connection"
        if status == RUN_ERRNO:
            return f"{where}: {strerror(self.failed_errno).decode()}"
        if status == RUN_MALFORMED:
            head = bytes(c.received[:min(c.received_size, 64)]).hex(" ")
            return f"{where}: not the response to our request: {head}"
        return f"{self.outstanding} requests got no response"

    # -- the loop; no Python object is touched below
    # ---

    cdef Status _fail(self, Connection* c, Status status) noexcept nogil:
        self.failed_errno = errno
        self.failed_connection = <int>(c - self.connections)
        return status

    cdef Status _start_all(self) noexcept nogil:
        cdef int i
        cdef Status status
        for i in range(self.count):
            status = self._fill(&self.connections[i])
            if status != RUN_OK:
                return status
        return RUN_PAUSE

    # Turn the loop for about 100 ms (RUN_PAUSE), or until everything is sent and has a response (RUN_OK).
    cdef Status _turns(
        self, int64_t deadline, int64_t drain_deadline, int64_t* ended_at
    ) noexcept nogil:
        cdef:
            epoll_event events[MAX_EVENTS]
            int64_t now = now_ns()
            int64_t pause_at = now + 100000000
            bint draining
            int ready, i
            Connection* c
            Status status
        while now < pause_at:
            draining = now >= deadline
            if draining and self._all_idle():
                ended_at[0] = now
                return RUN_OK
            if now >= drain_deadline:
                return RUN_TIMEOUT
            ready = epoll_wait(self.epoll_fd, events, MAX_EVENTS, 20)
            if ready < 0 and errno != EINTR:
                return self._fail(self.connections, RUN_ERRNO)
            for i in range(ready):
                c = &self.connections[events[i].data.u32]
                # (a) anything but pure writability: data, end of stream or an error, all of which
                # recv tells.
                if events[i].events & ~(<uint32_t>EPOLLOUT):
                    status = self._receive(c)
                    if status != RUN_OK:
                        return status
                # (b) the rest of a burst always goes out, a new one only before the deadline.
                if c.send_at < c.send_end or not draining:
                    status = self._fill(c) if not draining else self._flush(c)
                    if status != RUN_OK:
                        return status
            now = now_ns()
        return RUN_PAUSE

    cdef bint _all_idle(self) noexcept nogil:
        cdef int i
        if self.outstanding > 0:
            return False
        for i in range(self.count):
            if self.connections[i].send_at < self.connections[i].send_end:
                return False
        return True

    # Send bursts until the window of this connection is full or its socket buffer is.
    cdef Status _fill(self, Connection* c) noexcept nogil:
        cdef:
            int32_t room, i
            int64_t now
            uint32_t wire
            int bursts = 0
            Status status
        while True:
            if c.send_at < c.send_end:
                status = self._flush(c)
                if status != RUN_OK or c.send_at < c.send_end:
                    return status
            room = self.in_flight - (c.next_sent - c.next_received)
            # BOUND: without responses only the socket buffer stops a burst; other sockets must get their turn.
            if room <= 0 or bursts >= 16:
                return self._watch(c, room > 0)
            room = min(room, c.copies)
            now = now_ns()
            for i in range(room):
                wire = htobe32(<uint32_t>(c.next_sent + i))
                memcpy(c.frames + i * c.frame_size + CORRELATION_AT, &wire, 4)
                c.sent_at_ns[(c.next_sent + i) % self.in_flight] = now
            c.next_sent += room
            c.send_at = 0
            c.send_end = room * c.frame_size
            bursts += 1
            if self.expects_responses:
                self.outstanding += room
            else:
                c.next_received += room
                self.requests += room

    cdef Status _flush(self, Connection* c) noexcept nogil:
        cdef Py_ssize_t sent
        while c.send_at < c.send_end:
            sent = send(c.fd, c.frames + c.send_at, <size_t>(c.send_end - c.send_at), MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return self._watch(c, True)
                return self._fail(c, RUN_ERRNO)
            c.send_at += sent
        return self._watch(c, False)

    cdef Status _watch(self, Connection* c, bint want_write) noexcept nogil:
        cdef epoll_event event
        if c.want_write == want_write:
            return RUN_OK
        c.want_write = want_write
        event.events = <uint32_t>(EPOLLIN | (EPOLLOUT if want_write else 0))
        event.data.u32 = <uint32_t>(c - self.connections)
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, c.fd, &event) < 0:
            return self._fail(c, RUN_ERRNO)
        return RUN_OK

    cdef Status _receive(self, Connection* c) noexcept nogil:
        cdef:
            Py_ssize_t got = recv(c.fd, c.received + c.received_size,
                                  <size_t>(RECEIVE_BYTES - c.received_size), 0)
            Py_ssize_t pos = 0
            uint32_t wire
            int64_t size, now
            Status status
        if got == 0:
            return self._fail(c, RUN_CLOSED)
        if got < 0:
            return RUN_OK if errno == EAGAIN or errno == EINTR else self._fail(c, RUN_ERRNO)
        c.received_size += got
        now = now_ns()
        while c.received_size - pos >= SIZE_BYTES:
            memcpy(&wire, c.received + pos, 4)
            size = <int32_t>be32toh(wire)
            if size < 4 + c.prefix_size + 2 or size > RECEIVE_BYTES - SIZE_BYTES:
                return self._fail(c, RUN_MALFORMED)
            if size > c.received_size - pos - SIZE_BYTES:
                break
            status = self._check(c, c.received + pos + SIZE_BYTES, now)
            if status != RUN_OK:
                return status
            pos += SIZE_BYTES + <Py_ssize_t>size
        c.received_size -= pos
        if c.received_size > 0 and pos > 0:
            memmove(c.received, c.received + pos, <size_t>c.received_size)
        return RUN_OK

    # One response of at least 4 + prefix_size + 2 bytes: correlation id, prefix, error code.
    cdef Status _check(self, Connection* c, const uint8_t* response, int64_t now) noexcept nogil:
        cdef:
            uint32_t wire
            int32_t correlation_id
            int16_t code
            const uint8_t* error_at = response + 4 + c.prefix_size
            int64_t latency
        memcpy(&wire, response, 4)
        correlation_id = <int32_t>be32toh(wire)
        # (a) in order, (b) not more answers than requests, (c) about the topic and partition we
        # wrote to.
        if correlation_id != c.next_received or c.next_received == c.next_sent:
            return self._fail(c, RUN_MALFORMED)
        if memcmp(response + 4, c.prefix, <size_t>c.prefix_size) != 0:
            return self._fail(c, RUN_MALFORMED)
        code = <int16_t>((error_at[0] << 8) | error_at[1])
        self.codes[code + 1 if -1 <= code < WIRE_CODES - 2 else WIRE_CODES - 1] += 1
        latency = now - c.sent_at_ns[correlation_id % self.in_flight]
        self.histogram[bucket_of(latency)] += 1
        self.sum_ns += latency
        if latency > self.max_ns:
            self.max_ns = latency
        c.next_received += 1
        self.requests += 1
        self.outstanding -= 1
        return RUN_OK


cdef extern from *:
    """
    /* The head of rd_kafka_message_t, whose layout is part of librdkafka's public interface. */
    struct delivered_message { int err; };
    typedef int64_t (*latency_function)(const struct delivered_message *);
    """
    cdef struct delivered_message:
        int err
    ctypedef int64_t (*latency_function)(const delivered_message*) noexcept nogil


@cython.final
cdef class DeliveryCounter:
    """Counts librdkafka's delivery reports: errors, and latency from produce call to response.

    `latency_address` is that of rd_kafka_message_latency, or of another function of its type.
    """

    cdef:
        latency_function latency_of
        int64_t delivered
        int64_t failed
        int last_error
        int64_t sum_us
        int64_t max_us
        int64_t histogram[BUCKETS]
        int64_t window_delivered
        int64_t window_sum_us
        int64_t window_max_us

    def __cinit__(self, uintptr_t latency_address):
        if latency_address == 0:
            raise ValueError("the latency function has no address")
        self.latency_of = <latency_function>latency_address
        self.delivered = self.failed = self.sum_us = self.max_us = 0
        self.window_delivered = self.window_sum_us = self.window_max_us = 0
        self.last_error = 0
        memset(self.histogram, 0, sizeof(self.histogram))

    def count(self, uintptr_t messages_address, Py_ssize_t number):
        """`messages_address` is that of an array of `number` pointers to rd_kafka_message_t.

        SAFETY: the caller vouches for both; the messages belong to an event it has not destroyed.
        """
        cdef const delivered_message** messages = <const delivered_message**>messages_address
        with nogil:
            self._count(messages, number)

    cdef void _count(self, const delivered_message** messages, Py_ssize_t number) noexcept nogil:
        cdef:
            Py_ssize_t i
            int64_t latency_us
        for i in range(number):
            if messages[i].err != 0:
                self.failed += 1
                self.last_error = messages[i].err
                continue
            latency_us = self.latency_of(messages[i])
            self.delivered += 1
            self.sum_us += latency_us
            self.max_us = max(self.max_us, latency_us)
            self.histogram[bucket_of(latency_us * 1000)] += 1
            self.window_delivered += 1
            self.window_sum_us += latency_us
            self.window_max_us = max(self.window_max_us, latency_us)

    def take_window(self):
        """(delivered, sum of their latencies in us, the longest) since the last call."""
        taken = (self.window_delivered, self.window_sum_us, self.window_max_us)
        self.window_delivered = self.window_sum_us = self.window_max_us = 0
        return taken

    def totals(self):
        """(delivered, failed, last error code, sum of latencies in us, the longest, histogram)"""
        counts = [self.histogram[i] for i in range(BUCKETS)]
        return (
            self.delivered, self.failed, self.last_error, self.sum_us, self.max_us, counts
        )
