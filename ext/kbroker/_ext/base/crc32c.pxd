# CRC-32C of memory, without the GIL. Oracle: tests/support/storage/record_oracle.py.

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc32c(const uint8_t* data, size_t size) noexcept nogil

# Continue a checksum: crc32c_extend(crc32c(a), b) is the checksum of a followed by b.
cdef uint32_t crc32c_extend(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil
