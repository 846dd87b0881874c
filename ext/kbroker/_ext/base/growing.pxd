# Arrays that grow at their end. Nothing else calls realloc; whoever has an array frees it with `free`.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef struct Bytes:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity


# Resize an array. place: the address of its pointer, of any type. False: there is no memory, and the array is
# unchanged.
cdef inline bint resize(void* place, size_t size) noexcept nogil:
    cdef void* array
    memcpy(&array, place, sizeof(void*))
    array = realloc(array, size)
    if array == NULL:
        return False
    memcpy(place, &array, sizeof(void*))
    return True


# Make room for `wanted` items in an array of `capacity`; returns the new capacity, which at least doubles if it grows,
# and is at least `least`. The content is kept, at another address.
cdef inline int64_t grow(void* place, int64_t capacity, int64_t wanted, size_t item_size, int64_t least=0) except -1:
    if wanted <= capacity:
        return capacity
    capacity = max(2 * capacity, wanted, least)
    if not resize(place, <size_t>capacity * item_size):
        raise MemoryError
    return capacity


# Make room for this many more bytes; `data` may move.
cdef inline int reserve(Bytes* bytes, Py_ssize_t more, Py_ssize_t least=4096) except -1:
    bytes.capacity = <Py_ssize_t>grow(&bytes.data, bytes.capacity, bytes.size + more, 1, least)
    return 0
