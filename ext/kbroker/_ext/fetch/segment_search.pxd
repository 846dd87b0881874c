# Where in one segment file an offset lies: by its index, then by the headers of its batches. See segment_search.pyx.
from libc.stdint cimport int64_t, uint64_t


cdef enum FindStatus:
    FIND_OK = 0            # *out is filled; size 0 means nothing to read yet
    FIND_MISSING = 1       # the log directory or the segment is gone
    FIND_IO_ERROR = 2      # a read failed
    FIND_CORRUPT = 3       # what is there is damaged, or something is missing; see LogFiles.damage
    FIND_NO_PLACE = 4      # every descriptor is in flight: answer empty, the client asks again


cdef struct BatchHeader:
    int64_t base_offset
    int64_t last_offset
    int64_t size           # of the whole batch, its header included


# What the searches of a log have cost so far, and why the last one failed.
cdef struct Reads:
    uint64_t index_searches
    uint64_t header_reads
    int failed_errno       # of FIND_IO_ERROR; 0: the file ends too early


# Move *position, where a batch begins, to the first batch that ends at or above `offset`.
cdef FindStatus walk(int fd, int64_t offset, int64_t limit, int64_t* position, Reads* reads) noexcept
# The header of the batch at a position.
cdef FindStatus read_header(int fd, int64_t position, int64_t limit, BatchHeader* out, Reads* reads) noexcept
# The last entry of an offset index at or below an offset, relative to the segment's first, searched from *index_entry on,
# and the position that it names. False: there is none, and *index_entry is 0.
cdef bint index_floor(
    int fd, int64_t relative, int64_t limit, int64_t* index_entry, int64_t* position, Reads* reads
) noexcept
