# The segment files of one partition as a network process sees them: which exist, and where in them an offset lies.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kbroker._ext.fetch_files cimport FileCache, FileHandle
from kbroker._ext.partition_table cimport LogEnd, SlotData


cdef enum FindStatus:
    FIND_OK = 0            # *out is filled; size 0 means nothing to read yet
    FIND_MISSING = 1       # the log directory or the segment is gone
    FIND_IO_ERROR = 2      # a read failed
    FIND_CORRUPT = 3       # what is there is damaged, or something is missing; see LogFiles.damage
    FIND_NO_PLACE = 4      # every descriptor is in flight: answer empty, the client asks again


cdef enum:
    HINT_COUNT = 8
    STRETCH_COUNT = 4


# Whole batches from `start` to `end` (positions) that this process has checked. end == start: unused.
cdef struct Stretch:
    int64_t start
    int64_t end
    int64_t next_offset    # behind its last batch


cdef struct Segment:
    int64_t base_offset
    int64_t sealed_size    # -1: not known; only asked for segments before that of the published end
    FileHandle log
    FileHandle index
    uint64_t inode
    Stretch[STRETCH_COUNT] stretches
    bint end_is_sound      # sealed, and found to end where it should


# Reading for `offset` starts at `position` of the segment; `index_entry` is an entry at or before it.
cdef struct Hint:
    int64_t offset         # -1: unused
    int64_t segment_base_offset
    int64_t position
    int64_t index_entry
    uint32_t last_use


cdef struct BatchHeader:
    int64_t base_offset
    int64_t last_offset
    int64_t size           # of the whole batch, its header included


cdef struct FoundRange:
    int32_t file           # place in the FileCache; valid until the next FileCache.open(), unless held
    int64_t segment_base_offset
    int64_t position
    int64_t size           # bytes to send
    int64_t available      # bytes of this segment up to the published end, whatever the limits say


cdef class LogFiles:
    cdef FileCache cache
    cdef readonly str directory
    cdef int32_t log_dir_index       # which log directory that is in; kept for Topic
    cdef Segment* segments
    cdef readonly int32_t segment_count
    cdef bint loaded
    cdef uint32_t segment_version    # of the slot, when the directory was listed
    cdef uint32_t slot_incarnation
    cdef uint32_t clock
    cdef Hint[HINT_COUNT] hints
    cdef readonly uint64_t index_searches
    cdef readonly uint64_t header_reads
    cdef readonly uint64_t refreshes
    cdef list aborted                # AbortedIndex or None by segment, see fetch_aborted
    cdef int64_t aborted_cached      # entries in all of them
    cdef uint64_t aborted_reads
    cdef readonly uint64_t checked_bytes
    cdef readonly tuple damage       # of the last FIND_CORRUPT: (segment base offset, position, what is wrong)
    cdef int64_t failed_segment      # of the last FIND_IO_ERROR; -1: the directory itself
    cdef int failed_errno            # 0: the file ends too early
    # Find the bytes of whole batches from `offset` (inclusive; the first may begin below it) up to `end`, a place of
    # *slot. bytes_max is soft: with at_least_one the first batch comes whole even if larger (KIP-74); without it a
    # first batch that does not fit gives size 0. The range stays inside one segment, and its last batch may be cut.
    # The caller has checked offset against the log start and end. Holds nothing: hold() out.file before the next open.
    cdef FindStatus find_range(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *
    cdef FindStatus search(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *
    # Check the batches of *out that nobody has checked, or some of them: *out is cut to those. See fetch_segments.pyx.
    cdef FindStatus check(self, const SlotData* slot, FoundRange* out) except *
    cdef FindStatus check_end(self, int32_t number, const SlotData* slot) except *
    cdef object scan_on(
        self, Segment* segment, int fd, Stretch* stretch, int64_t limit, int64_t following, bint gapless
    )
    cdef Stretch* stretch_at(self, Segment* segment, int64_t position) noexcept
    cdef FindStatus note_damage(self, int64_t segment_base_offset, int64_t position, str problem) except *
    cdef FindStatus note_failure(self, int64_t segment_base_offset, int code) noexcept
    cdef int report_failure(self) except -1
    cdef FindStatus search_segment(
        self, Segment* segment, int64_t offset, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *
    cdef FindStatus locate(
        self, Segment* segment, int fd, int64_t offset, int64_t limit, int64_t* position, int64_t* index_entry
    ) except *
    cdef bint index_floor(
        self, Segment* segment, int64_t offset, int64_t limit, int64_t* index_entry, int64_t* position
    ) except *
    cdef FindStatus walk(self, int fd, int64_t offset, int64_t limit, int64_t* position) noexcept
    cdef FindStatus read_header(self, int fd, int64_t position, int64_t limit, BatchHeader* out) noexcept
    cdef int32_t open_file(self, Segment* segment, bint index) except? -9999
    cdef FindStatus refresh(self) except *
    cdef void close(self) noexcept    # the partition is gone or moved: let go of its files
    cdef void remember(
        self, int64_t offset, int64_t segment_base_offset, int64_t position, int64_t index_entry
    ) noexcept
    cdef Hint* best_hint(self, int64_t offset, int64_t segment_base_offset, int64_t limit) noexcept
    cdef int32_t floor_segment(self, int64_t offset) noexcept
