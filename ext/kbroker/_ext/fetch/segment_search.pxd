# Finds where an offset is in one segment file: by its index, then by its batch headers. See segment_search.pyx.
from libc.stdint cimport int64_t, uint64_t


cdef enum FindStatus:
    FIND_OK = 0            # *out is filled; size 0 means nothing to read yet
    FIND_MISSING = 1       # the log directory or the segment does not exist
    FIND_IO_ERROR = 2      # a read failed
    FIND_CORRUPT = 3       # a batch is damaged or missing; see LogFiles.damage
    FIND_NO_PLACE = 4      # all file descriptors are in flight: respond without records, the client fetches again


cdef struct BatchHeader:
    int64_t base_offset
    int64_t last_offset
    int64_t size           # of the whole batch, including its header


# The cost of a log's searches so far, and the reason for the last failure.
cdef struct Reads:
    uint64_t index_searches
    uint64_t header_reads
    int failed_errno       # of FIND_IO_ERROR; 0: the file is too short


# Move *position, where a batch begins, to the first batch that ends at or above `offset`; to `limit` if there is none.
cdef FindStatus walk(int fd, int64_t offset, int64_t limit, int64_t* position, Reads* reads) noexcept
# Read the header of the batch at a position.
cdef FindStatus read_header(int fd, int64_t position, int64_t limit, BatchHeader* out, Reads* reads) noexcept
# Find the last entry of an offset index at or below an offset (relative to the segment's base offset), starting at
# *index_entry, and the position in it. False if there is none; *index_entry is then 0.
cdef bint index_floor(
    int fd, int64_t relative, int64_t limit, int64_t* index_entry, int64_t* position, Reads* reads
) noexcept
