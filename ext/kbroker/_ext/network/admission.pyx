"""Connections whose next request may not begin yet: heavy ones that wait for others to be over, and muted clients.

Heavy requests are those that Python decodes to many objects. They begin one after the other once HEAVY_BYTES_MAX of
them are worked on; the others wait in the arena. A muted connection is not received from: what its client sends stays
in the kernel. Both only say who may go on; the loop serves them.
"""
from kbroker._ext.shared.arena cimport Arena

from collections import deque
from heapq import heappop, heappush

cdef enum:
    # BOUND: bytes of heavy requests that are worked on. Decoded they may take thirty times as much.
    HEAVY_BYTES_MAX = 4194304


cdef class HeavyRequests:
    """The heavy requests of one network process: at most one of each connection."""

    def __cinit__(self, Arena arena not None, int64_t frame_max):
        self.arena_base = arena.base
        self.frame_max = frame_max
        self.held_back = deque()

    cdef bint begin(self, Connection c, int32_t size) except? True:
        """Whether its request of this size may begin now; if not, it is held back until others are over."""
        if c.heavy_bytes:
            return True  # it was held back, and its turn has come
        if self.held_back or (self.bytes and self.bytes + size > HEAVY_BYTES_MAX):
            c.held_back = True
            c.partial_since_ms = -1  # the frame is whole
            self.held_back.append(c)
            return False
        c.heavy_bytes = size
        self.bytes += size
        return True

    cdef list over(self, Connection c):
        """Its heavy request takes no more memory here. Returns the connections whose request may begin now."""
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
        """It is closed."""
        if c.held_back:
            c.held_back = False
            self.held_back.remove(c)
        return 0


cdef class MutedConnections:
    """Connections of which no further request is looked at for a time, by its end."""

    def __cinit__(self):
        self.heap = []
        self.next_end_ms = -1

    cdef bint add(self, Connection c, int64_t until_ms) except *:
        """Mute it until then; False if it is muted for as long already, or closed."""
        cdef bint is_new = c.muted_until_ms == 0
        if c.closed or until_ms <= c.muted_until_ms:
            return False
        c.muted_until_ms = until_ms
        # Its time is not the client's to lose: it neither waits for memory, nor is it late with a request.
        c.starved_since_ms = c.partial_since_ms = -1
        if is_new:
            self.numbers += 1
            heappush(self.heap, (until_ms, self.numbers, c))
            self.next_end_ms = self.heap[0][0]
        return True

    cdef list take_due(self, int64_t now_ms):
        """The connections whose time is over."""
        cdef Connection c
        cdef list found = []
        while self.heap and self.heap[0][0] <= now_ms:
            _, number, entry = heappop(self.heap)
            c = <Connection>entry
            if c.muted_until_ms > now_ms and not c.closed:  # for longer than at first
                heappush(self.heap, (c.muted_until_ms, number, c))
                continue
            c.muted_until_ms = 0
            c.last_active_ms = now_ms
            if not c.closed:
                found.append(c)
        self.next_end_ms = self.heap[0][0] if self.heap else -1
        return found
