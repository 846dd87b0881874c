# Positions of a log's readers, where their next searches begin: the last few, replacing the least recently used. Valid
# until the segments change.
from libc.stdint cimport int32_t, int64_t, uint32_t

cdef enum:
    HINT_COUNT = 8


# Reading for `offset` starts at `position` of the segment; `index_entry` is an entry at or before it.
cdef struct Hint:
    int64_t offset         # -1: unused
    int64_t segment_base_offset
    int64_t position
    int64_t index_entry
    uint32_t last_use


cdef struct Hints:
    Hint[HINT_COUNT] places
    uint32_t clock


cdef inline void forget_hints(Hints* hints) noexcept nogil:
    cdef int number
    for number in range(HINT_COUNT):
        hints.places[number].offset = -1


# Reading for `offset` starts at `position`.
cdef inline void remember(
    Hints* hints, int64_t offset, int64_t segment_base_offset, int64_t position, int64_t index_entry
) noexcept nogil:
    cdef Hint* chosen = &hints.places[0]
    cdef Hint* hint
    cdef int number
    for number in range(HINT_COUNT):
        hint = &hints.places[number]
        if hint.offset == offset or hint.offset < 0:
            chosen = hint
            break
        if <int32_t>(hint.last_use - chosen.last_use) < 0:
            chosen = hint
    hints.clock += 1
    chosen.offset = offset
    chosen.segment_base_offset = segment_base_offset
    chosen.position = position
    chosen.index_entry = index_entry
    chosen.last_use = hints.clock


# The hint for `offset`, or the nearest below it in the same segment; NULL when there is none.
cdef inline Hint* best_hint(Hints* hints, int64_t offset, int64_t segment_base_offset, int64_t limit) noexcept nogil:
    cdef Hint* best = NULL
    cdef Hint* hint
    cdef int number
    for number in range(HINT_COUNT):
        hint = &hints.places[number]
        if (
            hint.offset >= 0
            and hint.offset <= offset
            and hint.segment_base_offset == segment_base_offset
            and hint.position <= limit
            and (best == NULL or hint.offset > best.offset)
        ):
            best = hint
    if best != NULL:
        hints.clock += 1
        best.last_use = hints.clock
    return best
