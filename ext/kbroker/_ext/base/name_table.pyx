"""Interned names with use counts; see name_table.pxd."""
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from kbroker._ext.base.index_table cimport drop_row, next_row, put_row, reserve_row, widen

import os

cdef extern from "keyed_hash.h" nogil:
    uint64_t keyed_hash(const uint8_t* p, size_t n, uint64_t seed) noexcept

cdef uint64_t SEED = <uint64_t>int.from_bytes(os.urandom(8), "little")


cdef uint64_t hash_seed() noexcept:
    return SEED


cdef inline uint32_t name_hash(const uint8_t* data, int32_t size) noexcept:
    return <uint32_t>keyed_hash(data, <size_t>size, SEED)


cdef inline bint is_name(const Name* row, Text text) noexcept:
    return row.size == text.size and memcmp(row.text, text.data, <size_t>text.size) == 0


cdef uint32_t find_name(Names* names, Text text) noexcept:
    cdef uint32_t wanted, at, row
    if names.last and is_name(&names.rows[names.last], text):
        return names.last
    if names.index.count == 0:
        return 0
    wanted = at = name_hash(text.data, text.size)
    row = next_row(&names.index, wanted, &at)
    while row and not is_name(&names.rows[row], text):
        row = next_row(&names.index, wanted, &at)
    if row:
        names.last = row
    return row


cdef int reserve_name(Names* names) except -1:
    """Make room for one more name."""
    reserve_row(&names.index)
    if names.free_row == 0 and names.end >= names.capacity:
        widen(&names.rows, &names.capacity, sizeof(Name))
        if names.end == 0:
            memset(names.rows, 0, sizeof(Name))
            names.end = 1
    return 0


cdef uint32_t intern_name(Names* names, Text text) except 0:
    cdef uint32_t row = find_name(names, text)
    cdef uint8_t* copy
    if row:
        return row
    reserve_name(names)
    copy = <uint8_t*>malloc(<size_t>text.size if text.size else 1)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, text.data, <size_t>text.size)
    row = names.free_row
    if row:
        names.free_row = names.rows[row].first
    else:
        row = names.end
        names.end += 1
    memset(&names.rows[row], 0, sizeof(Name))
    names.rows[row].text = copy
    names.rows[row].size = text.size
    names.last = row
    put_row(&names.index, name_hash(text.data, text.size), row)
    return row


cdef void forget_name(Names* names, uint32_t row) noexcept:
    """Remove a name that nothing uses."""
    cdef Name* name = &names.rows[row]
    drop_row(&names.index, name_hash(name.text, name.size), row)
    free(name.text)
    memset(name, 0, sizeof(Name))
    name.first = names.free_row
    names.free_row = row
    if names.last == row:
        names.last = 0


cdef void free_names(Names* names) noexcept:
    cdef uint32_t row
    for row in range(1, names.end):
        free(names.rows[row].text)
    free(names.rows)
    free(names.index.slots)
