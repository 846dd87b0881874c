# Interned names with use counts: a name is freed with its last use. Row 0 means "none".
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.base.index_table cimport IndexTable


cdef struct Text:
    const uint8_t* data            # UTF-8, checked by the code that reads it from a record
    int32_t size


cdef struct Name:
    uint8_t* text                  # owned; NULL: the row is free
    int32_t size
    uint32_t uses                  # entries that use it; the name is freed when this drops to 0
    uint32_t first                 # of a group: its list of committed offsets; of a free row: the next free row
    uint32_t first_pending         # of a group: its list of pending offsets


cdef struct Names:
    Name* rows
    IndexTable index
    uint32_t capacity              # of rows
    uint32_t end                   # rows from here on have never been used
    uint32_t free_row
    uint32_t last                  # the row found last: records of a group tend to follow each other


# The seed of all hashes in this process; it is random, so that no client can choose names that collide.
cdef uint64_t hash_seed() noexcept

# The name's row; 0 if there is none.
cdef uint32_t find_name(Names* names, Text text) noexcept
# The name's row, created if there is none. Does not count a use.
cdef uint32_t intern_name(Names* names, Text text) except 0
cdef void forget_name(Names* names, uint32_t row) noexcept
cdef void free_names(Names* names) noexcept


cdef inline void release_name(Names* names, uint32_t row) noexcept:
    names.rows[row].uses -= 1
    if names.rows[row].uses == 0:
        forget_name(names, row)
