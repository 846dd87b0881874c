"""Finds where an offset is in one segment file: by its index, then by its batch headers.

Runs in network processes. Everything is read with ``pread`` from a file descriptor: a missing, short or wrong index
only makes the walk longer, and a truncated file is a failed read and never a signal.
"""
from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, uint8_t
from posix.stat cimport fstat, struct_stat
from posix.types cimport off_t
from posix.unistd cimport pread

from kbroker._ext.base.wire cimport load_i32, load_i64

cdef enum:
    INDEX_ENTRY_SIZE = 8
    INDEX_BLOCK = 512               # entries read at once; they usually cover 2 MiB of the log
    HEADER_SIZE = 27                # of a format 2 batch, up to its last offset delta
    LEGACY_HEADER_SIZE = 17         # of a format 0 or 1 message, up to its magic byte
    LOG_OVERHEAD = 12               # base offset and length, not counted by the length field
    BATCH_LENGTH_MIN = 49
    LEGACY_LENGTH_MIN = 14
    WALK_CHUNK = 4096
    WALK_CHUNK_LONG = 65536         # after WALK_CHUNKS_SHORT chunks: the index is missing, so the walk will be long
    WALK_CHUNKS_SHORT = 8

# COPY: scratch for headers and index entries, never for records. One per process: nothing here is re-entrant.
cdef uint8_t[WALK_CHUNK_LONG] scratch


cdef Py_ssize_t read_at(int fd, uint8_t* into, Py_ssize_t size, int64_t position) noexcept:
    # Like pread, but never interrupted, and short only at the end of the file.
    cdef Py_ssize_t done = 0
    cdef Py_ssize_t got
    while done < size:
        got = pread(fd, into + done, <size_t>(size - done), <off_t>(position + done))
        if got < 0:
            if errno == EINTR:
                continue
            return -1
        if got == 0:
            break
        done += got
    return done


cdef FindStatus parse_header(const uint8_t* p, int64_t room, BatchHeader* out) noexcept nogil:
    # `room`: bytes readable at p. FIND_CORRUPT for anything that no broker writes to a log.
    cdef int32_t length
    if room < LEGACY_HEADER_SIZE:
        return FIND_CORRUPT
    length = load_i32(p + 8)
    out.base_offset = load_i64(p)
    out.size = <int64_t>length + LOG_OVERHEAD
    if out.base_offset < 0:
        return FIND_CORRUPT
    if p[16] == 2:
        if length < BATCH_LENGTH_MIN or room < HEADER_SIZE:
            return FIND_CORRUPT
        out.last_offset = out.base_offset + load_i32(p + 23)
        if out.last_offset < out.base_offset:
            return FIND_CORRUPT
    elif p[16] < 2:
        # Formats 0 and 1: the offset is that of the message, or of the last message in a wrapper.
        if length < LEGACY_LENGTH_MIN:
            return FIND_CORRUPT
        out.last_offset = out.base_offset
    else:
        return FIND_CORRUPT
    return FIND_OK


cdef inline bint is_after(const uint8_t* entry, int64_t number, int64_t relative_offset, int64_t limit) noexcept nogil:
    # Whether index entry `number` is beyond the wanted offset or the published end, or is padding (zeros after the last
    # entry of a preallocated index; only entry 0 may be zero). Monotonic over a sound index.
    cdef int32_t relative = load_i32(entry)
    cdef int32_t position = load_i32(entry + 4)
    if number > 0 and relative <= 0:
        return True
    return relative < 0 or position < 0 or relative > relative_offset or position >= limit


cdef int32_t last_at_or_before(
    const uint8_t* entries, int32_t count, int64_t first_number, int64_t relative_offset, int64_t limit
) noexcept nogil:
    # Number (within the block) of the last entry that is not after the wanted offset; -1 if all are after it.
    cdef int32_t low = -1
    cdef int32_t high = count
    cdef int32_t middle
    while high - low > 1:
        middle = (low + high) // 2
        if is_after(entries + INDEX_ENTRY_SIZE * middle, first_number + middle, relative_offset, limit):
            high = middle
        else:
            low = middle
    return low


