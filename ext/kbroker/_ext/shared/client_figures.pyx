"""What clients do: connections, requests and bytes, by client id, software and listener, in shared memory.

Each network process has rows of its own, and is their only writer, so that counting is an addition. A row is found once for
a connection. There are CLIENT_ROWS of them: when they are used up, a client without connections loses its row to a new one,
and without such a client, the new one is counted in the first row, which has no names. Names are cut to what a row has room
for.
"""
from libc.stdint cimport int16_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from kbroker._ext.base.atomics cimport (
    kb_fence_acquire,
    kb_fence_release,
    kb_load_acquire_u32,
    kb_load_relaxed_i64,
    kb_load_relaxed_u32,
    kb_store_relaxed_u32,
    kb_store_release_u32,
)
from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.shared.layouts cimport CLIENT_ID_BYTES, SOFTWARE_NAME_BYTES, SOFTWARE_VERSION_BYTES

ROWS = CLIENT_ROWS


def region_size(network_count: int) -> int:
    """Bytes of a region for so many network processes; only what is used takes memory."""
    return network_count * CLIENT_ROWS * sizeof(ClientRow)


cdef inline uint8_t cut(bytes text, Py_ssize_t most) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    return <uint8_t>(size if size < most else most)


cdef inline bytes text_of(const uint8_t* text, Py_ssize_t size, Py_ssize_t most):
    return PyBytes_FromStringAndSize(<const char*>text, size if size < most else most)


cdef class ClientFigures:
    """The rows of one network process, their only writer. Empties what its predecessor has left."""

    def __cinit__(self, region, int network_index):
        cdef Py_ssize_t size = 0
        cdef int row = 0
        cdef uint8_t* start = region_bytes(region, &size)
        if network_index < 0 or size < region_size(network_index + 1):
            raise ValueError(f"a region of {size} bytes has no rows for network process {network_index}")
        self._region = region
        self._rows_by_key = {}
        self.rows = <ClientRow*>start + network_index * <Py_ssize_t>CLIENT_ROWS
        while row < CLIENT_ROWS and self.rows[row].version:
            memset(&self.rows[row], 0, sizeof(ClientRow))
            row += 1
        self._used = 1
        self.name_row(self.first(), b"", b"", b"", -1)

    cdef ClientRow* first(self) noexcept:
        return self.rows

    cdef int name_row(self, ClientRow* row, bytes client_id, bytes name, bytes version, int listener) except -1:
        """Give a row to a client; what was counted in it is gone."""
        cdef uint32_t number = row.version
        kb_store_relaxed_u32(&row.version, number + 1)
        kb_fence_release()
        row.connections = row.requests = row.bytes_in = row.bytes_out = 0
        row.listener = <int16_t>listener
        row.client_id_size = cut(client_id, CLIENT_ID_BYTES)
        row.name_size = cut(name, SOFTWARE_NAME_BYTES)
        row.version_size = cut(version, SOFTWARE_VERSION_BYTES)
        memcpy(row.client_id, PyBytes_AS_STRING(client_id), row.client_id_size)
        memcpy(row.name, PyBytes_AS_STRING(name), row.name_size)
        memcpy(row.software_version, PyBytes_AS_STRING(version), row.version_size)
        kb_store_release_u32(&row.version, number + 2)
        return 0

    cdef ClientRow* move(self, ClientRow* before, bytes client_id, bytes name, bytes version, int listener) except NULL:
        cdef tuple key = (client_id, name, version, listener)
        cdef ClientRow* row
        cdef object known = self._rows_by_key.pop(key, None)
        before.connections -= 1
        if known is None:
            known = self.free_row()
            if known:
                self.name_row(&self.rows[<int>known], client_id, name, version, listener)
        row = &self.rows[<int>known]
        if known:
            self._rows_by_key[key] = known
        row.connections += 1
        return row

    cdef object free_row(self):
        """The number of a row for another client; 0 if there is none."""
        if self._used < CLIENT_ROWS:
            self._used += 1
            return self._used - 1
        for key, row in self._rows_by_key.items():
            if self.rows[<int>row].connections <= 0:
                del self._rows_by_key[key]
                return row
        return 0


def read_clients(region, int network_count) -> list:
    """[(network process, listener, client id, software name, its version, connections, requests, bytes in, bytes out)].

    Names are bytes. The listener is -1 in the row that clients without one of their own share.
    """
    cdef Py_ssize_t size = 0
    cdef const ClientRow* rows = <const ClientRow*>region_bytes(region, &size)
    cdef const ClientRow* row
    cdef int network, number
    cdef uint32_t version
    cdef list found = []
    cdef tuple entry
    if size < region_size(network_count):
        raise ValueError(f"a region of {size} bytes has no rows for {network_count} network processes")
    for network in range(network_count):
        for number in range(CLIENT_ROWS):
            row = rows + network * <Py_ssize_t>CLIENT_ROWS + number
            version = kb_load_acquire_u32(&row.version)
            if version == 0:
                break
            if version & 1:
                continue
            entry = (
                network,
                row.listener,
                text_of(row.client_id, row.client_id_size, CLIENT_ID_BYTES),
                text_of(row.name, row.name_size, SOFTWARE_NAME_BYTES),
                text_of(row.software_version, row.version_size, SOFTWARE_VERSION_BYTES),
                kb_load_relaxed_i64(&row.connections),
                kb_load_relaxed_i64(&row.requests),
                kb_load_relaxed_i64(&row.bytes_in),
                kb_load_relaxed_i64(&row.bytes_out),
            )
            kb_fence_acquire()
            if kb_load_relaxed_u32(&row.version) == version:
                found.append(entry)
    return found
