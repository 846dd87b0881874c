# What a client sends in Produce for a partition: where its whole batches end.

from libc.stdint cimport int16_t, int32_t, uint8_t

from kbroker._ext.base.error_codes cimport CORRUPT_MESSAGE, INVALID_RECORD
from kbroker._ext.base.wire cimport load_i8, load_i32

cdef enum:
    ENTRY_LENGTH_AT = 8
    ENTRY_LENGTH_END = 12
    ENTRY_MAGIC_AT = 16
    # The smallest length that an entry of any format says.
    ENTRY_LENGTH_MIN = 14
    # The first version of Produce that carries one batch, and no messages.
    FIRST_WITH_ONE_BATCH = 3

# An entry, a batch or a message, at the start of `size` bytes, by what all formats have at the same place. Returns its
# bytes; 0 if there is no whole one, or -1 if its length or format is impossible.
cdef inline Py_ssize_t whole_entry(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef int32_t length
    if size < ENTRY_LENGTH_END:
        return 0
    length = load_i32(data + ENTRY_LENGTH_AT)
    if length < ENTRY_LENGTH_MIN:
        return -1
    if size <= ENTRY_MAGIC_AT:
        return 0
    if load_i8(data + ENTRY_MAGIC_AT) < 0 or load_i8(data + ENTRY_MAGIC_AT) > 2:
        return -1
    return length + <Py_ssize_t>ENTRY_LENGTH_END if length <= size - ENTRY_LENGTH_END else 0


# *taken: the bytes of the only batch of a record set; returns 0 or an error code. COMPAT: what follows it and is no whole entry is ignored, and a set without
# a whole batch is INVALID_RECORD, which a client does not send again.
cdef inline int only_batch(const uint8_t* data, Py_ssize_t size, Py_ssize_t* taken) noexcept nogil:
    cdef Py_ssize_t more
    taken[0] = whole_entry(data, size)
    if taken[0] <= 0:
        return CORRUPT_MESSAGE if taken[0] < 0 else INVALID_RECORD
    more = whole_entry(data + taken[0], size - taken[0])
    if load_i8(data + ENTRY_MAGIC_AT) != 2 or more > 0:
        return INVALID_RECORD
    return CORRUPT_MESSAGE if more < 0 else 0


# The same for a message set, of which there may be several messages. An impossible one is left for whoever reads them.
cdef inline int whole_messages(const uint8_t* data, Py_ssize_t size, Py_ssize_t* taken) noexcept nogil:
    cdef Py_ssize_t entry
    taken[0] = 0
    while True:
        entry = whole_entry(data + taken[0], size - taken[0])
        if entry < 0:
            taken[0] = size
            return 0
        if entry == 0:
            return 0 if taken[0] > 0 else INVALID_RECORD
        taken[0] += entry


# What a version of Produce takes of a record set.
cdef inline int whole_entries(int16_t version, const uint8_t* data, Py_ssize_t size, Py_ssize_t* taken) noexcept nogil:
    if version >= FIRST_WITH_ONE_BATCH:
        return only_batch(data, size, taken)
    return whole_messages(data, size, taken)
