# Names that are kept once. A name goes with the last that uses it. Row 0 means "none".
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.base.index_table cimport IndexTable


cdef struct Text:
    const uint8_t* data            # UTF-8, checked by whoever reads it from a record
    int32_t size


cdef struct Name:
    uint8_t* text                  # owned; NULL: the row is free
    int32_t size
    uint32_t uses                  # entries; with the last one the name goes
    uint32_t first                 # groups: list of committed offsets; free rows: the next one
    uint32_t first_pending         # groups: list of offsets held back


cdef struct Names:
    Name* rows
    IndexTable index
    uint32_t capacity              # of rows
    uint32_t end                   # rows from here on were never used
    uint32_t free_row
    uint32_t last                  # found last: records of a group follow each other


# What hashes begin with in this process, so that nobody outside can choose names that collide.
cdef uint64_t hash_seed() noexcept

# 0: it is not there.
cdef uint32_t find_name(Names* names, Text text) noexcept
# The name's row, which is made if there is none. Nothing uses it yet.
cdef uint32_t intern_name(Names* names, Text text) except 0
cdef void forget_name(Names* names, uint32_t row) noexcept
cdef void free_names(Names* names) noexcept


cdef inline void release_name(Names* names, uint32_t row) noexcept:
    names.rows[row].uses -= 1
    if names.rows[row].uses == 0:
        forget_name(names, row)
