"""CRC-32C, the checksum of record batches, with the processor's instruction if it has one."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc32c.h" nogil:
    const char* crc32c_init()
    uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t size)
    uint32_t crc32c_update_table(uint32_t crc, const uint8_t* data, size_t size)

# BOUND: from this size on, the checksum (about 0.5 µs) costs more than releasing and retaking the GIL.
cdef enum:
    GIL_BYTES = 8192

IMPLEMENTATION = crc32c_init().decode()


cdef uint32_t crc32c(const uint8_t* data, size_t size) noexcept nogil:
    return crc32c_update(0, data, size)


cdef uint32_t crc32c_extend(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil:
    return crc32c_update(crc, data, size)


def _checksum(data, uint32_t crc=0) -> int:
    """CRC-32C of a contiguous buffer, continuing from ``crc``."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < GIL_BYTES:
        crc = crc32c_update(crc, <const uint8_t*>view.buf, <size_t>view.len)
    else:
        with nogil:
            crc = crc32c_update(crc, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_table(data, uint32_t crc=0) -> int:
    """The same with the table only, as on a processor without the instruction; for tests."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = crc32c_update_table(crc, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


# The name `crc32c` is the C function's here, so Python's name for it goes into the module by hand.
globals()["crc32c"] = _checksum
