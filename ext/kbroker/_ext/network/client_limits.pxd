# Client quotas in a network process: who is throttled for how long. See client_limits.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._ext.network.admission cimport MutedConnections
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.network.scarcity cimport MemoryQueue
from kbroker._ext.shared.quota_table cimport QuotaTable


cdef class ClientLimits:
    cdef readonly QuotaTable table
    cdef MutedConnections muted
    cdef MemoryQueue memory
    cdef public bint on                # whether there are quotas; nothing else may be called unless there are
    cdef public object find            # find(access, client id) -> ClientUsage
    cdef readonly int64_t throttled    # responses with a throttle time of quotas
    # Find out whose request this is, before it is served.
    cdef int identify(self, Connection c, const uint8_t* frame, int32_t size) except -1
    # Count the bytes of a Produce, and mute its connection if they exceed the quota.
    cdef int charge_produce(self, Connection c, int64_t size, int64_t now_ms) except -1
    # Count time spent for a connection.
    cdef void charge_time(self, Connection c, int64_t spent_ns, int64_t now_ms) noexcept
    # A response is about to be written: mute its connection for this long, or as long as its time exceeds the quota.
    cdef int throttle(self, Connection c, int64_t throttle_ms, int64_t now_ms) except -1
