"""Connections that wait for arena memory, and which ones to close when memory or file descriptors are short.

A connection that gets no block of the arena waits, and its bytes wait in the kernel. Connections that wait for a large
block are queued, oldest request first; no other connection gets memory from the large part until the first in the
queue has what it needs. Incomplete requests hold memory to no effect, and responses that the client does not read hold
file descriptors: some of these connections are closed when others have waited for RELIEF_AFTER_MS.
"""
from kbroker._ext.fetch.fetch_reply cimport FetchReply

cdef enum:
    # How long a connection waits for memory or files before idle ones are closed for it, and how long those were idle.
    RELIEF_AFTER_MS = 500
    # The fraction of the memory or files (one over this) that is freed at a time.
    RELIEF_SHARE = 16


cdef inline int64_t request_began(Connection c) noexcept:
    return c.partial_since_ms if c.partial_since_ms >= 0 else c.starved_since_ms


cdef class MemoryQueue:
    """The connections of one network process that wait for memory. The process's loop serves them again."""

    def __cinit__(self, Arena arena not None):
        self.arena = arena
        self.small = []
        self.line = []

    cdef int enter(self, Connection c, int64_t now_ms) except -1:
        """Queue a connection that got no block, until blocks are freed."""
        cdef int i = len(self.line)
        self.starved_total += 1
        if c.starved_since_ms < 0:
            c.starved_since_ms = now_ms
        if not c.wants_large:
            if not c.in_starved:
                c.in_starved = True
                self.small.append(c)
        elif not c.in_line:
            c.in_line = True
            while i > 0 and request_began(<Connection>self.line[i - 1]) > request_began(c):
                i -= 1
            self.line.insert(i, c)
        return 0

    cdef int leave(self, Connection c) except -1:
        """Remove a connection that no longer waits for a large block, so that the next one may try."""
        if c.in_line:
            c.in_line = False
            self.line.remove(c)
            self.freed_seen = -1
        return 0

    cdef list take_small(self):
        """Take the connections that wait for small blocks, after blocks were freed. Those that get none enter again."""
        cdef Connection c
        cdef list taken = self.small
        self.freed_seen = self.arena.freed_total
        self.small = []
        for c in taken:
            c.in_starved = False
        return taken

    cdef list relief(self, object connections, bint large, int64_t now_ms):
        """Return the connections to close, if others have waited long enough."""
        if not is_overdue(self.line if large else self.small, now_ms):
            return []
        if large:
            return holders_of_memory(connections, self.arena.small_bytes, self.arena.size, now_ms)
        return holders_of_memory(connections, 0, self.arena.small_bytes, now_ms)


cdef bint is_overdue(list waiting, int64_t now_ms) except *:
    cdef Connection c
    for c in waiting:
        if not c.closed and c.starved_since_ms <= now_ms - RELIEF_AFTER_MS:
            return True
    return False


cdef list holders_of_memory(object connections, int64_t first, int64_t end, int64_t now_ms):
    """Choose the connections to close to free arena memory between two offsets.

    They are those that hold some for an incomplete request and have sent nothing for RELIEF_AFTER_MS, the longest
    silent first. If there are none, and half of the memory is held by connections that wait for more themselves, these
    block each other: the one with the newest request is closed.
    """
    cdef Connection c
    cdef int64_t blocked_bytes = 0, freed = 0
    cdef list silent = [], blocked = [], chosen = []
    for c in connections:
        if c.block == NULL or c.block.refs > 1 or c.held_back or c.muted_until_ms or not first <= c.block.offset < end:
            continue
        if c.starved_since_ms >= 0:
            blocked_bytes += c.block.capacity
            blocked.append((-request_began(c), c.fd, c))
        elif c.received_ms <= now_ms - RELIEF_AFTER_MS:
            silent.append((c.received_ms, c.fd, c))
    if not silent and blocked_bytes > (end - first) // 2:
        silent = [min(blocked)]
    for _, _, found in sorted(silent):
        if freed >= (end - first) // RELIEF_SHARE:
            break
        freed += (<Connection>found).block.capacity
        chosen.append(found)
    return chosen


cdef list holders_of_files(object connections, int64_t open_files, int64_t now_ms):
    """Choose the connections to close to free descriptors of segments, when a fetch got no bytes as all are in flight.

    They are those that are being sent a response from files and have read nothing for RELIEF_AFTER_MS, the longest
    stalled first. If there are none, it is the one whose response has been in transit longest, if for at least as long.
    """
    cdef Connection c
    cdef int count
    cdef int64_t freed = 0
    cdef list deaf = [], slow = [], chosen = []
    for c in connections:
        if c.first == NULL or c.first.fetch_reply == NULL:
            continue
        count = (<FetchReply>c.first.fetch_reply).file_count()
        if count and 0 <= c.blocked_since_ms <= now_ms - RELIEF_AFTER_MS:
            deaf.append((c.blocked_since_ms, c.fd, count, c))
        elif count and c.first.started_ns <= (now_ms - RELIEF_AFTER_MS) * 1000000:
            slow.append((c.first.started_ns, c.fd, count, c))
    if not deaf and slow:
        deaf = [min(slow)]
    for _, _, count, found in sorted(deaf):
        if freed >= max(1, open_files // RELIEF_SHARE):
            break
        freed += count
        chosen.append(found)
    return chosen
