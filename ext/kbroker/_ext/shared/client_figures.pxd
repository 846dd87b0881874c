# What clients do at a network process, counted in shared memory by client id and software. See client_figures.pyx.
from kbroker._ext.shared.layouts cimport ClientRow


cdef enum:
    # BOUND: clients with a row of their own, for each network process. All others share the first row.
    CLIENT_ROWS = 256


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
