"""The times of the last requests of followers' sessions, by network process.

A leader has to know when a follower that is at the log end has asked last. If each empty fetch were a message to the
owner of each of its partitions, idle partitions would cost as much as busy ones. So a network process writes the time of
each request into its session's cell; the owners, which know the cell from FollowerProgress, read it when they need it.

A cell is one aligned int64 with one writer, the network process in whose row it lies.
"""
from libc.stdint cimport uint8_t

from kbroker._ext.base.buffers cimport region_bytes

CELLS = SESSION_CELLS


def region_size(network_count: int) -> int:
    """The bytes of the region for this many network processes."""
    return network_count * SESSION_CELLS * sizeof(int64_t)


cdef class SessionTimes:
    """A view of the region. network_index: of the process, if it is one that serves followers; its row is emptied."""

    def __cinit__(self, region, int network_index=-1):
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = region_bytes(region, &size)
        cdef int32_t cell
        self._region = region
        self.times = <int64_t*>start
        self.count = <int32_t>(size // <Py_ssize_t>(SESSION_CELLS * sizeof(int64_t))) * SESSION_CELLS
        self.first = self.next_cell = -1
        if network_index >= 0:
            if self.count < (network_index + 1) * SESSION_CELLS:
                raise ValueError(f"a region of {size} bytes has no row for network process {network_index}")
            self.first = self.next_cell = network_index * SESSION_CELLS
            for cell in range(self.first, self.first + SESSION_CELLS):
                self.give_back(cell)

    cdef int32_t take(self, int64_t now_ms) noexcept:
        cdef int32_t tries, cell
        if self.first < 0:
            return -1
        for tries in range(SESSION_CELLS):
            cell = self.next_cell
            self.next_cell = cell + 1 if cell + 1 < self.first + SESSION_CELLS else self.first
            if self.times[cell] == 0:
                self.note(cell, now_ms)
                return cell
        return -1

    cdef void note(self, int32_t cell, int64_t now_ms) noexcept nogil:
        self.times[cell] = max(now_ms, <int64_t>1)

    cdef void give_back(self, int32_t cell) noexcept:
        self.times[cell] = 0

    def read(self, int cell) -> int:
        """Python face of last_request_ms: 0 if no session has the cell, -1 if it does not exist."""
        return self.last_request_ms(cell)

    def take_cell(self, int64_t now_ms) -> int:
        """Python face of take."""
        return self.take(now_ms)

    def note_request(self, int cell, int64_t now_ms) -> None:
        """Python face of note, in this network process's row."""
        self.check(cell)
        self.note(cell, now_ms)

    def free_cell(self, int cell) -> None:
        """Python face of give_back."""
        self.check(cell)
        self.give_back(cell)

    cdef int check(self, int cell) except -1:
        if not 0 <= self.first <= cell < self.first + SESSION_CELLS:
            raise IndexError(f"cell {cell} is in no row of this process")
        return 0
