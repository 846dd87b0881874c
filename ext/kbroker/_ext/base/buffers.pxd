# The bytes of a buffer, without a typed memoryview, whose code would be half a megabyte of C in each extension.
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t


# Address and length of a writable region. Whoever keeps the address must keep `region` alive, a mapping that is never
# resized.
cdef inline uint8_t* region_bytes(object region, Py_ssize_t* size) except NULL:
    cdef Py_buffer view
    cdef uint8_t* start
    PyObject_GetBuffer(region, &view, PyBUF_WRITABLE)
    start = <uint8_t*>view.buf
    size[0] = view.len
    PyBuffer_Release(&view)
    if start == NULL:
        raise ValueError("a region without bytes")
    return start
