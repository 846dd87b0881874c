# Client quotas in a network process: who is throttled for how long. See client_limits.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.base.api_keys cimport (
    API_ALTER_PARTITION,
    API_CONTROLLED_SHUTDOWN,
    API_LEADER_AND_ISR,
    API_STOP_REPLICA,
    API_UPDATE_METADATA,
    API_WRITE_TXN_MARKERS,
)
from kbroker._ext.network.admission cimport MutedConnections
from kbroker._ext.network.connection cimport Connection
from kbroker._ext.network.scarcity cimport MemoryQueue
from kbroker._ext.shared.quota_table cimport QuotaTable


# Whether only other brokers send such requests; as in Kafka, no quota applies to them.
cdef inline bint is_of_broker(int16_t api_key) noexcept nogil:
    return (
        api_key == API_LEADER_AND_ISR
        or api_key == API_STOP_REPLICA
        or api_key == API_UPDATE_METADATA
        or api_key == API_CONTROLLED_SHUTDOWN
        or api_key == API_WRITE_TXN_MARKERS
        or api_key == API_ALTER_PARTITION
    )


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
    # The key of its client's quota for the time of requests, and its rate; 0: there is none.
    cdef uint64_t time_quota(self, Connection c, double* rate) noexcept
    # Count time spent for a connection.
    cdef void charge_time(self, Connection c, int64_t spent_ns, int64_t now_ms) noexcept
    # A response is about to be written: mute its connection for this long, or as long as its time exceeds the quota.
    cdef int throttle(self, Connection c, int64_t throttle_ms, int64_t now_ms) except -1
