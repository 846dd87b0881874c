"""Arrow arrays and schemas as capsules, without any Arrow library.

A consumer (such as pyarrow) moves the struct out of the capsule and calls its release callback when
the data is no longer used, on any thread. So nothing here needs the GIL or a Python object.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._ext.base.atomics cimport kb_add_fetch_i64

# The private data of our arrays: the table of buffers, and their owners.
cdef struct Holder:
    const void* buffers[ARRAY_BUFFERS_MAX]
    void* owned[ARRAY_BUFFERS_MAX]
    Shared* shared[ARRAY_BUFFERS_MAX]

# Arrays of ours that are not released yet; for tests of leaks.
cdef int64_t _live_arrays = 0


cdef Shared* new_shared(int64_t size) noexcept nogil:
    cdef Shared* shared = <Shared*>malloc(sizeof(Shared))
    if shared == NULL:
        return NULL
    shared.references = 1
    shared.data = <uint8_t*>malloc(<size_t>(size if size > 0 else 1))
    if shared.data == NULL:
        free(shared)
        return NULL
    return shared


cdef void drop_shared(Shared* shared) noexcept nogil:
    if shared != NULL and kb_add_fetch_i64(&shared.references, -1) == 0:
        free(shared.data)
        free(shared)


# ---- schema --------------------------------------------------------------------------------------

cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        free_schema(schema.children[i])
    free(schema.children)
    schema.release = NULL


cdef void free_schema(ArrowSchema* schema) noexcept nogil:
    if schema != NULL:
        if schema.release != NULL:
            schema.release(schema)
        free(schema)


cdef ArrowSchema* new_schema(const char* format, const char* name, int64_t n_children) noexcept nogil:
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        return NULL
    schema.format = format
    schema.name = name
    schema.flags = ARROW_FLAG_NULLABLE
    schema.children = <ArrowSchema**>calloc(<size_t>(n_children + 1), sizeof(void*))
    if schema.children == NULL:
        free(schema)
        return NULL
    schema.n_children = n_children
    schema.release = release_schema
    return schema


cdef void drop_schema_capsule(object capsule) noexcept:
    free_schema(<ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema"))


cdef object schema_capsule(ArrowSchema* schema):
    return PyCapsule_New(schema, "arrow_schema", drop_schema_capsule)


# ---- array ---------------------------------------------------------------------------------------

cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef Holder* holder = <Holder*>array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        free_array(array.children[i])
    free(array.children)
    for i in range(ARRAY_BUFFERS_MAX):
        free(holder.owned[i])
        drop_shared(holder.shared[i])
    free(holder)
    array.release = NULL
    kb_add_fetch_i64(&_live_arrays, -1)


cdef void free_array(ArrowArray* array) noexcept nogil:
    if array != NULL:
        if array.release != NULL:
            array.release(array)
        free(array)


cdef ArrowArray* new_array(int64_t length, int64_t null_count, int64_t n_buffers, int64_t n_children) noexcept nogil:
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    cdef Holder* holder = <Holder*>calloc(1, sizeof(Holder))
    cdef ArrowArray** children = <ArrowArray**>calloc(<size_t>(n_children + 1), sizeof(void*))
    if array == NULL or holder == NULL or children == NULL:
        free(array)
        free(holder)
        free(children)
        return NULL
    array.length = length
    array.null_count = null_count
    array.n_buffers = n_buffers
    array.n_children = n_children
    array.children = children
    array.buffers = holder.buffers
    array.private_data = holder
    array.release = release_array
    kb_add_fetch_i64(&_live_arrays, 1)
    return array


cdef void own_buffer(ArrowArray* array, int index, void* data) noexcept nogil:
    cdef Holder* holder = <Holder*>array.private_data
    holder.owned[index] = data
    holder.buffers[index] = data


cdef void share_buffer(ArrowArray* array, int index, Shared* shared) noexcept nogil:
    cdef Holder* holder = <Holder*>array.private_data
    kb_add_fetch_i64(&shared.references, 1)
    holder.shared[index] = shared
    holder.buffers[index] = shared.data


cdef void drop_array_capsule(object capsule) noexcept:
    free_array(<ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array"))


cdef object array_capsule(ArrowArray* array):
    return PyCapsule_New(array, "arrow_array", drop_array_capsule)


def live_arrays() -> int:
    """The number of arrays created here that are not released yet."""
    return _live_arrays
