"""Where in a partition's segment files an offset lies, found with as few reads as the past allows.

Runs in network processes, which only read: nothing here goes past what a slot publishes, and nothing is mapped, so a
file cut short is a failed read and never a signal. Cost of finding a position: none when the last fetch ended there
or there is nothing new; one read of index entries and one of batch headers when a reader goes on after a range that
was cut; a binary search of the index by ``pread`` when it comes from anywhere else.

INVARIANT: the owner of the log changes ``segment_version`` whenever it adds, removes, replaces or truncates a segment
file; positions remembered here are good until then.
"""

import logging
import os

from libc.errno cimport EINTR, EMFILE, ENFILE, ENOENT, ENOTDIR, errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from posix.stat cimport fstat, struct_stat
from posix.types cimport off_t
from posix.unistd cimport pread

from kbroker._ext.partition_table cimport SLOT_GAPLESS
from kbroker._ext.wire cimport load_i32, load_i64

from kbroker._ext.log_scan import DAMAGED, END, scan_segment

from kbroker.errors import ShortageError
from kbroker.logcontext import RateLimit

cdef enum:
    INDEX_ENTRY_SIZE = 8
    INDEX_BLOCK = 512               # entries read at once: as much of the log as a 2 MiB range usually covers
    HEADER_SIZE = 27                # of a format 2 batch, up to its last offset delta
    LEGACY_HEADER_SIZE = 17         # of a format 0 or 1 message, up to its magic byte
    LOG_OVERHEAD = 12               # base offset and length, not counted by the length field
    BATCH_LENGTH_MIN = 49
    LEGACY_LENGTH_MIN = 14
    WALK_CHUNK = 4096
    WALK_CHUNK_LONG = 65536         # after WALK_CHUNKS_SHORT chunks: the index is missing, the walk will be long
    WALK_CHUNKS_SHORT = 8
    NOT_OPEN = -1
    CHECK_BYTES = 1 << 20           # checked at a time: BOUND of how long a turn is held up, but for one large batch

cdef int64_t LARGEST = 0x7FFFFFFFFFFFFFFF

# COPY: scratch for headers and index entries, never for records. One per process: nothing here is re-entrant.
cdef uint8_t[WALK_CHUNK_LONG] scratch


log = logging.getLogger(__name__)
lines = RateLimit()


def report_shortage(int code) -> None:
    times = lines.due(code)
    if times:
        log.error("a fetch finds nothing, for now (%d times): %s", times, ShortageError(code))


def report_failed_read(str path, str problem) -> None:
    """A reader gets KAFKA_STORAGE_ERROR: say which file, or directory, is the cause."""
    times = lines.due(path)
    if times:
        log.error("a fetch cannot read %s (%d times): %s", path, times, problem)


cdef Py_ssize_t read_at(int fd, uint8_t* into, Py_ssize_t size, int64_t position) noexcept:
    # As pread, but never interrupted; short only at the end of the file.
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


cdef inline bint is_unchecked(const SlotData* slot, int64_t segment_base_offset, int64_t position) noexcept nogil:
    return segment_base_offset < slot.checked_segment or (
        segment_base_offset == slot.checked_segment and position < slot.checked_position
    )


cdef FindStatus parse_header(const uint8_t* p, int64_t room, BatchHeader* out) noexcept nogil:
    # `room` is what may be read at p. Anything that no writer of a log leaves there is FIND_CORRUPT.
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
        # A log written before format 2: the offset is that of the message, or of the last one wrapped in it.
        if length < LEGACY_LENGTH_MIN:
            return FIND_CORRUPT
        out.last_offset = out.base_offset
    else:
        return FIND_CORRUPT
    return FIND_OK


cdef inline bint is_after(const uint8_t* entry, int64_t number, int64_t relative_offset, int64_t limit) noexcept nogil:
    # Whether index entry `number` lies beyond the wanted offset or the published end, or is padding (zeros behind the
    # last entry of a preallocated index; only entry 0 can rightly be zero). Monotone over a sound index.
    cdef int32_t relative = load_i32(entry)
    cdef int32_t position = load_i32(entry + 4)
    if number > 0 and relative <= 0:
        return True
    return relative < 0 or position < 0 or relative > relative_offset or position >= limit


