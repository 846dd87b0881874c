"""Finds where an offset is in a partition's segment files, with the help of positions remembered from earlier fetches.

Runs in network processes, which only read: nothing here goes past what a slot publishes, and nothing is mapped, so a
truncated file is a failed read and never a signal. Cost of finding a position: none if the last fetch ended there or
there is nothing new; one read of index entries and one of batch headers if a reader continues after a range that was
cut; a binary search of the index by ``pread`` if it comes from anywhere else.

INVARIANT: the owner of the log changes ``segment_version`` whenever it adds, removes, replaces or truncates a segment
file; positions remembered here are valid until then.
"""

import logging
import os

from libc.errno cimport EMFILE, ENFILE, ENOENT, ENOTDIR, errno
from libc.stdlib cimport calloc, free
from posix.stat cimport fstat, struct_stat

from kbroker._ext.fetch.fetch_checks cimport end_problem, is_unchecked, scan_on, stretch_at
from kbroker._ext.fetch.fetch_hints cimport Hint, best_hint, forget_hints, remember
from kbroker._ext.fetch.segment_search cimport (
    FIND_CORRUPT,
    FIND_IO_ERROR,
    FIND_MISSING,
    FIND_NO_PLACE,
    FIND_OK,
    BatchHeader,
    index_floor,
    read_header,
    walk,
)
from kbroker._ext.shared.partition_table cimport SLOT_GAPLESS

from kbroker.errors import ShortageError
from kbroker.logcontext import RateLimit

cdef enum:
    NOT_OPEN = -1

cdef int64_t LARGEST = 0x7FFFFFFFFFFFFFFF

logger = logging.getLogger(__name__)
lines = RateLimit()


def report_shortage(int code) -> None:
    times = lines.due(code)
    if times:
        logger.error("cannot open files for a fetch, its response is empty (%d times): %s", times, ShortageError(code))


def report_failed_read(str path, str problem) -> None:
    """Log which file or directory is the cause of a reader's KAFKA_STORAGE_ERROR."""
    times = lines.due(path)
    if times:
        logger.error("a fetch cannot read %s (%d times): %s", path, times, problem)


