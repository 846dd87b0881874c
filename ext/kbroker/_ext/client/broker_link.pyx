"""A producer's connection to one broker: bytes to a socket and from it, which never blocks.

The socket is a plain one, used by its descriptor, or one of Python's ``ssl``, which needs the GIL.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_XDECREF
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

import ssl

from kbroker._ext.client.produce_frames cimport Request
from kbroker._ext.sockets.stream cimport free_stream, has_unsent, open_stream, reserve_received

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    RECEIVE_BYTES = 65536
    # BOUND: a response of the largest request is far smaller.
    FRAME_BYTES_MAX = 64 << 20


cdef Node* new_node(int32_t id, int32_t in_flight_max) noexcept nogil:
    cdef Node* node = <Node*>calloc(1, sizeof(Node))
    if node == NULL:
        return NULL
    node.requests = <Request*>calloc(<size_t>in_flight_max, sizeof(Request))
    if node.requests == NULL:
        free(node)
        return NULL
    node.id = id
    node.fd = -1
    open_stream(&node.stream, FRAME_BYTES_MAX)
    return node


cdef void close_node(Node* node) noexcept:
    if node.socket != NULL:
        try:
            (<object>node.socket).close()
        except OSError:
            pass  # it is closed, all the same
    leave_node(node)


cdef void leave_node(Node* node) noexcept:
    node.fd = -1
    Py_XDECREF(node.socket)
    node.socket = NULL
    open_stream(&node.stream, FRAME_BYTES_MAX)


cdef void free_node(Node* node) noexcept:
    close_node(node)
    free(node.requests)
    free(node.next.batches)
    free_stream(&node.stream)
    free(node)


cdef Moved moved_by_errno(Node* node) noexcept nogil:
    node.error = errno
    if errno == EAGAIN or errno == EINTR:
        return MOVED_NOTHING
    return MOVED_FAILED


cdef Moved write_some(Node* node) noexcept nogil:
    cdef ssize_t sent
    cdef Moved moved
    while has_unsent(&node.stream):
        if node.tls:
            moved = tls_write(node)
            if moved != MOVED_ALL:
                return moved
            continue
        sent = send(
            node.fd, node.stream.to_send.data + node.stream.sent,
            <size_t>(node.stream.to_send.size - node.stream.sent), MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent < 0:
            return moved_by_errno(node)
        node.stream.sent += sent
    return MOVED_ALL


cdef Moved read_some(Node* node) noexcept nogil:
    cdef ssize_t got
    if not reserve_received(&node.stream, RECEIVE_BYTES, 2 * RECEIVE_BYTES):
        return MOVED_NO_MEMORY
    if node.tls:
        return tls_read(node)
    got = recv(node.fd, node.stream.received.data + node.stream.received.size, RECEIVE_BYTES, MSG_DONTWAIT)
    if got < 0:
        return moved_by_errno(node)
    if got == 0:
        return MOVED_CLOSED
    node.stream.received.size += got
    return MOVED_SOME if got == RECEIVE_BYTES else MOVED_ALL


cdef Moved tls_write(Node* node) noexcept with gil:
    cdef object view = None
    try:
        # SAFETY: the view ends before the bytes can move.
        view = PyMemoryView_FromMemory(
            <char*>node.stream.to_send.data + node.stream.sent, node.stream.to_send.size - node.stream.sent, PyBUF_READ)
        node.stream.sent += <Py_ssize_t>(<object>node.socket).send(view)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return MOVED_NOTHING
    except (OSError, ValueError) as error:
        return failed_by(node, error)
    finally:
        if view is not None:
            view.release()
    return MOVED_ALL


cdef Moved tls_read(Node* node) noexcept with gil:
    cdef object view = None
    cdef Py_ssize_t got
    try:
        view = PyMemoryView_FromMemory(
            <char*>node.stream.received.data + node.stream.received.size, RECEIVE_BYTES, PyBUF_WRITE)
        got = (<object>node.socket).recv_into(view)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return MOVED_NOTHING
    except (OSError, ValueError) as error:
        return failed_by(node, error)
    finally:
        if view is not None:
            view.release()
    if got == 0:
        return MOVED_CLOSED
    node.stream.received.size += got
    return MOVED_SOME  # ssl may hold more, of which the descriptor does not tell


cdef Moved failed_by(Node* node, error) noexcept:
    node.error = getattr(error, "errno", None) or EIO
    return MOVED_FAILED
