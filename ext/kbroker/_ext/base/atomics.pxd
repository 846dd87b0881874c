from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "atomics.h" nogil:
    uint32_t kb_load_acquire_u32(const uint32_t* p)
    uint32_t kb_load_relaxed_u32(const uint32_t* p)
    void kb_store_release_u32(uint32_t* p, uint32_t v)
    void kb_store_relaxed_u32(uint32_t* p, uint32_t v)
    uint64_t kb_fetch_or_u64(uint64_t* p, uint64_t v)
    uint64_t kb_exchange_u64(uint64_t* p, uint64_t v)
    uint64_t kb_load_u64(const uint64_t* p)
    int kb_replace_u64(uint64_t* p, uint64_t old, uint64_t v)
    void kb_fence_acquire()
    void kb_fence_release()
    void kb_fence_full()
    int64_t kb_add_fetch_i64(int64_t* p, int64_t n)
    int64_t kb_load_relaxed_i64(const int64_t* p)
    void kb_store_relaxed_i64(int64_t* p, int64_t v)
