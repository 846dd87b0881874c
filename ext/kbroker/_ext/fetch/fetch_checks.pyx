"""Checks that the batches of a segment are as they were written: each is checked once before it is sent.

Either the owner of the log has checked it, because it wrote or recovered it, and says so in the slot; or it is checked
here, in a network process, a little ahead of what is requested. The batches checked here are remembered as a few
stretches per segment. No checksum covers the offset of a batch, so the check also looks for missing offsets.
"""
from kbroker._ext.log.log_scan import DAMAGED, scan_segment

cdef enum:
    CHECK_BYTES = 1 << 20           # checked at a time. BOUND: of the delay of a turn, except by a large batch


cdef object scan_on(
    int fd, int64_t base_offset, Stretch* stretch, int64_t limit, int64_t following, bint gapless, uint64_t* checked_bytes
):
    cdef int64_t begin = stretch.end
    cdef int64_t size = CHECK_BYTES
    cdef int64_t end = begin
    gapless &= begin == 0 or begin > stretch.start  # otherwise the expected offset is unknown
    while end < limit:
        end = min(limit, begin + size)  # which may lie inside a batch
        scan = scan_segment(
            fd, base_offset, end, position=begin, next_offset=stretch.next_offset, offset_limit=following,
            contiguous=gapless)
        checked_bytes[0] += scan.end_position - begin
        if scan.batch_count > 0 and not scan.out_of_order:
            stretch.end = scan.end_position
            stretch.next_offset = scan.next_offset
            return None
        if scan.out_of_order:
            # No checksum covers an offset: one of two neighbours is damaged; as it is unknown which, send neither.
            if scan.batch_count > 0:
                stretch.end = scan.last_position
            return scan.problem
        size *= 2
    return scan.problem or "zeros in place of a batch"


cdef Stretch* stretch_at(Stretch* checked, int64_t base_offset, int64_t position) noexcept:
    cdef Stretch* shortest = &checked[0]
    cdef Stretch* stretch
    cdef int number
    for number in range(STRETCH_COUNT):
        stretch = &checked[number]
        if stretch.end > stretch.start and stretch.start <= position <= stretch.end:
            return stretch
        if stretch.end - stretch.start < shortest.end - shortest.start:
            shortest = stretch
    shortest.start = shortest.end = position
    shortest.next_offset = base_offset
    return shortest


cdef object end_problem(
    int fd, int64_t base_offset, int64_t size, int64_t last_indexed, int64_t following, bint gapless
):
    cdef int64_t position = last_indexed if last_indexed < size else 0
    scan = scan_segment(fd, base_offset, size, position=position)
    if last_indexed > 0 and last_indexed >= size:
        return size, f"its index has an entry for position {last_indexed}"
    if scan.stop == DAMAGED:
        return scan.end_position, scan.problem
    if following >= 0 and (scan.next_offset > following or (gapless and scan.next_offset < following)):
        return size, f"it ends at offset {scan.next_offset}, but the next segment begins at {following}"
    return None