cdef bint index_floor(
    int fd, int64_t relative, int64_t limit, int64_t* index_entry, int64_t* position, Reads* reads
) noexcept:
    cdef:
        int64_t low = index_entry[0]
        int64_t high, middle
        int32_t count, found
        struct_stat facts
    index_entry[0] = 0
    reads.index_searches += 1
    count = <int32_t>(read_at(fd, scratch, INDEX_BLOCK * INDEX_ENTRY_SIZE, low * INDEX_ENTRY_SIZE) // INDEX_ENTRY_SIZE)
    if low > 0 and (count <= 0 or is_after(scratch, low, relative, limit)):
        low = 0
        count = <int32_t>(read_at(fd, scratch, INDEX_BLOCK * INDEX_ENTRY_SIZE, 0) // INDEX_ENTRY_SIZE)
    if count <= 0:
        return False
    found = last_at_or_before(scratch, count, low, relative, limit)
    if found == INDEX_BLOCK - 1:
        if fstat(fd, &facts) < 0:
            return False
        low += found
        found = 0
        high = facts.st_size // INDEX_ENTRY_SIZE
        while high - low > INDEX_BLOCK:
            middle = (low + high) // 2
            if read_at(fd, scratch, INDEX_ENTRY_SIZE, middle * INDEX_ENTRY_SIZE) < INDEX_ENTRY_SIZE:
                return False
            if is_after(scratch, middle, relative, limit):
                high = middle
            else:
                low = middle
        count = <int32_t>(
            read_at(fd, scratch, (high - low) * INDEX_ENTRY_SIZE, low * INDEX_ENTRY_SIZE) // INDEX_ENTRY_SIZE
        )
        if count > 0:
            found = last_at_or_before(scratch, count, low, relative, limit)
    if found < 0 or count <= 0:
        return False
    index_entry[0] = low + found
    position[0] = load_i32(scratch + INDEX_ENTRY_SIZE * found + 4)
    return True


cdef FindStatus walk(int fd, int64_t offset, int64_t limit, int64_t* position, Reads* reads) noexcept:
    """FIND_CORRUPT if no batch begins at the position, or if the first batch is above ``offset`` although the walk did
    not begin at the start of the segment: the wanted batch may be an earlier one.
    """
    cdef:
        BatchHeader header
        int64_t start = position[0]
        int64_t at = start
        int64_t chunk_at = 0
        Py_ssize_t chunk = WALK_CHUNK
        Py_ssize_t got = 0
        int chunks = 0
    while at < limit:
        if at < chunk_at or at + HEADER_SIZE > chunk_at + got:
            got = read_at(fd, scratch, <Py_ssize_t>min(<int64_t>chunk, limit - at), at)
            reads.header_reads += 1
            if got < 0 or (got < LEGACY_HEADER_SIZE and at + got < limit):
                reads.failed_errno = errno if got < 0 else 0
                return FIND_IO_ERROR
            chunk_at = at
            chunks += 1
        if parse_header(scratch + (at - chunk_at), got - (at - chunk_at), &header) != FIND_OK:
            return FIND_CORRUPT
        if at == start and start > 0 and header.base_offset > offset:
            return FIND_CORRUPT
        if header.last_offset >= offset:
            position[0] = at
            return FIND_OK
        at += header.size
        # Large batches: read only their headers. Many small ones: read more at once.
        if header.size > WALK_CHUNK:
            chunk = 64
        else:
            chunk = WALK_CHUNK if chunks < WALK_CHUNKS_SHORT else WALK_CHUNK_LONG
    if at > limit:
        return FIND_CORRUPT
    position[0] = limit
    return FIND_OK


cdef FindStatus read_header(int fd, int64_t position, int64_t limit, BatchHeader* out, Reads* reads) noexcept:
    cdef Py_ssize_t room = <Py_ssize_t>min(<int64_t>HEADER_SIZE, limit - position)
    cdef Py_ssize_t got = read_at(fd, scratch, room, position)
    reads.header_reads += 1
    if got < room:
        reads.failed_errno = errno if got < 0 else 0
        return FIND_IO_ERROR
    return parse_header(scratch, room, out)
