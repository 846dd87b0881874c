# The system calls, most of them on sockets, that more than one extension makes.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec


cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int count, int timeout_ms)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
        EPOLLHUP
        EPOLLERR
    uint32_t EPOLLET


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        void* msg_name
        unsigned int msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    int setsockopt(int fd, int level, int option, const void* value, unsigned int size)
    int shutdown(int fd, int how)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT
        MSG_MORE
        SHUT_WR
        SOL_SOCKET
        SO_RCVLOWAT


cdef inline int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef inline int64_t wall_clock_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000
