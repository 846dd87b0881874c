"""Connections whose next request may not start yet: because heavy requests are in progress, or because they are muted.

Heavy requests are those that Python decodes into many objects. While HEAVY_BYTES_MAX bytes of them are in progress,
further ones wait in the arena. Nothing is received from a muted connection: what its client sends stays in the kernel.
These classes only decide which connections may continue; the loop serves them. ``Patience`` decides which are closed
because they have been idle, sending a request or not reading for too long.
"""
from kbroker._ext.network.connection cimport is_known
from kbroker._ext.shared.arena cimport Arena

from collections import deque
from heapq import heappop, heappush
from operator import itemgetter

cdef enum:
    # BOUND: bytes of heavy requests in progress. Decoded, they may take thirty times as much memory.
    HEAVY_BYTES_MAX = 4194304
    # How long the peer of an ending connection may take to close it.
    ENDING_MS = 5000

number_of = itemgetter(1)


cdef class HeavyRequests:
    """The heavy requests of one network process: at most one per connection."""

    def __cinit__(self, Arena arena not None, int64_t frame_max):
        self.arena_base = arena.base
        self.frame_max = frame_max
        self.held_back = deque()

    cdef bint begin(self, Connection c, int32_t size) except? True:
        """Whether its request of this size may start now; if not, it is held back until others complete."""
        if c.heavy_bytes:
            return True  # it was held back, and over() has let it start
        if self.held_back or (self.bytes and self.bytes + size > HEAVY_BYTES_MAX):
            c.held_back = True
            c.partial_since_ms = -1  # the frame is complete
            self.held_back.append(c)
            return False
        c.heavy_bytes = size
        self.bytes += size
        return True

    cdef list over(self, Connection c):
        """Note that its heavy request no longer takes memory here. Returns the connections whose request may start."""
        cdef const uint8_t* frame = NULL
        cdef int32_t size = 0
        cdef list found = []
        self.bytes -= c.heavy_bytes
        c.heavy_bytes = 0
        while self.held_back:
            c = <Connection>self.held_back[0]
            c.next_frame(self.arena_base, self.frame_max, &frame, &size)
            if self.bytes and self.bytes + size > HEAVY_BYTES_MAX:
                break
            self.held_back.popleft()
            c.held_back = False
            c.heavy_bytes = size
            self.bytes += size
            found.append(c)
        return found

    cdef int leave(self, Connection c) except -1:
        """Forget a connection that is closed."""
        if c.held_back:
            c.held_back = False
            self.held_back.remove(c)
        return 0


cdef class MutedConnections:
    """Connections whose requests are not read for some time, ordered by its end."""

    def __cinit__(self):
        self.heap = []
        self.next_end_ms = -1

    cdef bint add(self, Connection c, int64_t until_ms) except *:
        """Mute a connection until this time; False if it is already muted for that long, or is closed."""
        cdef bint is_new = c.muted_until_ms == 0
        if c.closed or until_ms <= c.muted_until_ms:
            return False
        c.muted_until_ms = until_ms
        # The time does not count against the client: it neither waits for memory nor is late with a request.
        c.starved_since_ms = c.partial_since_ms = -1
        if is_new:
            self.numbers += 1
            heappush(self.heap, (until_ms, self.numbers, c))
            self.next_end_ms = self.heap[0][0]
        return True

    cdef list take_due(self, int64_t now_ms):
        """Unmute and return the connections whose time is over."""
        cdef Connection c
        cdef list found = []
        while self.heap and self.heap[0][0] <= now_ms:
            _, number, entry = heappop(self.heap)
            c = <Connection>entry
            if c.muted_until_ms > now_ms and not c.closed:  # the time was extended
                heappush(self.heap, (c.muted_until_ms, number, c))
                continue
            c.muted_until_ms = 0
            c.last_active_ms = now_ms
            if not c.closed:
                found.append(c)
        self.next_end_ms = self.heap[0][0] if self.heap else -1
        return found

    cdef list end_all(self, int64_t now_ms):
        """Unmute and return all connections."""
        cdef Connection c
        for _, _, entry in self.heap:
            c = <Connection>entry
            c.muted_until_ms = now_ms
        self.heap = [(now_ms, number, entry) for _, number, entry in sorted(self.heap, key=number_of)]
        return self.take_due(now_ms)


cdef class Patience:
    """How long connections may take for what."""

    cdef bint is_over(self, Connection c, int64_t now_ms) except *:
        self.reason = None
        if c.ending_since_ms >= 0 and c.first == NULL and now_ms - c.ending_since_ms > ENDING_MS:
            return True
        if c.partial_since_ms >= 0 and now_ms - c.partial_since_ms > self.request_ms:
            self.reason = f"a request that was incomplete after {self.request_ms} ms"
        elif c.blocked_since_ms >= 0 and now_ms - c.blocked_since_ms > self.write_ms:
            self.reason = f"a peer that read nothing for {self.write_ms} ms"
        elif c.muted_until_ms:
            return False
        elif not is_known(c) and now_ms - c.unknown_since_ms > self.first_request_ms:
            self.reason = f"no authentication within {self.first_request_ms} ms"
        elif not c.had_request and now_ms - c.last_active_ms > self.first_request_ms:
            self.reason = f"no request within {self.first_request_ms} ms"
        else:
            return c.first == NULL and self.idle_ms > 0 and now_ms - c.last_active_ms > self.idle_ms
        return True
