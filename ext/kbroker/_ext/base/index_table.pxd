# A hash index of the rows of an array: open addressing, linear probing. Row 0 means "none".
#
# The hash is stored beside the row number: a search reads only rows that probably match, and growing reads none.
# The owner of a table frees its slots. For one thread.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._ext.base.growing cimport grow

cdef enum:
    ROWS_MIN = 16
    ROWS_MAX = 1 << 30             # BOUND: numbers of rows and slots fit 32 bits


cdef struct IndexSlot:
    uint32_t hash
    uint32_t row                   # 0: the slot is free


# All zeros: an empty table.
cdef struct IndexTable:
    IndexSlot* slots
    uint32_t mask                  # number of slots, a power of two, minus one
    uint32_t count                 # of rows


# The next row with this hash, 0 if there is none; the caller checks whether it matches. at: the hash at the start of
# the search, then the value left by the last call.
cdef inline uint32_t next_row(const IndexTable* table, uint32_t hash, uint32_t* at) noexcept nogil:
    cdef const IndexSlot* slot
    if table.slots == NULL:
        return 0
    # BOUND: at least a quarter of the slots is free, see reserve_row.
    while True:
        slot = &table.slots[at[0] & table.mask]
        at[0] += 1
        if slot.row == 0 or slot.hash == hash:
            return slot.row


# SAFETY: there is a free slot, see reserve_row.
cdef inline void put_slot(IndexSlot* slots, uint32_t mask, const IndexSlot* slot) noexcept nogil:
    cdef uint32_t at = slot.hash & mask
    while slots[at].row:
        at = (at + 1) & mask
    slots[at] = slot[0]


# Make room for one more row: with it, at most three quarters of the slots are in use.
cdef inline int reserve_row(IndexTable* table) except -1:
    cdef uint32_t size = table.mask + 1 if table.slots != NULL else 0
    cdef uint32_t wanted = 2 * size if size else ROWS_MIN
    cdef uint32_t at
    cdef IndexSlot* slots
    if 4 * (<uint64_t>table.count + 1) <= 3 * <uint64_t>size:
        return 0
    slots = <IndexSlot*>calloc(wanted, sizeof(IndexSlot))
    if slots == NULL:
        raise MemoryError
    for at in range(size):
        if table.slots[at].row:
            put_slot(slots, wanted - 1, &table.slots[at])
    free(table.slots)
    table.slots = slots
    table.mask = wanted - 1
    return 0


# Add a row, after reserve_row.
cdef inline void put_row(IndexTable* table, uint32_t hash, uint32_t row) noexcept nogil:
    cdef IndexSlot slot
    slot.hash = hash
    slot.row = row
    put_slot(table.slots, table.mask, &slot)
    table.count += 1


# Remove a row that is in the table, and close the gap, so that no search stops short of the rows after it.
cdef inline void drop_row(IndexTable* table, uint32_t hash, uint32_t row) noexcept nogil:
    cdef IndexSlot* slots = table.slots
    cdef uint32_t mask = table.mask
    cdef uint32_t gap = hash & mask
    cdef uint32_t at
    while slots[gap].row != row:
        gap = (gap + 1) & mask
    at = gap
    while True:
        at = (at + 1) & mask
        if slots[at].row == 0:
            break
        if ((at - slots[at].hash) & mask) >= ((at - gap) & mask):
            slots[gap] = slots[at]
            gap = at
    slots[gap].row = 0
    table.count -= 1


# Make room for at least one more row in the array itself; new rows are not cleared. place: as for `grow`.
cdef inline int widen(void* place, uint32_t* capacity, size_t row_size) except -1:
    if capacity[0] >= ROWS_MAX:
        raise MemoryError("too many rows")
    capacity[0] = <uint32_t>grow(place, capacity[0], <int64_t>capacity[0] + 1, row_size, ROWS_MIN)
    return 0
