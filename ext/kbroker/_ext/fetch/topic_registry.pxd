# Topics of a network process: name or id -> partition-table slots and log files.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kbroker._ext.fetch.fetch_files cimport FileCache
from kbroker._ext.fetch.fetch_segments cimport LogFiles


cdef class Topic:
    cdef readonly bytes name          # UTF-8; None when only an unknown id was given
    cdef readonly bytes topic_id      # 16 bytes; None when only an unknown name was given
    cdef readonly bint alive          # False: unknown or deleted; sessions look it up again when topics change
    cdef int32_t* slots
    cdef int64_t* incarnations        # that each slot must have, -1: any
    cdef readonly int32_t partition_count
    cdef public bint rejects_old      # nothing is converted for readers of formats 0 and 1
    cdef public bint stores_zstd      # every batch is stored so
    cdef public bint internal         # written by coordinators only
    cdef public dict throttled        # partition -> in-sync brokers, of those whose sending is throttled; None: of none
    # rack -> partition -> brokers in it to which consumers in this rack are sent (KIP-392); None: nobody is sent away.
    cdef public dict nearby
    cdef list logs                    # LogFiles or None by partition
    cdef int close_logs(self, list logs) except -1
    cdef LogFiles log_of(self, int32_t index, int32_t log_dir_index, list log_dirs, FileCache cache)


cdef class TopicRegistry:
    cdef dict by_name
    cdef dict by_id
    cdef readonly uint64_t version    # changes with every change of topics
    cdef Topic find(self, const uint8_t* key, int32_t key_size, bint by_id)
