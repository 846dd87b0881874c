# Names that are kept once, found by a hash table of indices. A name goes with the last that uses it. Index 0 means "none".
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef enum:
    SMALLEST = 16                  # rows and slots of a new table


cdef struct Text:
    const uint8_t* data            # UTF-8, checked by whoever reads it from a record
    int32_t size


cdef struct Name:
    uint8_t* text                  # owned; NULL: the row is free
    int32_t size
    uint32_t hash
    uint32_t uses                  # entries; with the last one the name goes
    uint32_t first                 # groups: list of committed offsets; free rows: the next one
    uint32_t first_pending         # groups: list of offsets held back


cdef struct Names:
    Name* rows
    uint32_t* slots
    uint32_t capacity              # of rows
    uint32_t end                   # rows from here on were never used
    uint32_t free_row
    uint32_t mask                  # of slots
    uint32_t count
    uint32_t last                  # found last: records of a group follow each other


# What hashes begin with in this process, so that nobody outside can choose names that collide.
cdef uint64_t hash_seed() noexcept

# Twice the rows, at least SMALLEST; the new ones are not cleared.
cdef int widen(void** rows, uint32_t* capacity, size_t row_size) except -1

# 0: it is not there.
cdef uint32_t find_name(Names* names, Text text) noexcept
# The name's row, which is made if there is none. Nothing uses it yet.
cdef uint32_t intern_name(Names* names, Text text) except 0
cdef void forget_name(Names* names, uint32_t index) noexcept
cdef void free_names(Names* names) noexcept


cdef inline void release_name(Names* names, uint32_t index) noexcept:
    names.rows[index].uses -= 1
    if names.rows[index].uses == 0:
        forget_name(names, index)
