/* Shared-memory atomics. Each use names its memory order and its pair at the call. */
#ifndef KBROKER_ATOMICS_H
#define KBROKER_ATOMICS_H
#include <stdint.h>

static inline uint32_t kb_load_acquire_u32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline uint32_t kb_load_relaxed_u32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void kb_store_release_u32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void kb_store_relaxed_u32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline uint64_t kb_fetch_or_u64(uint64_t *p, uint64_t v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
static inline uint64_t kb_exchange_u64(uint64_t *p, uint64_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
static inline uint64_t kb_load_u64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
/* Returns whether *p was `old`; if not, *p is unchanged. */
static inline int kb_replace_u64(uint64_t *p, uint64_t old, uint64_t v) {
    return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static inline void kb_fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void kb_fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }
static inline void kb_fence_full(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline int64_t kb_load_relaxed_i64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline void kb_store_relaxed_i64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
/* Reference counts: the last one out sees all that the others wrote. */
static inline int64_t kb_add_fetch_i64(int64_t *p, int64_t n) { return __atomic_add_fetch(p, n, __ATOMIC_ACQ_REL); }
#endif
