"""Names that are kept once; see name_table.pxd."""
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os

cdef extern from "keyed_hash.h" nogil:
    uint64_t keyed_hash(const uint8_t* p, size_t n, uint64_t seed) noexcept

cdef enum:
    ROWS_MAX = 1 << 30             # BOUND: indices and doubled sizes fit 32 bits

cdef uint64_t SEED = <uint64_t>int.from_bytes(os.urandom(8), "little")


cdef uint64_t hash_seed() noexcept:
    return SEED


cdef int widen(void** rows, uint32_t* capacity, size_t row_size) except -1:
    cdef uint32_t wanted = capacity[0] * 2 if capacity[0] else SMALLEST
    cdef void* moved
    if wanted > ROWS_MAX:
        raise MemoryError("too many rows")
    moved = realloc(rows[0], <size_t>wanted * row_size)
    if moved == NULL:
        raise MemoryError
    rows[0] = moved
    capacity[0] = wanted
    return 0


cdef inline uint32_t name_hash(Text text) noexcept:
    return <uint32_t>keyed_hash(text.data, <size_t>text.size, SEED)


cdef inline bint is_name(const Name* row, Text text) noexcept:
    return row.size == text.size and memcmp(row.text, text.data, <size_t>text.size) == 0


cdef uint32_t find_name(Names* names, Text text) noexcept:
    cdef uint32_t at, index, wanted
    if names.last and is_name(&names.rows[names.last], text):
        return names.last
    if names.count == 0:
        return 0
    wanted = name_hash(text)
    at = wanted & names.mask
    while True:
        index = names.slots[at]
        if index == 0:
            return 0
        if names.rows[index].hash == wanted and is_name(&names.rows[index], text):
            names.last = index
            return index
        at = (at + 1) & names.mask


cdef void place_name(Names* names, uint32_t index) noexcept:
    cdef uint32_t at = names.rows[index].hash & names.mask
    while names.slots[at]:
        at = (at + 1) & names.mask
    names.slots[at] = index


cdef int grow_names(Names* names) except -1:
    # Room for one more row, and slots that are at most three quarters full with it.
    cdef uint32_t size = names.mask + 1 if names.mask else 0
    cdef uint32_t index
    cdef uint32_t* slots
    if names.free_row == 0 and names.end >= names.capacity:
        widen(<void**>&names.rows, &names.capacity, sizeof(Name))
        if names.end == 0:
            memset(names.rows, 0, sizeof(Name))
            names.end = 1
    if <uint64_t>(names.count + 1) * 4 <= <uint64_t>size * 3:
        return 0
    size = size * 2 if size else SMALLEST
    slots = <uint32_t*>calloc(size, sizeof(uint32_t))
    if slots == NULL:
        raise MemoryError
    free(names.slots)
    names.slots = slots
    names.mask = size - 1
    for index in range(1, names.end):
        if names.rows[index].text != NULL:
            place_name(names, index)
    return 0


cdef uint32_t intern_name(Names* names, Text text) except 0:
    cdef uint32_t index = find_name(names, text)
    cdef uint8_t* copy
    if index:
        return index
    grow_names(names)
    copy = <uint8_t*>malloc(<size_t>text.size if text.size else 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, text.data, <size_t>text.size)
    index = names.free_row
    if index:
        names.free_row = names.rows[index].first
    else:
        index = names.end
        names.end += 1
    memset(&names.rows[index], 0, sizeof(Name))
    names.rows[index].text = copy
    names.rows[index].size = text.size
    names.rows[index].hash = name_hash(text)
    names.count += 1
    names.last = index
    place_name(names, index)
    return index


cdef void forget_name(Names* names, uint32_t index) noexcept:
    # Takes a name without entries out, closing the gap in its run of slots.
    cdef uint32_t mask = names.mask
    cdef uint32_t gap = names.rows[index].hash & mask
    cdef uint32_t at, home
    while names.slots[gap] != index:
        gap = (gap + 1) & mask
    at = gap
    while True:
        at = (at + 1) & mask
        if names.slots[at] == 0:
            break
        home = names.rows[names.slots[at]].hash & mask
        if ((at - home) & mask) >= ((at - gap) & mask):
            names.slots[gap] = names.slots[at]
            gap = at
    names.slots[gap] = 0
    free(names.rows[index].text)
    memset(&names.rows[index], 0, sizeof(Name))
    names.rows[index].first = names.free_row
    names.free_row = index
    names.count -= 1
    if names.last == index:
        names.last = 0


cdef void free_names(Names* names) noexcept:
    cdef uint32_t index
    for index in range(1, names.end):
        free(names.rows[index].text)
    free(names.rows)
    free(names.slots)
