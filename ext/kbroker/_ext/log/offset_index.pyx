"""Offset and time index of a segment: append and search in mapped memory (see offset_index.pxd).

The owner of a log appends; network processes search with ``OffsetIndexReader``. An index file is allocated in steps
that double in size, from one page to ``segment.index.bytes``: allocating the maximum at once would take real blocks
(20 MiB per partition with the defaults). A file is trimmed when its segment is sealed. An index is redundant: if
anything looks wrong with it, it is rebuilt from the log.
"""
import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport ENOMEM, ENOSPC, errno
from libc.string cimport memset

from kbroker._ext.base.wire cimport load_i32, load_i64, store_i32, store_i64

from kbroker.descriptors import open_file
from kbroker.errors import ShortageError, may_do_without


cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t size, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t size)
    void* mremap(void* address, size_t old_size, size_t new_size, int flags, ...)
    void* MAP_FAILED
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MAP_PRIVATE
    int MREMAP_MAYMOVE

cdef extern from "<endian.h>" nogil:
    unsigned long long htobe64(unsigned long long)

cdef extern from *:
    """
    /* One store for both halves of an entry: a reader in another process sees all of it or zeros. */
    static inline void store_entry_release(uint8_t *p, uint64_t v) {
        __atomic_store_n((uint64_t *)(void *)p, v, __ATOMIC_RELEASE);
    }
    """
    void store_entry_release(uint8_t* p, unsigned long long v) nogil


cdef enum:
    OFFSET_ENTRY = 8
    TIME_ENTRY = 12
    STEP_BYTES = 4096

NO_TIMESTAMP = -1
# For bytes_max: open the index only for reading. Its file must exist and is never changed, even by calls that write.
LOOK_ONLY = 0


class CorruptIndexError(ValueError):
    """An index file that contradicts itself or its log; rebuild it from the log."""


cdef void* map_file(int fd, Py_ssize_t size, bint writable) except NULL:
    return map_as(fd, size, PROT_READ | PROT_WRITE if writable else PROT_READ, MAP_SHARED)


cdef void* map_as(int fd, Py_ssize_t size, int protection, int flags) except NULL:
    cdef void* address = mmap(NULL, <size_t>size, protection, flags, fd, 0)
    if address == MAP_FAILED:
        if errno == ENOMEM:
            raise ShortageError(ENOMEM, "mmap")
        raise OSError(errno, "mmap: " + os.strerror(errno))
    return address


# Index of the last of `count` 8-byte entries with relative offset <= relative, -1 if none. Unwritten entries are zero
# and no written one has relative offset 0 (the first entry comes after the first batch), so zero means "end".
cdef Py_ssize_t search_offset(const uint8_t* data, Py_ssize_t count, int64_t relative) noexcept nogil:
    cdef Py_ssize_t low = 0, high = count, middle
    cdef int32_t found
    while low < high:
        middle = (low + high) >> 1
        found = load_i32(data + middle * OFFSET_ENTRY)
        if found > 0 and found <= relative:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef void find_position(
    const uint8_t* data, Py_ssize_t count, int64_t base_offset, int64_t target, int64_t* offset, int64_t* position
) noexcept nogil:
    cdef Py_ssize_t at = search_offset(data, count, target - base_offset) if data != NULL else -1
    if at < 0:
        offset[0] = base_offset
        position[0] = 0
    else:
        offset[0] = base_offset + load_i32(data + at * OFFSET_ENTRY)
        position[0] = load_i32(data + at * OFFSET_ENTRY + 4)


