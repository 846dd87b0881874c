"""Committed offsets of groups in shared memory: an io worker writes those of its groups, the exporter reads them.

Only when the exporter asks; the io worker's reply says which entries there are, and what the numbers in them mean. So
nobody writes what somebody else reads (docs/decisions/0026-metrics.md).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from kbroker._ext.base.buffers cimport region_bytes

# BOUND: offsets of one io worker; what does not fit is left out, and told.
OFFSETS_MAX = 1 << 21

cdef enum:
    UNKNOWN = -1


def region_size() -> int:
    """The bytes of one io worker's region; only what is used takes memory."""
    return OFFSETS_MAX * sizeof(GroupOffset)


def entries(region, Py_ssize_t start, Py_ssize_t count) -> bytes:
    """A copy of entries, for ``rows`` and ``sums``."""
    cdef Py_ssize_t size = 0
    cdef uint8_t* data = region_bytes(region, &size)
    if start < 0 or count < 0 or start > size // <Py_ssize_t>sizeof(GroupOffset) - count:
        raise ValueError(f"no entries {start} to {start + count} in {size} bytes")
    return PyBytes_FromStringAndSize(
        <const char*>data + start * <Py_ssize_t>sizeof(GroupOffset), count * <Py_ssize_t>sizeof(GroupOffset))


cdef inline int64_t lag_of(const GroupOffset* one, list ends) except? -2:
    # ends: by number of the topic, the high watermark of each partition, as int64; None: unknown.
    cdef bytes of_topic
    cdef int64_t end
    if one.topic >= <uint32_t>len(ends) or ends[one.topic] is None:
        return UNKNOWN
    of_topic = ends[one.topic]
    if one.partition < 0 or one.partition >= PyBytes_GET_SIZE(of_topic) // <Py_ssize_t>sizeof(int64_t):
        return UNKNOWN
    end = (<const int64_t*>PyBytes_AS_STRING(of_topic))[one.partition]
    return UNKNOWN if end < 0 else max(<int64_t>0, end - one.offset)


def rows(bytes copied not None, list ends not None) -> list:
    """[(group, topic, partition, offset, lag or -1)...]."""
    cdef Py_ssize_t i, count = PyBytes_GET_SIZE(copied) // <Py_ssize_t>sizeof(GroupOffset)
    cdef const GroupOffset* one = <const GroupOffset*>PyBytes_AS_STRING(copied)
    cdef list found = []
    for i in range(count):
        found.append((one.group, one.topic, one.partition, one.offset, lag_of(one, ends)))
        one += 1
    return found


def sums(region, Py_ssize_t start, Py_ssize_t count, list ends not None) -> dict:
    """{(group, topic): (sum of offsets, sum of lags or -1, largest lag or -1, partition, offset)} of entries.

    -1: the lag of no partition is known. partition, offset: of the largest lag.
    """
    cdef Py_ssize_t size = 0, i = start
    cdef Py_ssize_t end = start + count
    cdef const GroupOffset* one = <const GroupOffset*>region_bytes(region, &size)
    cdef uint32_t group, topic
    cdef int64_t offsets, lags, largest, lag, offset
    cdef int32_t partition
    cdef dict found = {}
    if start < 0 or count < 0 or start > size // <Py_ssize_t>sizeof(GroupOffset) - count:
        raise ValueError(f"no entries {start} to {start + count} in {size} bytes")
    while i < end:
        # Offsets of one group and topic tend to follow each other.
        group, topic = one[i].group, one[i].topic
        offsets, lags, largest = 0, UNKNOWN, UNKNOWN
        partition, offset = UNKNOWN, UNKNOWN
        while i < end and one[i].group == group and one[i].topic == topic:
            offsets += one[i].offset
            lag = lag_of(&one[i], ends)
            if lag >= 0:
                lags = max(lags, <int64_t>0) + lag
                if lag > largest:
                    largest, partition, offset = lag, one[i].partition, one[i].offset
            i += 1
        known = found.get((group, topic))
        if known is not None:
            offsets += known[0]
            if known[1] >= 0:
                lags = max(lags, <int64_t>0) + <int64_t>known[1]
                if <int64_t>known[2] > largest:
                    largest, partition, offset = known[2], known[3], known[4]
        found[group, topic] = (offsets, lags, largest, partition, offset)
    return found
