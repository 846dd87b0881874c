"""What a producer has counted, for its metrics: now, by broker and by topic.

Runs in clients, in any thread, with the GIL: topics are added by threads that have it, nodes also by one that has the lock.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from kbroker._ext.base.growing cimport resize
from kbroker._ext.client.accumulator cimport Accumulator
from kbroker._ext.client.producer_batch cimport Topic
from kbroker._ext.client.producer_counts cimport Maxima, NodeCounts
from kbroker._ext.client.send_core cimport SendCore


cdef struct Seen:
    int32_t id
    NodeCounts counts


def maxima(Accumulator pool not None, bint take) -> dict[str, int]:
    """The largest of each kind since they were taken last. take: they begin anew."""
    cdef Maxima found
    pool.begin()
    found = pool.maxima
    if take:
        memset(&pool.maxima, 0, sizeof(Maxima))
    pool.end()
    return found


def topic_counts(Accumulator pool not None) -> dict[str, dict[str, int]]:
    """Of each topic that records were sent to, since the start."""
    cdef dict found = {}
    cdef Topic* topic
    cdef int64_t i
    for i in range(pool.topic_count):
        topic = pool.topics[i]
        found[<object>topic.name] = topic.counts
    return found


def in_flight(SendCore loop not None) -> int:
    """Requests without a response."""
    cdef int64_t found = 0
    cdef int32_t i
    loop.pool.begin()
    for i in range(loop.node_count):
        found += loop.nodes[i].count
    loop.pool.end()
    return found


def node_counts(SendCore loop not None, bint take) -> dict[int, dict[str, int]]:
    """Of each node, since the start; latency_max_us: since it was taken last. take: it begins anew."""
    cdef Seen* seen = NULL
    cdef int32_t i
    cdef int32_t room = 0
    cdef int32_t count = loop.node_count
    cdef dict found = {}
    # While there is no lock, another node may be added.
    while room < count:
        room = count
        if not resize(&seen, <size_t>room * sizeof(Seen)):
            free(seen)
            raise MemoryError
        loop.pool.begin()
        count = loop.node_count
        for i in range(min(count, room)):
            seen[i].id = loop.nodes[i].id
            seen[i].counts = loop.nodes[i].counts
            if take and count <= room:
                loop.nodes[i].counts.latency_max_us = 0
        loop.pool.end()
    for i in range(count):
        found[seen[i].id] = seen[i].counts
    free(seen)
    return found
