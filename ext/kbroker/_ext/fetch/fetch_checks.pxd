# Which batches of a segment have been checked, and the check itself. See fetch_checks.pyx.
from libc.stdint cimport int64_t, uint64_t

from kbroker._ext.shared.partition_table cimport SlotData

cdef enum:
    STRETCH_COUNT = 4


# Whole batches from `start` to `end` (positions) that this process has checked. end == start: unused.
cdef struct Stretch:
    int64_t start
    int64_t end
    int64_t next_offset    # after its last batch


# Whether the owner of the log has not checked the batch at this position.
cdef inline bint is_unchecked(const SlotData* slot, int64_t segment_base_offset, int64_t position) noexcept nogil:
    return segment_base_offset < slot.checked_segment or (
        segment_base_offset == slot.checked_segment and position < slot.checked_position
    )


# The stretch, of STRETCH_COUNT, that contains `position` or ends there; otherwise a new one that replaces the shortest.
# position: the start of a batch. base_offset: of the segment.
cdef Stretch* stretch_at(Stretch* checked, int64_t base_offset, int64_t position) noexcept
# Extend a stretch by checking the data after it: at least one batch and about CHECK_BYTES. Returns None, or the problem
# with the next batch. following: all offsets of the segment are below it. gapless: no offset may be missing. Raises
# OSError.
cdef object scan_on(
    int fd, int64_t base_offset, Stretch* stretch, int64_t limit, int64_t following, bint gapless, uint64_t* checked_bytes
)
# Check that a sealed segment ends where its index and its successor say. Returns None, or (position, problem).
# last_indexed: the position of its last index entry, 0 without one. following: the base offset of its successor, -1
# without one. Raises OSError.
cdef object end_problem(
    int fd, int64_t base_offset, int64_t size, int64_t last_indexed, int64_t following, bint gapless
)