cdef class LogFiles:
    """The segments of one partition. One object per partition and network process, created by the first fetch."""

    def __cinit__(self, str directory not None, FileCache cache not None):
        self.directory = directory
        self.cache = cache
        forget_hints(&self.hints)

    def __dealloc__(self):
        # The files stay in the cache until it needs their places: `cache` may already be freed when this runs.
        free(self.segments)

    cdef FindStatus find_range(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *:
        cdef FindStatus status
        out.file = NOT_OPEN
        out.segment_base_offset = end.segment_base_offset
        out.position = end.position
        out.size = 0
        out.available = 0
        if offset >= end.offset:
            if offset > end.offset:
                out.segment_base_offset = -1
            return FIND_OK
        if (
            not self.loaded
            or self.segment_version != slot.segment_version
            or self.slot_incarnation != slot.slot_incarnation
        ):
            # The versions are read before the directory: a change in between is seen by the next fetch.
            self.segment_version = slot.segment_version
            self.slot_incarnation = slot.slot_incarnation
            status = self.refresh()
            if status != FIND_OK:
                return status
        status = self.search(offset, slot, end, bytes_max, at_least_one, out)
        if status == FIND_MISSING:
            status = self.refresh()
            if status == FIND_OK:
                status = self.search(offset, slot, end, bytes_max, at_least_one, out)
        return status

    cdef FindStatus search(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *:
        cdef int32_t number = self.floor_segment(offset)
        cdef FindStatus status
        while number < self.segment_count and self.segments[number].base_offset <= end.segment_base_offset:
            status = self.search_segment(&self.segments[number], offset, end, bytes_max, at_least_one, out)
            if status != FIND_OK:
                return status
            if out.available > 0:
                if is_unchecked(slot, out.segment_base_offset, out.position) and out.size > 0:
                    return self.check(slot, out)
                return FIND_OK
            if self.segments[number].base_offset == end.segment_base_offset:
                return FIND_OK  # compaction left nothing from `offset` up to the published end
            if is_unchecked(slot, self.segments[number].base_offset, 0) and not self.segments[number].end_is_sound:
                status = self.check_end(number, slot)
                if status != FIND_OK:
                    return status
            number += 1  # this one has nothing at or above `offset`
        return FIND_MISSING  # the segment of the published end is not in the list, so the list is stale

    cdef FindStatus search_segment(
        self, Segment* segment, int64_t offset, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *:
        """Fill *out from this segment; ``available`` is 0 if it has nothing at or above ``offset``."""
        cdef:
            BatchHeader header
            FindStatus status = FIND_OK
            struct_stat facts
            int64_t limit = end.position
            int64_t position = 0
            int64_t index_entry = 0
            int32_t file = self.open_file(segment, False)
            int fd
        if file < 0:
            if file == -ENOENT or file == -ENOTDIR:
                return FIND_MISSING
            if file == -EMFILE:
                report_shortage(EMFILE)
            if file == -ENFILE or file == -EMFILE:
                return FIND_NO_PLACE
            return self.note_failure(segment.base_offset, -file)
        fd = self.cache.files[file].fd
        if segment.base_offset != end.segment_base_offset:
            if segment.sealed_size < 0:
                if fstat(fd, &facts) < 0:
                    return self.note_failure(segment.base_offset, errno)
                segment.sealed_size = facts.st_size
            limit = segment.sealed_size
        if offset > segment.base_offset:
            self.cache.hold(file)  # opening the index must not evict it
            try:
                status = self.locate(segment, fd, offset, limit, &position, &index_entry)
            finally:
                self.cache.drop(file)
            if status == FIND_IO_ERROR:
                self.failed_segment = segment.base_offset
        if status != FIND_OK or position >= limit:
            out.available = 0
            return status
        out.file = file
        out.segment_base_offset = segment.base_offset
        out.position = position
        out.available = limit - position
        out.size = out.available
        if bytes_max >= out.available:
            if segment.base_offset == end.segment_base_offset:
                remember(&self.hints, end.offset, segment.base_offset, limit, index_entry)
            return FIND_OK
        status = read_header(fd, position, limit, &header, &self.reads)
        if status == FIND_CORRUPT:
            return self.note_damage(segment.base_offset, position, "no batch begins at this position")
        if status != FIND_OK:
            self.failed_segment = segment.base_offset
            return status
        if header.size <= bytes_max:
            out.size = bytes_max
        elif at_least_one:
            out.size = min(header.size, out.available)
            if header.last_offset >= offset:
                remember(&self.hints, header.last_offset + 1, segment.base_offset, position + out.size, index_entry)
                return FIND_OK
        else:
            out.size = 0
        remember(&self.hints, offset, segment.base_offset, position, index_entry)
        return FIND_OK

    cdef FindStatus locate(
        self, Segment* segment, int fd, int64_t offset, int64_t limit, int64_t* position, int64_t* index_entry
    ) except *:
        """Find the position of the first batch that ends at or above ``offset``; ``limit`` if there is none."""
        cdef:
            Hint* hint = best_hint(&self.hints, offset, segment.base_offset, limit)
            FindStatus status
            int64_t entry = 0
            int64_t entry_position = 0
            int64_t start = 0
        if hint != NULL:
            entry = hint.index_entry
            start = hint.position
            if hint.offset == offset:
                position[0] = start
                index_entry[0] = entry
                return FIND_OK
        if self.index_floor(segment, offset, limit, &entry, &entry_position):
            start = max(start, entry_position)
        index_entry[0] = entry
        position[0] = start
        status = walk(fd, offset, limit, position, &self.reads)
        if status == FIND_CORRUPT and start > 0:
            # A wrong index must not make sound data unreadable: search the segment from its start.
            position[0] = 0
            index_entry[0] = 0
            status = walk(fd, offset, limit, position, &self.reads)
        if status == FIND_CORRUPT:
            return self.note_damage(segment.base_offset, position[0], f"cannot find a batch with offset {offset}")
        return status

    cdef bint index_floor(
        self, Segment* segment, int64_t offset, int64_t limit, int64_t* index_entry, int64_t* position
    ) except *:
        """Find the last index entry at or below ``offset``, starting at ``*index_entry``. False if there is none."""
        cdef int32_t file = self.open_file(segment, True)
        if file < 0:
            index_entry[0] = 0
            return False
        return index_floor(
            self.cache.files[file].fd, offset - segment.base_offset, limit, index_entry, position, &self.reads)

    # ---- damage ----

    cdef FindStatus check(self, const SlotData* slot, FoundRange* out) except *:
        """Cut *out to the checked part. FIND_CORRUPT if even its first batch is damaged."""
        cdef:
            int32_t number = self.floor_segment(out.segment_base_offset)
            Segment* segment = &self.segments[number]
            int64_t following = slot.log_end.offset
            int64_t limit = out.position + out.available
            int64_t wanted
            Stretch* stretch = stretch_at(segment.checked, segment.base_offset, out.position)
            int fd = self.cache.files[out.file].fd
        if segment.base_offset == slot.checked_segment and slot.checked_position < limit:
            limit = slot.checked_position
        if number + 1 < self.segment_count:
            following = self.segments[number + 1].base_offset
        wanted = min(out.position + out.size, limit)
        if stretch.end >= wanted:
            return FIND_OK
        self.cache.hold(out.file)
        try:
            problem = scan_on(
                fd, segment.base_offset, stretch, limit, following, slot.flags & SLOT_GAPLESS != 0, &self.checked_bytes)
        except OSError as error:
            return self.note_failure(segment.base_offset, error.errno or 0)
        finally:
            self.cache.drop(out.file)
        if stretch.end >= wanted:
            return FIND_OK
        if stretch.end > out.position:
            out.size = stretch.end - out.position
            return FIND_OK
        return self.note_damage(segment.base_offset, stretch.end, problem or "no batch begins at this position")

    cdef FindStatus check_end(self, int32_t number, const SlotData* slot) except *:
        """Check that a sealed segment that has been read to its end does end where its index and successor say."""
        cdef:
            Segment* segment = &self.segments[number]
            int64_t following = self.segments[number + 1].base_offset if number + 1 < self.segment_count else -1
            int64_t entry = 0, last = 0
            int32_t file = self.open_file(segment, False)
        if file < 0:
            return FIND_OK  # deleted, or no place: the search has reported it
        self.cache.hold(file)
        try:
            if not self.index_floor(segment, LARGEST, LARGEST, &entry, &last):
                last = 0
            problem = end_problem(
                self.cache.files[file].fd, segment.base_offset, segment.sealed_size, last, following,
                slot.flags & SLOT_GAPLESS != 0)
        except OSError as error:
            return self.note_failure(segment.base_offset, error.errno or 0)
        finally:
            self.cache.drop(file)
        if problem is not None:
            return self.note_damage(segment.base_offset, problem[0], problem[1])
        segment.end_is_sound = True
        return FIND_OK

    cdef FindStatus note_damage(self, int64_t segment_base_offset, int64_t position, str problem) except *:
        self.damage = segment_base_offset, position, problem
        return FIND_CORRUPT

    cdef FindStatus note_failure(self, int64_t segment_base_offset, int code) noexcept:
        self.failed_segment = segment_base_offset
        self.reads.failed_errno = code
        return FIND_IO_ERROR

    cdef int report_failure(self) except -1:
        """Log the cause of the last FIND_IO_ERROR."""
        path = self.directory if self.failed_segment < 0 else f"{self.directory}/{self.failed_segment:020d}.log"
        code = self.reads.failed_errno
        problem = os.strerror(code) if code else "the file is shorter than expected"
        report_failed_read(path, problem)
        return 0

    cdef int32_t open_file(self, Segment* segment, bint index) except? -9999:
        """Return the place of the segment's log or index in the file cache, or -errno."""
        cdef int32_t place = self.cache.find(segment.index if index else segment.log)
        cdef bytes path
        if place >= 0:
            return place
        path = os.fsencode(f"{self.directory}/{segment.base_offset:020d}{'.index' if index else '.log'}")
        return self.cache.open(path, &segment.index if index else &segment.log)

    cdef FindStatus refresh(self) except *:
        """List the directory again. Open files whose name still refers to the same file are kept."""
        cdef:
            list found = []
            Segment* fresh
            Segment* old
            int32_t number, at
            int64_t base_offset
            uint64_t inode
        self.loaded = False
        self.refreshes += 1
        forget_hints(&self.hints)
        while True:
            try:
                with os.scandir(self.directory) as entries:
                    for entry in entries:
                        name = entry.name
                        if len(name) == 24 and name.endswith(".log") and name.isascii() and name[:20].isdigit():
                            if name <= "09223372036854775807.log":
                                found.append((int(name[:20]), entry.inode()))
                break
            except OSError as error:
                if self.cache.make_room(error.errno):
                    continue
                if error.errno in (EMFILE, ENFILE):
                    report_shortage(error.errno)
                    return FIND_NO_PLACE
                if error.errno in (ENOENT, ENOTDIR):
                    return FIND_MISSING
                return self.note_failure(-1, error.errno or 0)
        found.sort()
        fresh = <Segment*>calloc(<size_t>max(len(found), 1), sizeof(Segment))
        if fresh == NULL:
            raise MemoryError
        at = 0
        for number, (base_offset, inode) in enumerate(found):
            fresh[number].base_offset = base_offset
            fresh[number].sealed_size = -1
            fresh[number].log.index = NOT_OPEN
            fresh[number].index.index = NOT_OPEN
            fresh[number].inode = inode
            while at < self.segment_count and self.segments[at].base_offset < base_offset:
                self.cache.retire(self.segments[at].log)
                self.cache.retire(self.segments[at].index)
                at += 1
            if at < self.segment_count and self.segments[at].base_offset == base_offset:
                old = &self.segments[at]
                at += 1
                # The last segment may have been truncated and rewritten: by recovery, or on a follower.
                if old.inode == inode and at < self.segment_count and number + 1 < len(found):
                    fresh[number].checked = old.checked
                    fresh[number].end_is_sound = old.end_is_sound
                self.cache.retire(old.index)  # may have been rebuilt under the same name
                if self.cache.find(old.log) >= 0:
                    if self.cache.files[old.log.index].inode == inode:
                        fresh[number].log = old.log
                    else:
                        self.cache.retire(old.log)
        while at < self.segment_count:
            self.cache.retire(self.segments[at].log)
            self.cache.retire(self.segments[at].index)
            at += 1
        free(self.segments)
        self.segments = fresh
        self.segment_count = <int32_t>len(found)
        self.aborted = [None] * self.segment_count
        self.aborted_cached = 0
        self.loaded = True
        return FIND_OK

    cdef void close(self) noexcept:
        cdef int32_t number
        for number in range(self.segment_count):
            self.cache.retire(self.segments[number].log)
            self.cache.retire(self.segments[number].index)
        free(self.segments)
        self.segments = NULL
        self.segment_count = 0
        self.aborted = []
        self.aborted_cached = 0
        self.loaded = False

    cdef int32_t floor_segment(self, int64_t offset) noexcept:
        """Return the number of the last segment that begins at or below ``offset``; 0 if all begin above it."""
        cdef int32_t low = 0
        cdef int32_t high = self.segment_count
        cdef int32_t middle
        while high - low > 1:
            middle = (low + high) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    def counts(self) -> dict:
        """The cost of finding positions so far, for tests and tools."""
        return {
            "segments": self.segment_count,
            "index_searches": self.reads.index_searches,
            "header_reads": self.reads.header_reads,
            "refreshes": self.refreshes,
            "aborted_reads": self.aborted_reads,
            "checked_bytes": self.checked_bytes,
        }
