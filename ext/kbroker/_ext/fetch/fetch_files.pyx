"""Descriptors of log and index files in one network process, kept open from fetch to fetch.

INVARIANT: a place whose ``references`` is above 0 keeps its descriptor, whatever happens to the file's name or to the
handle that led to it. BOUND: ``capacity`` descriptors, or fewer if the process has no more; when all of them are in
flight, open() fails with -ENFILE.
"""

from libc.errno cimport EMFILE, ENFILE, errno
from libc.stdlib cimport calloc, free
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, open as posix_open
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close

cdef enum:
    NO_PLACE = -1


cdef class FileCache:
    """At most ``capacity`` open files, the least recently used closed first."""

    def __cinit__(self, int32_t capacity):
        if capacity < 2:
            raise ValueError(f"{capacity} open files are too few: a log and its index are open together")
        self.files = <OpenFile*>calloc(<size_t>capacity, sizeof(OpenFile))
        if self.files == NULL:
            raise MemoryError
        self.capacity = capacity
        self.newest = NO_PLACE
        self.oldest = NO_PLACE
        self.free_head = NO_PLACE

    def __dealloc__(self):
        cdef int32_t index
        if self.files == NULL:
            return
        for index in range(self.used):
            if self.files[index].fd >= 0:
                close(self.files[index].fd)
        free(self.files)

    cdef int32_t open(self, const char* path, FileHandle* handle) noexcept:
        cdef:
            OpenFile* file
            struct_stat status
            int32_t index
            int fd
        handle.index = NO_PLACE
        if self.free_head == NO_PLACE and self.used == self.capacity and not self.close_oldest():
            self.denied_total += 1
            return -ENFILE
        fd = self.open_path(path)
        if fd < 0:
            return fd
        if fstat(fd, &status) < 0:
            close(fd)
            return -errno
        index = self.free_head
        if index == NO_PLACE:
            index = self.used
            self.used += 1
        else:
            self.free_head = self.files[index].older
        file = &self.files[index]
        file.fd = fd
        file.generation += 1
        file.references = 0
        file.retired = False
        file.inode = <uint64_t>status.st_ino
        file.last_use_ms = self.now_ms
        self.push_newest(index)
        self.open_count += 1
        self.opened_total += 1
        handle.index = index
        handle.generation = file.generation
        return index

    cdef int open_path(self, const char* path) noexcept:
        cdef int fd = posix_open(path, O_RDONLY | O_CLOEXEC)
        while fd < 0 and self.make_room(errno):
            fd = posix_open(path, O_RDONLY | O_CLOEXEC)
        return fd if fd >= 0 else -errno

    cdef bint make_room(self, int code) noexcept:
        return (code == EMFILE or code == ENFILE) and self.close_oldest()

    cdef bint close_oldest(self) noexcept:
        """Close the file used least recently of those that are not in flight; False when all are."""
        cdef int32_t index = self.oldest
        while index != NO_PLACE and self.files[index].references > 0:
            index = self.files[index].newer
        if index == NO_PLACE:
            return False
        self.close_place(index)
        return True

    cdef int32_t find(self, FileHandle handle) noexcept:
        """Index of the file if it is still open, else -1; counts as a use."""
        cdef OpenFile* file
        if handle.index < 0:
            return NO_PLACE
        file = &self.files[handle.index]
        if file.generation != handle.generation or file.fd < 0 or file.retired:
            return NO_PLACE
        file.last_use_ms = self.now_ms
        if handle.index != self.newest:
            self.unlink_place(handle.index)
            self.push_newest(handle.index)
        return handle.index

    cdef void hold(self, int32_t index) noexcept:
        self.files[index].references += 1

    cdef void drop(self, int32_t index) noexcept:
        cdef OpenFile* file = &self.files[index]
        file.references -= 1
        if file.references == 0 and file.retired:
            self.close_place(index)

    cdef void retire(self, FileHandle handle) noexcept:
        """The name now means another file, or nothing: close as soon as nothing is in flight."""
        cdef OpenFile* file
        if handle.index < 0:
            return
        file = &self.files[handle.index]
        if file.generation != handle.generation or file.fd < 0 or file.retired:
            return
        if file.references > 0:
            file.retired = True
        else:
            self.close_place(handle.index)

    cdef void close_idle(self, int64_t before_ms) noexcept:
        cdef int32_t index = self.oldest
        cdef int32_t following
        while index != NO_PLACE and self.files[index].last_use_ms < before_ms:
            following = self.files[index].newer
            if self.files[index].references == 0:
                self.close_place(index)
            index = following

    cdef void close_place(self, int32_t index) noexcept:
        cdef OpenFile* file = &self.files[index]
        close(file.fd)
        file.fd = -1
        self.unlink_place(index)
        file.older = self.free_head
        self.free_head = index
        self.open_count -= 1

    cdef void unlink_place(self, int32_t index) noexcept:
        cdef OpenFile* file = &self.files[index]
        if file.newer != NO_PLACE:
            self.files[file.newer].older = file.older
        else:
            self.newest = file.older
        if file.older != NO_PLACE:
            self.files[file.older].newer = file.newer
        else:
            self.oldest = file.newer

    cdef void push_newest(self, int32_t index) noexcept:
        cdef OpenFile* file = &self.files[index]
        file.newer = NO_PLACE
        file.older = self.newest
        if self.newest != NO_PLACE:
            self.files[self.newest].newer = index
        else:
            self.oldest = index
        self.newest = index