cdef class MappedIndex:
    """Lifecycle of a mapped index: open (creates), append, ``seal`` or ``close``. Use the two subclasses."""

    def __cinit__(self, path, int64_t base_offset, Py_ssize_t bytes_max, *args, **kwargs):
        self.data = NULL
        self.mapped_bytes = 0
        self.entry_count = 0
        self.base_offset = base_offset
        self.path = os.fspath(path)

    def __dealloc__(self):
        if self.data != NULL:
            munmap(self.data, <size_t>self.mapped_bytes)

    cdef int open_file(self, Py_ssize_t entry_size, Py_ssize_t bytes_max) except -1:
        cdef int fd
        cdef Py_ssize_t size
        cdef bint look_only = bytes_max == 0  # LOOK_ONLY
        self.entry_size = entry_size
        self.bytes_max = bytes_max - bytes_max % entry_size
        fd = open_file(self.path, os.O_RDONLY if look_only else os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            if size % entry_size:
                raise CorruptIndexError(f"{self.path}: size {size} is not a multiple of {entry_size}")
            if size > 0:
                self.data = <uint8_t*>map_as(
                    fd, size, PROT_READ | PROT_WRITE, MAP_PRIVATE if look_only else MAP_SHARED)
                self.mapped_bytes = size
        finally:
            os.close(fd)
        return 0

    cdef bint is_full(self) noexcept nogil:
        return (self.entry_count + 1) * self.entry_size > self.bytes_max

    cdef int reserve(self) except -1:
        """Make room for one more entry. INDEX_NO_ROOM changes nothing: the disk is full, or the process has run out of
        file descriptors or maps.
        """
        cdef Py_ssize_t wanted
        if (self.entry_count + 1) * self.entry_size <= self.mapped_bytes:
            return INDEX_APPENDED
        if self.is_full():
            return INDEX_FULL
        wanted = self.mapped_bytes * 2
        if wanted < STEP_BYTES:
            wanted = STEP_BYTES
        if wanted > self.bytes_max:
            wanted = self.bytes_max
        return self.grow(wanted - wanted % self.entry_size)

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef int fd
        cdef void* moved
        try:
            fd = open_file(self.path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, size)
                if self.data == NULL:
                    self.data = <uint8_t*>map_file(fd, size, True)
                else:
                    moved = mremap(self.data, <size_t>self.mapped_bytes, <size_t>size, MREMAP_MAYMOVE)
                    if moved == MAP_FAILED:
                        if errno == ENOMEM:
                            raise ShortageError(ENOMEM, "mremap")
                        raise OSError(errno, "mremap: " + os.strerror(errno))
                    self.data = <uint8_t*>moved
                self.mapped_bytes = size
            finally:
                os.close(fd)
        except OSError as error:
            if may_do_without(error):
                return INDEX_NO_ROOM
            raise
        return INDEX_APPENDED

    @property
    def full(self) -> bool:
        return self.is_full()

    def raw_entries(self) -> bytes:
        """Return the written entries as they are in the file."""
        if self.data == NULL:
            return b""
        return PyBytes_FromStringAndSize(<char*>self.data, self.entry_count * self.entry_size)

    def resize_limit(self, Py_ssize_t bytes_max) -> None:
        """Follow a changed ``segment.index.bytes``."""
        self.bytes_max = bytes_max - bytes_max % self.entry_size

    def seal(self, bint sync=False, bint in_place=False) -> None:
        """Trim the file to its entries and unmap it. Readers that have mapped the old file keep it complete.

        in_place: no other process has mapped it, so the file itself may shrink, which is ten times as fast.
        """
        cdef Py_ssize_t size = self.entry_count * self.entry_size
        cdef bint is_long = size != self.mapped_bytes
        if in_place:
            self.close()
            if is_long:
                os.truncate(self.path, size)
        elif is_long:
            temporary = self.path + ".tmp"
            try:
                fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                try:
                    data = self.raw_entries()
                    if os.write(fd, data) != size:
                        raise OSError(ENOSPC, os.strerror(ENOSPC))
                    if sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                os.rename(temporary, self.path)
            except OSError as error:
                # If the disk is full, the zeros stay at the end of the file; every reader stops at them.
                if not may_do_without(error):
                    raise
                try:
                    os.unlink(temporary)
                except FileNotFoundError:
                    pass
        self.close()

    def close(self) -> None:
        """Unmap; the file stays as it is."""
        if self.data != NULL:
            munmap(self.data, <size_t>self.mapped_bytes)
            self.data = NULL
            self.mapped_bytes = 0

    def clear(self) -> None:
        """Remove all entries, in place, as other processes may have the file mapped."""
        self.drop_from(0)

    cdef int drop_from(self, Py_ssize_t keep) except -1:
        # Backwards, so that a concurrent search only ever sees a shorter index.
        cdef Py_ssize_t at = self.entry_count
        while at > keep:
            at -= 1
            if self.entry_size == OFFSET_ENTRY:
                store_entry_release(self.data + at * OFFSET_ENTRY, 0)
            else:
                memset(self.data + at * self.entry_size, 0, <size_t>self.entry_size)
        self.entry_count = keep
        return 0


cdef class OffsetIndex(MappedIndex):
    """Maps the last offset of a batch to the batch's position, about every ``index.interval.bytes``.

    Raises CorruptIndexError if the size is impossible; ``verify`` checks every entry.
    """

    def __init__(self, path, int64_t base_offset, Py_ssize_t bytes_max):
        self.open_file(OFFSET_ENTRY, bytes_max)
        if self.data != NULL:
            self.entry_count = search_offset(self.data, self.mapped_bytes // OFFSET_ENTRY, 0x7FFFFFFF) + 1

    cdef int append(self, int64_t offset, int64_t position) except -1:
        """INVARIANT: offsets and positions increase, and fit in 31 bits relative to the segment (the caller rolls)."""
        cdef int status = self.reserve()
        cdef unsigned long long entry
        if status != INDEX_APPENDED:
            return status
        entry = (<unsigned long long>(offset - self.base_offset) << 32) | <unsigned long long>position
        store_entry_release(self.data + self.entry_count * OFFSET_ENTRY, htobe64(entry))
        self.entry_count += 1
        return INDEX_APPENDED

    cdef void find(self, int64_t target, int64_t* offset, int64_t* position) noexcept nogil:
        find_position(self.data, self.entry_count, self.base_offset, target, offset, position)

    def append_entry(self, int64_t offset, int64_t position) -> int:
        """Python face of append, for tests and rebuilding; an IndexAppend number."""
        if not 0 < offset - self.base_offset <= 0x7FFFFFFF or not 0 < position <= 0x7FFFFFFF:
            raise ValueError(f"{self.path}: offset {offset} or position {position} does not fit")
        return self.append(offset, position)

    def lookup(self, int64_t target) -> tuple[int, int]:
        """(offset, position) of the last entry at or below ``target``, (base_offset, 0) if there is none."""
        cdef int64_t offset = 0, position = 0
        self.find(target, &offset, &position)
        return offset, position

    def entry(self, Py_ssize_t at) -> tuple[int, int]:
        if not 0 <= at < self.entry_count:
            raise IndexError(at)
        return (
            self.base_offset + load_i32(self.data + at * OFFSET_ENTRY), load_i32(self.data + at * OFFSET_ENTRY + 4)
        )

    def verify(self, int64_t log_bytes) -> None:
        """Check that entries are ascending and point into a log of ``log_bytes``; CorruptIndexError otherwise."""
        cdef int64_t last_offset = 0, last_position = 0
        cdef int32_t offset, position
        cdef Py_ssize_t at
        for at in range(self.entry_count):
            offset = load_i32(self.data + at * OFFSET_ENTRY)
            position = load_i32(self.data + at * OFFSET_ENTRY + 4)
            if offset <= last_offset or position <= last_position or position >= log_bytes:
                raise CorruptIndexError(f"{self.path}: entry {at} ({offset}, {position}) is out of order or range")
            last_offset, last_position = offset, position
        for at in range(self.entry_count * OFFSET_ENTRY, self.mapped_bytes):
            if self.data[at]:
                raise CorruptIndexError(f"{self.path}: byte {at}, after the last entry, is not zero")

    def truncate_to(self, int64_t offset) -> None:
        """Drop entries of batches that end at or above ``offset``."""
        cdef int64_t found = 0, position = 0
        cdef Py_ssize_t keep
        if self.data == NULL:
            return
        keep = search_offset(self.data, self.entry_count, offset - 1 - self.base_offset) + 1
        self.drop_from(keep)


cdef class TimeIndex(MappedIndex):
    """Maps the largest timestamp so far to the offset of the batch that holds it. Only the owner reads it."""

    def __init__(self, path, int64_t base_offset, Py_ssize_t bytes_max):
        self.open_file(TIME_ENTRY, bytes_max)
        if self.data != NULL:
            self.entry_count = self.count_entries()
        self.remember_last()

    cdef Py_ssize_t count_entries(self) noexcept nogil:
        # Timestamps increase, so an entry of zeros after the first one marks the end.
        cdef Py_ssize_t low = 0, high = self.mapped_bytes // TIME_ENTRY, middle
        cdef const uint8_t* p
        while low < high:
            middle = (low + high) >> 1
            p = self.data + middle * TIME_ENTRY
            if load_i64(p) != 0 or load_i32(p + 8) != 0:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int remember_last(self) except -1:
        cdef const uint8_t* p
        if self.entry_count == 0:
            self.last_timestamp = NO_TIMESTAMP
            self.last_offset = self.base_offset
        else:
            p = self.data + (self.entry_count - 1) * TIME_ENTRY
            self.last_timestamp = load_i64(p)
            self.last_offset = self.base_offset + load_i32(p + 8)
        return 0

    cdef bint is_full(self) noexcept nogil:
        # One entry is kept free for the largest timestamp, written when the segment is sealed.
        return (self.entry_count + 2) * self.entry_size > self.bytes_max

    cdef int maybe_append(self, int64_t timestamp, int64_t offset, bint final) except -1:
        """Append if ``timestamp`` is above the last entry's. final: it seals the index and may use the last place."""
        cdef int status
        cdef uint8_t* p
        if timestamp <= self.last_timestamp or offset < self.last_offset:
            return INDEX_APPENDED
        if self.is_full() and not (final and (self.entry_count + 1) * TIME_ENTRY <= self.bytes_max):
            return INDEX_FULL
        if (self.entry_count + 1) * TIME_ENTRY > self.mapped_bytes:
            status = self.grow(self.bytes_max) if self.is_full() else self.reserve()
            if status != INDEX_APPENDED:
                return status
        p = self.data + self.entry_count * TIME_ENTRY
        store_i64(p, timestamp)
        store_i32(p + 8, <int32_t>(offset - self.base_offset))
        self.entry_count += 1
        self.last_timestamp = timestamp
        self.last_offset = offset
        return INDEX_APPENDED

    def append_entry(self, int64_t timestamp, int64_t offset, bint final=False) -> int:
        """Python face of maybe_append, for tests and rebuilding; an IndexAppend number."""
        if not 0 <= offset - self.base_offset <= 0x7FFFFFFF:
            raise ValueError(f"{self.path}: offset {offset} does not fit")
        return self.maybe_append(timestamp, offset, final)

    def seal_in_place(self, int64_t timestamp, int64_t offset) -> None:
        """Append the final entry if it is new, then ``seal`` in place: no other process may have the file mapped."""
        cdef int fd
        cdef uint8_t[TIME_ENTRY] entry
        if self.data != NULL:
            if timestamp > self.last_timestamp:
                self.append_entry(timestamp, offset, True)
        elif timestamp > self.last_timestamp:
            # The file is empty: mapping a step of it for one entry and trimming it again would be slower.
            store_i64(entry, timestamp)
            store_i32(entry + 8, <int32_t>(offset - self.base_offset))
            fd = -1
            try:
                fd = open_file(self.path, os.O_WRONLY)
                if os.write(fd, PyBytes_FromStringAndSize(<char*>entry, TIME_ENTRY)) != TIME_ENTRY:
                    os.ftruncate(fd, 0)
            except OSError as error:
                if not may_do_without(error):
                    raise
            finally:
                if fd >= 0:
                    os.close(fd)
        self.seal(in_place=True)

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry, (-1, base_offset) when empty."""
        return self.last_timestamp, self.last_offset

    def entry(self, Py_ssize_t at) -> tuple[int, int]:
        if not 0 <= at < self.entry_count:
            raise IndexError(at)
        cdef const uint8_t* p = self.data + at * TIME_ENTRY
        return load_i64(p), self.base_offset + load_i32(p + 8)

    def lookup(self, int64_t timestamp) -> tuple[int, int]:
        """(timestamp, offset) of the last entry at or below ``timestamp``, (-1, base_offset) if there is none.

        Every record below that offset is older than ``timestamp``, unless ``timestamp`` equals the entry's.
        """
        cdef Py_ssize_t low = 0, high = self.entry_count, middle
        while low < high:
            middle = (low + high) >> 1
            if load_i64(self.data + middle * TIME_ENTRY) <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (NO_TIMESTAMP, self.base_offset)

    def verify(self, int64_t end_offset) -> None:
        """Check that entries are ascending and below ``end_offset``; CorruptIndexError otherwise."""
        cdef int64_t last_timestamp = -1, timestamp
        cdef int32_t last_offset = 0, offset
        cdef Py_ssize_t at
        cdef const uint8_t* p
        for at in range(self.entry_count):
            p = self.data + at * TIME_ENTRY
            timestamp = load_i64(p)
            offset = load_i32(p + 8)
            if timestamp <= last_timestamp or offset < last_offset or self.base_offset + offset >= end_offset:
                raise CorruptIndexError(f"{self.path}: entry {at} ({timestamp}, {offset}) is out of order or range")
            last_timestamp, last_offset = timestamp, offset
        for at in range(self.entry_count * TIME_ENTRY, self.mapped_bytes):
            if self.data[at]:
                raise CorruptIndexError(f"{self.path}: byte {at}, after the last entry, is not zero")

    def truncate_to(self, int64_t offset) -> None:
        """Drop entries at or above ``offset``."""
        cdef Py_ssize_t keep = self.entry_count
        while keep and self.base_offset + load_i32(self.data + (keep - 1) * TIME_ENTRY + 8) >= offset:
            keep -= 1
        self.drop_from(keep)
        self.remember_last()

    def clear(self) -> None:
        self.drop_from(0)
        self.remember_last()


cdef class OffsetIndexReader:
    """Read-only map of the ``.index`` of a sealed or active segment, for a process that does not own the log.

    The owner extends the file while the segment is active and replaces it when the segment is sealed (the old map stays
    valid); open it again to see more. If the file is missing or empty, every lookup returns (base_offset, 0).
    """

    def __cinit__(self, path, int64_t base_offset):
        self.data = NULL
        self.mapped_bytes = 0
        self.base_offset = base_offset
        self.path = os.fspath(path)

    def __init__(self, path, int64_t base_offset):
        cdef int fd
        cdef Py_ssize_t size
        try:
            fd = open_file(self.path)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(fd).st_size
            size -= size % OFFSET_ENTRY
            if size > 0:
                self.data = <const uint8_t*>map_file(fd, size, False)
                self.mapped_bytes = size
        finally:
            os.close(fd)

    def __dealloc__(self):
        if self.data != NULL:
            munmap(<void*>self.data, <size_t>self.mapped_bytes)

    cdef void find(self, int64_t target, int64_t* offset, int64_t* position) noexcept nogil:
        find_position(self.data, self.mapped_bytes // OFFSET_ENTRY, self.base_offset, target, offset, position)

    def lookup(self, int64_t target) -> tuple[int, int]:
        """(offset, position) of the last entry at or below ``target``, (base_offset, 0) if there is none."""
        cdef int64_t offset = 0, position = 0
        self.find(target, &offset, &position)
        return offset, position

    @property
    def room_for_entries(self) -> int:
        """Number of entries that fit in the map, written or not."""
        return self.mapped_bytes // OFFSET_ENTRY

    def close(self) -> None:
        if self.data != NULL:
            munmap(<void*>self.data, <size_t>self.mapped_bytes)
            self.data = NULL
            self.mapped_bytes = 0
