# Committed offsets of groups, as io workers write them down for the exporter. See group_offsets.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t


# One committed offset. The numbers of names are those of the store that wrote it.
cdef struct GroupOffset:
    uint32_t group
    uint32_t topic
    int32_t partition
    uint32_t unused
    int64_t offset
    int64_t commit_ms
