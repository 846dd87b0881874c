# The Arrow C data interface: its two structs, and the functions that create and free them. Source: Arrow Columnar
# Format, "The Arrow C data interface". Structs created here own their children and buffers and free them in the release
# callback, whatever thread calls it and without the GIL.

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    ARROW_FLAG_NULLABLE = 2
    ARRAY_BUFFERS_MAX = 3

cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept nogil
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept nogil
    void* private_data

# Bytes that several arrays point to; freed with the last of them.
cdef struct Shared:
    int64_t references
    uint8_t* data

# A block with `size` bytes at data and one reference; NULL without memory.
cdef Shared* new_shared(int64_t size) noexcept nogil
cdef void drop_shared(Shared* shared) noexcept nogil

# A nullable field; format and name must live forever (literals). NULL without memory.
cdef ArrowSchema* new_schema(const char* format, const char* name, int64_t n_children) noexcept nogil
cdef void free_schema(ArrowSchema* schema) noexcept nogil

# An array without buffers or children yet; the caller puts children into ->children. NULL without memory.
cdef ArrowArray* new_array(int64_t length, int64_t null_count, int64_t n_buffers, int64_t n_children) noexcept nogil
# Give the array a buffer to free (own_buffer), or a share of one (share_buffer).
cdef void own_buffer(ArrowArray* array, int index, void* data) noexcept nogil
cdef void share_buffer(ArrowArray* array, int index, Shared* shared) noexcept nogil
cdef void free_array(ArrowArray* array) noexcept nogil

# Capsules that own their struct, until the code that takes it sets release to NULL.
cdef object schema_capsule(ArrowSchema* schema)
cdef object array_capsule(ArrowArray* array)
