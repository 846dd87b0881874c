# A Fetch request, versions 0 to 18, as plain structs that point into the request's bytes.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t


cdef enum:
    FETCH_VERSION_MIN = 0
    FETCH_VERSION_MAX = 18
    FETCH_PARTITIONS_MAX = 262144   # BOUND: of one request and of one session; each costs about 100 bytes


cdef struct RequestTopic:
    const uint8_t* key       # UTF-8 name, or 16 bytes of topic id from version 13
    int32_t key_size
    int32_t first            # its partitions are [first, first + count) of the partition array
    int32_t count


cdef struct RequestPartition:
    int32_t index
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int32_t bytes_max
    int64_t fetch_offset
    int64_t log_start_offset # of a follower's log, -1: not said


cdef class FetchRequest:
    cdef int16_t version
    cdef int8_t isolation_level
    cdef int32_t replica_id
    cdef int32_t max_wait_ms
    cdef int32_t bytes_min
    cdef int32_t bytes_max
    cdef int32_t session_id
    cdef int32_t session_epoch
    cdef const uint8_t* rack             # of the client; valid while the request's bytes are
    cdef int32_t rack_size               # 0 or less: it says none
    cdef RequestTopic* topics            # valid while the request's bytes are
    cdef int32_t topic_count
    cdef int32_t topic_capacity
    cdef RequestPartition* partitions
    cdef int32_t partition_count
    cdef int32_t partition_capacity
    cdef RequestTopic* forgotten         # first and count are into forgotten_partitions
    cdef int32_t forgotten_count
    cdef int32_t forgotten_capacity
    cdef int32_t* forgotten_partitions
    cdef int32_t forgotten_partition_count
    cdef int32_t forgotten_partition_capacity
    # Decode `size` bytes after the request header. Raises FetchDecodeError; the object may be used again after it.
    cdef int decode(self, const uint8_t* body, Py_ssize_t size, int16_t version) except -1
    cdef int make_room(self, int32_t topics, int32_t partitions, int32_t forgotten, int32_t indexes) except -1
