# The segment files of one partition in a network process: which ones exist, and where in them an offset is.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kbroker._ext.fetch.fetch_checks cimport STRETCH_COUNT, Stretch
from kbroker._ext.fetch.fetch_files cimport FileCache, FileHandle
from kbroker._ext.fetch.fetch_hints cimport Hints
from kbroker._ext.fetch.segment_search cimport FindStatus, Reads
from kbroker._ext.shared.partition_table cimport LogEnd, SlotData


cdef struct Segment:
    int64_t base_offset
    int64_t sealed_size    # -1: unknown; only used for segments before that of the published end
    FileHandle log
    FileHandle index
    uint64_t inode
    Stretch[STRETCH_COUNT] checked
    bint end_is_sound      # sealed, and checked to end where it should


cdef struct FoundRange:
    int32_t file           # place in the FileCache; valid until the next FileCache.open(), unless held
    int64_t segment_base_offset
    int64_t position
    int64_t size           # bytes to send
    int64_t available      # bytes of this segment up to the published end, regardless of bytes_max


cdef class LogFiles:
    cdef FileCache cache
    cdef readonly str directory
    cdef int32_t log_dir_index       # the log directory that `directory` is in; kept for Topic
    cdef Segment* segments
    cdef readonly int32_t segment_count
    cdef bint loaded
    cdef uint32_t segment_version    # of the slot when the directory was listed
    cdef uint32_t slot_incarnation
    cdef Hints hints
    cdef Reads reads
    cdef readonly uint64_t refreshes
    cdef list aborted                # AbortedIndex or None by segment, see fetch_aborted
    cdef int64_t aborted_cached      # total number of entries in them
    cdef uint64_t aborted_reads
    cdef readonly uint64_t checked_bytes
    cdef readonly tuple damage       # of the last FIND_CORRUPT: (segment base offset, position, problem)
    cdef int64_t failed_segment      # of the last FIND_IO_ERROR: base offset; -1: the directory itself
    # Find the bytes of whole batches from `offset` (inclusive; the first may begin below it) up to `end`, an end from
    # *slot. bytes_max is soft: with at_least_one the first batch is returned whole even if larger (KIP-74); without it,
    # a first batch that does not fit gives size 0. The range stays inside one segment, and its last batch may be cut.
    # The caller has checked offset against the log start and end. Holds nothing: hold() out.file before the next open.
    cdef FindStatus find_range(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *
    cdef FindStatus search(
        self, int64_t offset, const SlotData* slot, const LogEnd* end, int64_t bytes_max, bint at_least_one,
        FoundRange* out,
    ) except *
    # Check those batches of *out that have not been checked, or some of them: *out is cut to the checked ones.
    cdef FindStatus check(self, const SlotData* slot, FoundRange* out) except *
    cdef FindStatus check_end(self, int32_t number, const SlotData* slot) except *
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
    cdef int32_t open_file(self, Segment* segment, bint index) except? -9999
    cdef FindStatus refresh(self) except *
    cdef void close(self) noexcept    # the partition was deleted or moved: release its files
    cdef int32_t floor_segment(self, int64_t offset) noexcept
