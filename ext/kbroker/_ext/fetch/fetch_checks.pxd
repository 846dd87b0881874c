# Which batches of a segment were checked, and the check. See fetch_checks.pyx.
from libc.stdint cimport int64_t, uint64_t

from kbroker._ext.shared.partition_table cimport SlotData

cdef enum:
    STRETCH_COUNT = 4


# Whole batches from `start` to `end` (positions) that this process has checked. end == start: unused.
cdef struct Stretch:
    int64_t start
    int64_t end
    int64_t next_offset    # behind its last batch


# Whether the owner of the log has not checked what lies there.
cdef inline bint is_unchecked(const SlotData* slot, int64_t segment_base_offset, int64_t position) noexcept nogil:
    return segment_base_offset < slot.checked_segment or (
        segment_base_offset == slot.checked_segment and position < slot.checked_position
    )


# The one of STRETCH_COUNT stretches that `position`, where a batch begins, is in or right behind; a new one in place of
# the shortest. base_offset: of the segment.
cdef Stretch* stretch_at(Stretch* checked, int64_t base_offset, int64_t position) noexcept
# Check on behind a stretch, for at least one batch and about CHECK_BYTES; None, or what is wrong with the batch behind it.
# following: no offset of the segment reaches it. gapless: none is missing where one is expected. Raises OSError.
cdef object scan_on(
    int fd, int64_t base_offset, Stretch* stretch, int64_t limit, int64_t following, bint gapless, uint64_t* checked_bytes
)
# Whether a sealed segment ends where its index and its successor say; None, or (position, what is wrong). last_indexed:
# the position of its last index entry, 0 without one. following: where its successor begins, -1 without one. Raises OSError.
cdef object end_problem(
    int fd, int64_t base_offset, int64_t size, int64_t last_indexed, int64_t following, bint gapless
)
