# Topics as the hot paths of a network process look them up: name or id -> partition-table slots.
from libc.stdint cimport int32_t, uint8_t, uint32_t


cdef class TopicRef:
    cdef readonly bytes name
    cdef readonly bytes topic_id
    cdef readonly int32_t partition_count
    cdef readonly bint internal        # written by coordinators only
    cdef int32_t* slots                # -1: no replica on this broker
    cdef uint32_t* slot_incarnations


cdef class TopicRegistry:
    cdef dict _by_name
    cdef dict _by_id
    cdef TopicRef find_name(self, const uint8_t* name, Py_ssize_t size)
    cdef TopicRef find_id(self, const uint8_t* topic_id)
