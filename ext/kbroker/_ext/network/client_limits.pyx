"""Client quotas in a network process: what its clients use, and which connections are muted for how long.

A connection keeps the usage of its client until its principal or the client id of its requests changes; so a request
costs a comparison, and an atomic addition for each quota that applies (``quota_table``).

As in Kafka (KIP-219), a request is served, its response says for how long the client should pause, and nothing is read from its
connection before that. What is in progress counts when it begins: Produce requests are pipelined.
"""
from libc.string cimport memcmp

from kbroker._ext.base.wire cimport load_i16

cdef enum:
    CLIENT_ID_AT = 8  # in every request header, its length first


cdef class ClientLimits:
    """Made by the loop of the network process."""

    def __cinit__(self, QuotaTable table not None, MutedConnections muted not None, MemoryQueue memory not None):
        self.table = table
        self.muted = muted
        self.memory = memory

    cdef int identify(self, Connection c, const uint8_t* frame, int32_t size) except -1:
        cdef int32_t length = load_i16(frame + CLIENT_ID_AT) if size >= CLIENT_ID_AT + 2 else -1
        cdef const uint8_t* client_id = frame + CLIENT_ID_AT + 2
        if length < 0 or length > size - CLIENT_ID_AT - 2:
            length = 0
        if c.usage is None or len(c.usage.client_id) != length or memcmp(
            <const char*>c.usage.client_id, client_id, <size_t>length
        ) != 0:
            c.fetch_prepaid = 0
            c.usage = self.find(c.access, (<const char*>client_id)[:length])
        return 0

    cdef int charge_produce(self, Connection c, int64_t size, int64_t now_ms) except -1:
        cdef int64_t throttle_ms = 0
        if c.usage.produce.key:
            self.table.record(&c.usage.produce, size, now_ms)
            throttle_ms = self.table.excess_ms(&c.usage.produce, now_ms)
        return self.throttle(c, throttle_ms, now_ms)

    cdef uint64_t time_quota(self, Connection c, double* rate) noexcept:
        rate[0] = 0
        if c.usage is None or c.usage.request.key == 0:
            return 0
        rate[0] = c.usage.request.rate
        return c.usage.request.key

    def quota_of_time(self, Connection c not None):
        cdef double rate = 0
        cdef uint64_t key = self.time_quota(c, &rate)
        return key, rate

    cdef void charge_time(self, Connection c, int64_t spent_ns, int64_t now_ms) noexcept:
        if c.usage is not None and c.usage.request.key:
            self.table.record(&c.usage.request, spent_ns, now_ms)

    cdef int throttle(self, Connection c, int64_t throttle_ms, int64_t now_ms) except -1:
        if c.usage is None:
            return 0
        if c.usage.request.key:
            # As in Kafka, for the time of requests a client pauses for one sample at most.
            throttle_ms = max(throttle_ms, min(self.table.excess_ms(&c.usage.request, now_ms), self.table.sample_ms))
        if throttle_ms > 0:
            self.throttled += 1
            if self.muted.add(c, now_ms + throttle_ms):
                self.memory.leave(c)
        return 0

    def charge_handler(self, Connection c not None, int64_t spent_ns, int64_t now_ms):
        """A handler has spent this time, and responds now."""
        self.charge_time(c, spent_ns, now_ms)
        self.throttle(c, 0, now_ms)

    def forget(self, connections):
        """The quotas have changed."""
        cdef Connection c
        for c in connections:
            c.usage = None
