# The partitions of one fetch in their order, and the incremental sessions (KIP-227).
from cpython.ref cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t

from kbroker._ext.base.index_table cimport IndexTable
from kbroker._ext.fetch.fetch_decode cimport FetchRequest, RequestPartition, RequestTopic
from kbroker._ext.fetch.follower_reports cimport FollowerReports
from kbroker._ext.fetch.standing_waits cimport StandingWaits
from kbroker._ext.fetch.topic_registry cimport Topic, TopicRegistry
from kbroker._ext.shared.partition_table cimport PartitionTable, SlotData
from kbroker._ext.shared.session_times cimport SessionTimes
from kbroker._ext.sockets.verdicts cimport Verdicts


cdef struct FetchPartition:
    PyObject* topic                   # a Topic; each used entry owns a reference
    int32_t index
    int32_t slot                      # -1: see error
    int64_t slot_incarnation          # that the slot must have, -1: any
    int16_t error                     # why there is no slot
    bint used
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int32_t bytes_max
    int32_t next                      # in order of service; `next` also chains free entries
    int32_t previous
    int64_t fetch_offset
    int64_t told_high_watermark       # in the last response of the session, -1: must be sent again
    int64_t told_log_start_offset
    int64_t segment_base_offset       # of the segment with fetch_offset, -1: unknown
    int64_t position
    # Followers only.
    int64_t log_start_offset          # of the follower's log, -1: unknown
    int32_t reported_epoch            # leader epoch in which the owner of the slot was told of it, -1: it was not
    uint32_t reported_incarnation     # of the slot
    int64_t reported_offset           # what the owner was told
    int64_t reported_log_start
    int32_t standing                  # number of its StandingWait, -1: it is in the order of service


cdef class FetchSession:
    cdef readonly int32_t session_id  # 0: not cached
    cdef readonly int32_t epoch       # of the next request
    cdef readonly bint by_id          # topics named by id (version 13 and up)
    cdef readonly int32_t count
    cdef readonly int64_t last_used_ms
    cdef readonly int32_t replica_id  # of the follower; below 0: a consumer's
    cdef readonly int32_t cell        # of SessionTimes, -1: none
    cdef FollowerReports reports      # None: not a follower's, or it has ended
    cdef StandingWaits standing       # of a follower's session
    cdef object parked                # the ParkedFetch waiting on this session, else None
    cdef FetchPartition* partitions
    cdef int32_t capacity
    cdef int32_t used_end             # entries at and above were never used
    cdef int32_t first
    cdef int32_t last
    cdef int32_t free_head
    cdef uint64_t registry_version
    cdef Verdicts access              # of the client of its last request
    cdef uint64_t access_version      # the slots were looked up for these topics and these rights
    cdef dict placeholders            # key -> Topic of unknown topics, else None
    cdef IndexTable index             # (topic, partition) -> entry + 1; empty until it is a session
    # Take a partition out of the order of service while it has nothing new; activate() puts it back, as the last.
    cdef int stand(self, int32_t entry) except -1
    cdef void activate(self, int32_t entry) noexcept
    cdef void activate_all(self) noexcept
    # Report the follower's position to the owner of the slot, unless it knows it. The fetch was read without an error.
    cdef int report(self, FetchPartition* entry, const SlotData* slot) except -1
    # The owner may have forgotten everything: report all partitions of an io worker again.
    cdef int report_again(self, PartitionTable table, int worker, int worker_count) except -1
    cdef int report_left(self, FetchPartition* entry) except -1
    cdef int leave_slot(self, FetchPartition* entry, int32_t slot) except -1
    cdef bint may_read(self, Topic topic) except -1
    cdef int send_report(self, FetchPartition* entry, const SlotData* slot, int32_t flags, bint has_place) except -1
    cdef int fill(self, FetchRequest request, TopicRegistry registry, Verdicts access) except -1
    cdef int update(self, FetchRequest request, TopicRegistry registry, Verdicts access) except -1
    cdef int resolve(self, TopicRegistry registry) except -1
    cdef int resolve_entry(self, FetchPartition* entry, TopicRegistry registry) except -1
    cdef Topic topic_for(self, const RequestTopic* wanted, TopicRegistry registry)
    cdef int32_t add(self, Topic topic, const RequestPartition* wanted) except -1
    cdef void remove(self, int32_t entry) noexcept
    cdef void move_to_end(self, int32_t entry) noexcept
    cdef void clear(self) noexcept
    cdef int index_all(self) except -1
    cdef int32_t lookup(self, PyObject* topic, int32_t index) noexcept
    cdef int enter(self, int32_t entry) except -1
    cdef void forget(self, int32_t entry) noexcept
    cdef void drop_index(self) noexcept


cdef class SessionCache:
    cdef readonly int32_t capacity
    cdef int32_t network_index
    cdef dict sessions                # id -> FetchSession, least recently used first
    cdef readonly uint64_t evictions
    cdef dict followers               # id -> FetchSession; these are never evicted
    cdef SessionTimes times           # of the followers' sessions
    cdef FollowerReports reports
    cdef StandingWaits standing
    # Only the replica that created a session may use it, as far as replica ids tell.
    cdef FetchSession find(self, int32_t session_id, int32_t replica_id)
    cdef int touch(self, FetchSession session, int64_t now_ms) except -1
    cdef int remove(self, FetchSession session) except -1
    cdef bint admit(self, FetchSession session, int64_t now_ms) except *
    cdef bint admit_follower(self, FetchSession session, int64_t now_ms) except *
    cdef int begin(self, FetchSession session, int64_t now_ms) except -1
