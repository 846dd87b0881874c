# The replicas of a partition on other brokers, as its leader knows them. See replica_set.pyx.
from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._ext.shared.descriptors cimport FollowerProgress
from kbroker._ext.shared.partition_table cimport LogEnd, SlotFollowers
from kbroker._ext.shared.session_times cimport SessionTimes


cdef enum:
    NO_SESSION = -1
    UNKNOWN_END = -1


# The consequences of a follower's report; several may be combined.
cdef enum ProgressNews:
    END_MOVED = 1            # the high watermark may rise
    ISR_TO_CHECK = 2         # a replica may join those that are in sync, or has lost records that they have
    START_MOVED = 4          # its log starts elsewhere: the low watermark may rise


# The result of find_high_watermark.
cdef enum HighWatermark:
    STAYS = 0
    RISES = 1
    RISES_UNPLACED = 2       # to an offset whose place in the log has to be looked up


cdef struct RemoteReplica:
    int32_t id
    int32_t network          # index of the network process that has its session
    int32_t session_cell     # NO_SESSION: it has none
    bint is_assigned         # otherwise it is only remembered
    bint is_in_sync          # in the ISR that is committed
    bint is_maximal          # in the ISR, or in the one that the controller has been asked for
    LogEnd end               # of its log; offset UNKNOWN_END before its first fetch in this leader epoch
    uint32_t place_version   # the segment_version for which the place of `end` is right
    int64_t log_start        # of its log; -1: unknown
    int64_t caught_up_ms     # when it last had everything, unless `end` is the leader's log end: then it has it now
    int64_t asked_ms         # when it sent the last fetch that was reported
    int64_t seen_end         # the leader's log end at that time
    int64_t retry_ms         # it is not proposed for the ISR before


cdef class ReplicaSet:
    cdef SessionTimes times
    cdef RemoteReplica* replicas
    cdef int32_t count
    cdef int32_t capacity
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t epoch_start
    cdef readonly int64_t leader_end     # the leader's log end when it was looked at last
    cdef public bint is_changing         # the controller has been asked for another ISR
    cdef public int64_t lag_ms           # replica.lag.time.max.ms
    # Take an entry from a network process; returns ProgressNews. high_watermark: of the leader.
    cdef int note(self, const FollowerProgress* entry, int network, int64_t high_watermark, int64_t now_ms) except -1
    cdef int note_fetch(
        self, RemoteReplica* replica, const FollowerProgress* entry, int64_t high_watermark, int64_t now_ms
    ) noexcept
    # The sessions of a network process have ended with it.
    cdef void forget_sessions(self, int network, int64_t now_ms) noexcept
    # The high watermark if it is above `present`. end: the leader's log end; version: the segment_version of places in the
    # log. If it is found without a place, only out.offset is set.
    cdef HighWatermark find_high_watermark(
        self, const LogEnd* end, int64_t present, uint32_t version, int64_t now_ms, LogEnd* out
    ) noexcept
    # Tell readers of the slot which followers have what.
    cdef void show(self, SlotFollowers* out) noexcept
    cdef void note_leader_end(self, int64_t end) noexcept
    cdef bint is_ahead(self, const RemoteReplica* one, const RemoteReplica* other) noexcept
    cdef RemoteReplica* find(self, int32_t replica_id) noexcept
    cdef RemoteReplica* add(self, int32_t replica_id) except NULL
    cdef bint may_join(self, const RemoteReplica* replica, int64_t high_watermark, int64_t now_ms) noexcept
