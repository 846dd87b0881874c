# What threads of a client share without the GIL: a lock, conditions with deadlines, the clock they go by.
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until)
    int pthread_condattr_init(pthread_condattr_t* attributes)
    int pthread_condattr_setclock(pthread_condattr_t* attributes, int clock)
    int pthread_condattr_destroy(pthread_condattr_t* attributes)


# A condition whose deadlines are those of the monotonic clock.
cdef inline int init_condition(pthread_cond_t* condition) noexcept nogil:
    cdef pthread_condattr_t attributes
    cdef int failed
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    failed = pthread_cond_init(condition, &attributes)
    pthread_condattr_destroy(&attributes)
    return failed


# Wait for the condition until `until_us` at most, with the lock, which is given up meanwhile.
cdef inline void wait_until_us(pthread_cond_t* condition, pthread_mutex_t* lock, int64_t until_us) noexcept nogil:
    cdef timespec t
    t.tv_sec = until_us // 1000000
    t.tv_nsec = (until_us % 1000000) * 1000
    pthread_cond_timedwait(condition, lock, &t)


# Microseconds of the monotonic clock; milliseconds since 1970.
cdef inline int64_t monotonic_us() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000 + t.tv_nsec // 1000


cdef inline int64_t unix_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


# The time that is `seconds` after now_us. BOUND: a century, since `seconds` may be infinite.
cdef inline int64_t deadline_us(int64_t now_us, double seconds) noexcept nogil:
    return now_us + <int64_t>(max(0.0, min(seconds, 3.2e9)) * 1e6)
