# Connections that wait for arena memory, and which to close when memory or descriptors are short. See scarcity.pyx.
from libc.stdint cimport int64_t

from kbroker._ext.network.connection cimport Connection
from kbroker._ext.shared.arena cimport Arena


cdef class MemoryQueue:
    cdef Arena arena
    cdef list small                    # connections that wait for a small block
    cdef list line                     # those that wait for a large one, oldest request first
    cdef int64_t freed_seen            # arena.freed_total at the last attempt
    cdef int64_t starved_total
    cdef int enter(self, Connection c, int64_t now_ms) except -1
    cdef int leave(self, Connection c) except -1
    cdef list take_small(self)
    # Connections to close, of all those of the process, so that others get a small block, or a large one.
    cdef list relief(self, object connections, bint large, int64_t now_ms)

    cdef inline bint may_use_large(self, Connection c) noexcept:
        return not self.line or self.line[0] is c

    cdef inline bint may_retry(self) noexcept:
        return (self.small or self.line) and self.arena.freed_total != self.freed_seen

# Connections to close so that file descriptors are freed for fetches; open_files: the limit on open files.
cdef list holders_of_files(object connections, int64_t open_files, int64_t now_ms)
