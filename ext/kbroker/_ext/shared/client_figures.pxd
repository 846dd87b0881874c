# What clients do at a network process, counted in shared memory by client id and software. See client_figures.pyx.
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t


cdef enum:
    # BOUND: clients with a row of their own, for each network process. All others share the first row.
    CLIENT_ROWS = 256
    CLIENT_ID_BYTES = 96
    SOFTWARE_NAME_BYTES = 48
    SOFTWARE_VERSION_BYTES = 32


# Written by one network process. 256 bytes.
cdef struct ClientRow:
    uint32_t version            # odd while the names change; 0: not in use
    uint32_t unused
    int64_t connections         # open now
    int64_t requests
    int64_t bytes_in
    int64_t bytes_out
    int16_t listener
    uint8_t client_id_size
    uint8_t name_size
    uint8_t version_size
    uint8_t unused_too[3]
    uint8_t client_id[CLIENT_ID_BYTES]
    uint8_t name[SOFTWARE_NAME_BYTES]
    uint8_t software_version[SOFTWARE_VERSION_BYTES]
    uint8_t more[32]


cdef class ClientFigures:
    cdef object _region         # keeps the mapping alive
    cdef ClientRow* rows
    cdef dict _rows_by_key      # (client id, software name, its version, listener) -> row, the least recently named first
    cdef int _used
    # The row that all connections begin with.
    cdef ClientRow* first(self) noexcept
    # Count a connection in the row of a client from now on, instead of `before`.
    cdef ClientRow* move(self, ClientRow* before, bytes client_id, bytes name, bytes version, int listener) except NULL
    cdef int name_row(self, ClientRow* row, bytes client_id, bytes name, bytes version, int listener) except -1
    cdef object free_row(self)
