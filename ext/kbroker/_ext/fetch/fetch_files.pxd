# Open log and index files of one network process: at most `capacity`, least recently used closed first, and none closed
# while a response still has a range of it to send.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef struct OpenFile:
    int fd                 # -1: this place is free
    uint32_t generation    # changes each time the place is reused
    int32_t references     # ranges in flight
    bint retired           # no handle finds it any more; closed when `references` falls to 0
    uint64_t inode
    int64_t last_use_ms
    int32_t newer          # neighbours in order of use; `older` also chains free places
    int32_t older


# Names a file that may have been closed since: FileCache.find() returns -1 then. index -1 names no file.
cdef struct FileHandle:
    int32_t index
    uint32_t generation


cdef class FileCache:
    cdef OpenFile* files
    cdef readonly int32_t capacity
    cdef readonly int32_t open_count
    cdef readonly uint64_t opened_total
    cdef readonly uint64_t denied_total   # opens that found every place in flight
    cdef int64_t now_ms         # set by the engine at each call; coarse is enough
    cdef int32_t newest
    cdef int32_t oldest
    cdef int32_t free_head
    cdef int32_t used           # places below this one have been used: the rest is memory that nobody has touched
    # Free a descriptor when there is none: close the least recently used file that is not in flight. Whether that worked.
    cdef bint make_room(self, int code) noexcept
    cdef bint close_oldest(self) noexcept
    # A descriptor to read the file with, which the caller closes; -errno on failure. Makes room for it.
    cdef int open_path(self, const char* path) noexcept
    # Index of the open file, -errno on failure (-ENFILE when every place is in flight). Raises nothing.
    cdef int32_t open(self, const char* path, FileHandle* handle) noexcept
    cdef int32_t find(self, FileHandle handle) noexcept
    cdef void hold(self, int32_t index) noexcept
    cdef void drop(self, int32_t index) noexcept
    cdef void retire(self, FileHandle handle) noexcept
    # Close files that have not been used since `before_ms`: a deleted segment keeps its disk space while a descriptor is open.
    cdef void close_idle(self, int64_t before_ms) noexcept
    cdef void close_place(self, int32_t index) noexcept
    cdef void unlink_place(self, int32_t index) noexcept
    cdef void push_newest(self, int32_t index) noexcept