cdef int32_t last_at_or_before(
    const uint8_t* entries, int32_t count, int64_t first_number, int64_t relative_offset, int64_t limit
) noexcept nogil:
    # Position in the block of the last entry that is not after; -1 when all are.
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


cdef class LogFiles:
    """The segments of one partition. One object per partition and network process, made at its first fetch."""

    def __cinit__(self, str directory not None, FileCache cache not None):
        cdef int32_t number
        self.directory = directory
        self.cache = cache
        for number in range(HINT_COUNT):
            self.hints[number].offset = -1

    def __dealloc__(self):
        # The files stay in the cache until it needs their places: `cache` may be gone already when this runs.
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
            # The versions were read before the directory is: a change in between is seen at the next fetch.
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
            number += 1  # nothing at or above `offset` is left in this one
        return FIND_MISSING  # the segment of the published end is not in the list: the list is stale

    cdef FindStatus search_segment(
        self, Segment* segment, int64_t offset, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *:
        """Fill *out from this segment; ``available`` is 0 when it holds nothing from ``offset`` on."""
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
            self.cache.hold(file)  # opening the index must not close it
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
                self.remember(end.offset, segment.base_offset, limit, index_entry)
            return FIND_OK
        status = self.read_header(fd, position, limit, &header)
        if status == FIND_CORRUPT:
            return self.note_damage(segment.base_offset, position, "no batch begins there")
        if status != FIND_OK:
            self.failed_segment = segment.base_offset
            return status
        if header.size <= bytes_max:
            out.size = bytes_max
        elif at_least_one:
            out.size = min(header.size, out.available)
            if header.last_offset >= offset:
                self.remember(header.last_offset + 1, segment.base_offset, position + out.size, index_entry)
                return FIND_OK
        else:
            out.size = 0
        self.remember(offset, segment.base_offset, position, index_entry)
        return FIND_OK

    cdef FindStatus locate(
        self, Segment* segment, int fd, int64_t offset, int64_t limit, int64_t* position, int64_t* index_entry
    ) except *:
        """Position of the first batch that ends at or above ``offset``, or ``limit`` when there is none."""
        cdef:
            Hint* hint = self.best_hint(offset, segment.base_offset, limit)
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
        status = self.walk(fd, offset, limit, position)
        if status == FIND_CORRUPT and start > 0:
            # A wrong index must not make sound data unreadable: the segment itself is the truth.
            position[0] = 0
            index_entry[0] = 0
            status = self.walk(fd, offset, limit, position)
        if status == FIND_CORRUPT:
            return self.note_damage(segment.base_offset, position[0], f"no batch with offset {offset} can be found")
        return status

    cdef bint index_floor(
        self, Segment* segment, int64_t offset, int64_t limit, int64_t* index_entry, int64_t* position
    ) except *:
        """The last index entry at or below ``offset``, searched from ``*index_entry`` on. False: there is none."""
        cdef:
            int64_t relative = offset - segment.base_offset
            int64_t low = index_entry[0]
            int64_t high, middle
            int32_t file = self.open_file(segment, True)
            int32_t count, found
            int fd
            struct_stat facts
        index_entry[0] = 0
        if file < 0:
            return False
        fd = self.cache.files[file].fd
        self.index_searches += 1
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

    # ---- damage ----
    #
    # Each batch is checked once before it is sent: by the owner, which wrote or recovered it and says so in the slot, or
    # here, a little ahead of what is asked for. What was checked here is remembered as a few stretches of each segment.

    cdef FindStatus check(self, const SlotData* slot, FoundRange* out) except *:
        """Cut *out to what is checked. FIND_CORRUPT when not even its first batch is good."""
        cdef:
            int32_t number = self.floor_segment(out.segment_base_offset)
            Segment* segment = &self.segments[number]
            int64_t following = slot.log_end.offset
            int64_t limit = out.position + out.available
            int64_t wanted
            Stretch* stretch = self.stretch_at(segment, out.position)
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
            problem = self.scan_on(segment, fd, stretch, limit, following, slot.flags & SLOT_GAPLESS != 0)
        except OSError as error:
            return self.note_failure(segment.base_offset, error.errno or 0)
        finally:
            self.cache.drop(out.file)
        if stretch.end >= wanted:
            return FIND_OK
        if stretch.end > out.position:
            out.size = stretch.end - out.position
            return FIND_OK
        return self.note_damage(segment.base_offset, stretch.end, problem or "there is no batch")

    cdef object scan_on(
        self, Segment* segment, int fd, Stretch* stretch, int64_t limit, int64_t following, bint gapless
    ):
        """Check on for at least one batch and about CHECK_BYTES; None, or what is wrong with the batch behind it.

        following: no offset of the segment reaches it. gapless: none is missing where one is expected.
        """
        cdef int64_t begin = stretch.end
        cdef int64_t size = CHECK_BYTES
        cdef int64_t end = begin
        gapless &= begin == 0 or begin > stretch.start  # else nobody knows what to expect
        while end < limit:
            end = min(limit, begin + size)  # which may lie inside a batch
            scan = scan_segment(
                fd, segment.base_offset, end, position=begin, next_offset=stretch.next_offset, offset_limit=following,
                contiguous=gapless)
            self.checked_bytes += scan.end_position - begin
            if scan.batch_count > 0 and not scan.out_of_order:
                stretch.end = scan.end_position
                stretch.next_offset = scan.next_offset
                return None
            if scan.out_of_order:
                # No checksum covers an offset: whichever of two neighbours is the damaged one, none of them goes out.
                if scan.batch_count > 0:
                    stretch.end = scan.last_position
                return scan.problem
            size *= 2
        return scan.problem or "zeros in place of a batch"

    cdef Stretch* stretch_at(self, Segment* segment, int64_t position) noexcept:
        """The stretch that `position`, where a batch begins, is in or right behind; a new one in place of the shortest."""
        cdef Stretch* shortest = &segment.stretches[0]
        cdef Stretch* stretch
        cdef int number
        for number in range(STRETCH_COUNT):
            stretch = &segment.stretches[number]
            if stretch.end > stretch.start and stretch.start <= position <= stretch.end:
                return stretch
            if stretch.end - stretch.start < shortest.end - shortest.start:
                shortest = stretch
        shortest.start = shortest.end = position
        shortest.next_offset = segment.base_offset
        return shortest

    cdef FindStatus check_end(self, int32_t number, const SlotData* slot) except *:
        """Whether a sealed segment, of which a reader wants more than it has, ends where its index and successor say."""
        cdef:
            Segment* segment = &self.segments[number]
            int64_t following = self.segments[number + 1].base_offset if number + 1 < self.segment_count else -1
            int64_t size, entry = 0, position = 0, last = 0
            int32_t file = self.open_file(segment, False)
            int fd
        if file < 0:
            return FIND_OK  # gone, or no place: what is wrong with it was said by the search
        self.cache.hold(file)
        try:
            fd = self.cache.files[file].fd
            size = segment.sealed_size
            if self.index_floor(segment, LARGEST, LARGEST, &entry, &last) and last < size:
                position = last
            scan = scan_segment(fd, segment.base_offset, size, position=position)
        except OSError as error:
            return self.note_failure(segment.base_offset, error.errno or 0)
        finally:
            self.cache.drop(file)
        if last > 0 and last >= size:
            return self.note_damage(segment.base_offset, size, f"its index has an entry for position {last}")
        if scan.stop == DAMAGED:
            return self.note_damage(segment.base_offset, scan.end_position, scan.problem)
        if following >= 0 and (scan.next_offset > following or (
            slot.flags & SLOT_GAPLESS and scan.next_offset < following
        )):
            return self.note_damage(
                segment.base_offset, size, f"it ends at offset {scan.next_offset}, the next begins at {following}"
            )
        segment.end_is_sound = True
        return FIND_OK

    cdef FindStatus note_damage(self, int64_t segment_base_offset, int64_t position, str problem) except *:
        self.damage = segment_base_offset, position, problem
        return FIND_CORRUPT

    cdef FindStatus note_failure(self, int64_t segment_base_offset, int code) noexcept:
        self.failed_segment = segment_base_offset
        self.failed_errno = code
        return FIND_IO_ERROR

    cdef int report_failure(self) except -1:
        """Say what the last FIND_IO_ERROR was about."""
        path = self.directory if self.failed_segment < 0 else f"{self.directory}/{self.failed_segment:020d}.log"
        problem = os.strerror(self.failed_errno) if self.failed_errno else "it is shorter than what was written to it"
        report_failed_read(path, problem)
        return 0

    cdef FindStatus walk(self, int fd, int64_t offset, int64_t limit, int64_t* position) noexcept:
        """Move ``*position``, where a batch begins, to the first batch that ends at or above ``offset``.

        FIND_CORRUPT when no batch begins there, or when that first batch lies above ``offset`` although the walk did
        not begin at the start of the segment: a batch before it may be the one that is wanted.
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
                self.header_reads += 1
                if got < 0 or (got < LEGACY_HEADER_SIZE and at + got < limit):
                    self.failed_errno = errno if got < 0 else 0
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
            # Large batches: only their headers are wanted. Small ones and many of them: read more at once.
            if header.size > WALK_CHUNK:
                chunk = 64
            else:
                chunk = WALK_CHUNK if chunks < WALK_CHUNKS_SHORT else WALK_CHUNK_LONG
        if at > limit:
            return FIND_CORRUPT
        position[0] = limit
        return FIND_OK

    cdef FindStatus read_header(self, int fd, int64_t position, int64_t limit, BatchHeader* out) noexcept:
        cdef Py_ssize_t room = <Py_ssize_t>min(<int64_t>HEADER_SIZE, limit - position)
        cdef Py_ssize_t got = read_at(fd, scratch, room, position)
        self.header_reads += 1
        if got < room:
            self.failed_errno = errno if got < 0 else 0
            return FIND_IO_ERROR
        return parse_header(scratch, room, out)

    cdef int32_t open_file(self, Segment* segment, bint index) except? -9999:
        """Place of the segment's log or index in the file cache, or -errno."""
        cdef int32_t place = self.cache.find(segment.index if index else segment.log)
        cdef bytes path
        if place >= 0:
            return place
        path = os.fsencode(f"{self.directory}/{segment.base_offset:020d}{'.index' if index else '.log'}")
        return self.cache.open(path, &segment.index if index else &segment.log)

    cdef FindStatus refresh(self) except *:
        """List the directory anew. Open files whose name still means the same file are kept."""
        cdef:
            list found = []
            Segment* fresh
            Segment* old
            int32_t number, at
            int64_t base_offset
            uint64_t inode
        self.loaded = False
        self.refreshes += 1
        for number in range(HINT_COUNT):
            self.hints[number].offset = -1
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
                # The last segment may have been cut and written again: by recovery, or as a follower's.
                if old.inode == inode and at < self.segment_count and number + 1 < len(found):
                    fresh[number].stretches = old.stretches
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

    cdef void remember(
        self, int64_t offset, int64_t segment_base_offset, int64_t position, int64_t index_entry
    ) noexcept:
        """Reading for ``offset`` starts at ``position``: replaces the hint least recently used."""
        cdef Hint* chosen = &self.hints[0]
        cdef Hint* hint
        cdef int number
        for number in range(HINT_COUNT):
            hint = &self.hints[number]
            if hint.offset == offset or hint.offset < 0:
                chosen = hint
                break
            if <int32_t>(hint.last_use - chosen.last_use) < 0:
                chosen = hint
        self.clock += 1
        chosen.offset = offset
        chosen.segment_base_offset = segment_base_offset
        chosen.position = position
        chosen.index_entry = index_entry
        chosen.last_use = self.clock

    cdef Hint* best_hint(self, int64_t offset, int64_t segment_base_offset, int64_t limit) noexcept:
        """The hint for ``offset``, or the nearest below it in the same segment; NULL when there is none."""
        cdef Hint* best = NULL
        cdef Hint* hint
        cdef int number
        for number in range(HINT_COUNT):
            hint = &self.hints[number]
            if (
                hint.offset >= 0
                and hint.offset <= offset
                and hint.segment_base_offset == segment_base_offset
                and hint.position <= limit
                and (best == NULL or hint.offset > best.offset)
            ):
                best = hint
        if best != NULL:
            self.clock += 1
            best.last_use = self.clock
        return best

    cdef int32_t floor_segment(self, int64_t offset) noexcept:
        """Number of the last segment that begins at or below ``offset``; 0 when all begin above it."""
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
        """What finding positions has cost so far, for tests and tools."""
        return {
            "segments": self.segment_count,
            "index_searches": self.index_searches,
            "header_reads": self.header_reads,
            "refreshes": self.refreshes,
            "aborted_reads": self.aborted_reads,
            "checked_bytes": self.checked_bytes,
        }
