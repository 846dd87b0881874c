"""The replicas of a partition on other brokers, as its leader sees them: high watermark and ISR.

Lives in the io worker that leads the partition, beside the log's tail, if the partition has more than one replica.
Network processes say where followers are (``FollowerProgress``); ``workers/io/in_sync`` asks the controller for changes of
the in-sync replicas (ISR) and says what they are.

The high watermark is the lowest log end of the leader and of every replica that is in the *maximal* ISR (the committed one,
and the one that the controller has been asked for: it may have agreed already) or has been caught up within
replica.lag.time.max.ms, which may be about to join. It rises only.

A replica is caught up while its log end is the leader's. It asks for records all the time, but what does not move is not
reported; its session's cell has the time of its last request, and that is when it was caught up last once the leader's log
grows. A replica that is behind was caught up when it asked for the offset that was the log end at that time, or at the
request before (as in Kafka, where a follower under load is never quite at the end).

INVARIANT: what a replica says in another leader epoch moves nothing: its log may not be a prefix of the leader's.
"""
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free
from libc.string cimport memset

from kbroker._ext.base.atomics cimport kb_store_relaxed_i64
from kbroker._ext.base.growing cimport grow
from kbroker._ext.shared.descriptors cimport FOLLOWER_ATTACHED, FOLLOWER_LEFT, FOLLOWER_PROGRESS

cdef enum:
    # BOUND: replicas that are not assigned, as far as the leader knows, and are remembered. LeaderAndIsr may come after
    # the first fetch of a replica that it names.
    UNASSIGNED_MAX = 8
    NO_REPLICA = -1

cdef int64_t LONG_AGO = -(<int64_t>1 << 60)


cdef class ReplicaSet:
    """times: of the followers' sessions; None: they are not recorded. lag_ms: replica.lag.time.max.ms."""

    def __cinit__(self, SessionTimes times, int64_t lag_ms):
        self.times = times
        self.lag_ms = lag_ms
        self.leader_epoch = -1

    def __dealloc__(self):
        free(self.replicas)

    # ---- what the controller says --------------------------------------------------------------------------------------

    def begin_epoch(self, int32_t leader_epoch, int64_t epoch_start, int64_t log_end, int64_t now_ms) -> None:
        """Start a new leader epoch at ``epoch_start``; called before the replicas are set.

        Where the others are is not known until they have fetched in it. Those that are in sync count as caught up now.
        """
        cdef int32_t i
        self.leader_epoch = leader_epoch
        self.epoch_start = epoch_start
        self.leader_end = log_end
        self.is_changing = False
        for i in range(self.count):
            forget_progress(&self.replicas[i])
            self.replicas[i].is_in_sync = self.replicas[i].is_maximal = False

    def set_assigned(self, replica_ids) -> None:
        """The partition has replicas on these brokers besides the leader's."""
        cdef int32_t i
        for i in range(self.count):
            self.replicas[i].is_assigned = self.replicas[i].id in replica_ids
        for replica_id in replica_ids:
            if self.find(replica_id) == NULL:
                self.add(replica_id).is_assigned = True

    def set_in_sync(self, committed, maximal, int64_t now_ms) -> None:
        """committed: the ISR; maximal: including replicas proposed to the controller. Without the leader."""
        cdef RemoteReplica* replica
        cdef int32_t i
        for i in range(self.count):
            replica = &self.replicas[i]
            replica.is_in_sync = replica.id in committed
            replica.is_maximal = replica.is_in_sync or replica.id in maximal
            if replica.is_in_sync and replica.caught_up_ms == LONG_AGO:
                replica.caught_up_ms = now_ms

    def retry_at(self, int32_t replica_id, int64_t when_ms=INT64_MAX) -> None:
        """Do not propose the replica for the ISR before; without a time: not before ``retry_all``."""
        cdef RemoteReplica* replica = self.find(replica_id)
        if replica != NULL:
            replica.retry_ms = when_ms

    def retry_all(self) -> None:
        """Any replica may be proposed for the ISR again."""
        cdef int32_t i
        for i in range(self.count):
            self.replicas[i].retry_ms = 0

    def forget(self, replica_id) -> None:
        """The replica's broker is gone: that it had caught up until now holds up the high watermark no longer, unless it
        is in sync. It is known again once it fetches.
        """
        cdef RemoteReplica* replica = self.find(replica_id)
        if replica != NULL and not replica.is_in_sync:
            replica.session_cell = NO_SESSION
            replica.caught_up_ms = replica.asked_ms = LONG_AGO

    # ---- what followers say --------------------------------------------------------------------------------------------

    cdef int note(self, const FollowerProgress* entry, int network, int64_t high_watermark, int64_t now_ms) except -1:
        cdef RemoteReplica* replica = self.find(entry.replica_id)
        cdef int news = 0
        if replica == NULL:
            if entry.flags & (FOLLOWER_ATTACHED | FOLLOWER_PROGRESS) == 0:
                return 0
            replica = self.add(entry.replica_id)
        if entry.flags & FOLLOWER_ATTACHED:
            replica.session_cell = entry.session_cell
            replica.network = network
        if replica.session_cell != NO_SESSION and replica.session_cell != entry.session_cell:
            return 0  # of a session that it had before
        if entry.flags & FOLLOWER_PROGRESS and entry.leader_epoch == self.leader_epoch:
            news = self.note_fetch(replica, entry, high_watermark, now_ms)
        if entry.flags & FOLLOWER_LEFT:
            if replica.end.offset >= self.leader_end:
                replica.caught_up_ms = max(replica.caught_up_ms, entry.request_ms)
            replica.session_cell = NO_SESSION
        return news

    cdef int note_fetch(
        self, RemoteReplica* replica, const FollowerProgress* entry, int64_t high_watermark, int64_t now_ms
    ) noexcept:
        cdef int news = 0
        if entry.fetch_offset >= entry.log_end_seen:
            replica.caught_up_ms = max(replica.caught_up_ms, entry.request_ms)
        elif entry.fetch_offset >= replica.seen_end:
            replica.caught_up_ms = max(replica.caught_up_ms, replica.asked_ms)
        replica.asked_ms = entry.request_ms
        replica.seen_end = entry.log_end_seen
        if replica.log_start != entry.log_start_offset:
            news = START_MOVED
        replica.log_start = entry.log_start_offset
        if replica.end.offset != entry.fetch_offset:
            news |= END_MOVED
        replica.end.offset = entry.fetch_offset
        replica.end.segment_base_offset = entry.segment_base_offset
        replica.end.position = entry.segment_position
        replica.place_version = entry.segment_version
        if not self.is_changing and (
            (replica.is_in_sync and entry.fetch_offset < high_watermark)
            or self.may_join(replica, high_watermark, now_ms)
        ):
            news |= ISR_TO_CHECK
        return news

    cdef void forget_sessions(self, int network, int64_t now_ms) noexcept:
        cdef RemoteReplica* replica
        cdef int32_t i
        for i in range(self.count):
            replica = &self.replicas[i]
            if replica.session_cell != NO_SESSION and replica.network == network:
                replica.session_cell = NO_SESSION
                # The cell may be another session's by now. The process was there until just now.
                if replica.end.offset >= self.leader_end:
                    replica.caught_up_ms = max(replica.caught_up_ms, now_ms)

    # ---- what follows from it ------------------------------------------------------------------------------------------

    cdef HighWatermark find_high_watermark(
        self, const LogEnd* end, int64_t present, uint32_t version, int64_t now_ms, LogEnd* out
    ) noexcept:
        cdef RemoteReplica* replica
        cdef RemoteReplica* lowest = NULL
        cdef int64_t offset = end.offset
        cdef int32_t i
        if end.offset != self.leader_end:
            self.note_leader_end(end.offset)
        for i in range(self.count):
            replica = &self.replicas[i]
            if replica.end.offset < offset and replica.is_assigned and (
                replica.is_maximal or now_ms - replica.caught_up_ms <= self.lag_ms
            ):
                lowest = replica
                offset = replica.end.offset
        if offset <= present:
            return STAYS
        if lowest == NULL:
            out[0] = end[0]
            return RISES
        out[0] = lowest.end
        if lowest.end.position < 0 or lowest.place_version != version:
            return RISES_UNPLACED
        return RISES

    cdef void show(self, SlotFollowers* out) noexcept:
        cdef RemoteReplica* replica
        cdef RemoteReplica* best = NULL
        cdef int64_t log_start_max = 0
        cdef int32_t i
        for i in range(self.count):
            replica = &self.replicas[i]
            if not replica.is_in_sync:
                continue
            if replica.log_start < 0:
                log_start_max = INT64_MAX
            log_start_max = max(log_start_max, replica.log_start)
            if best == NULL or self.is_ahead(replica, best):
                best = replica
        kb_store_relaxed_i64(&out.log_start_max, log_start_max)
        kb_store_relaxed_i64(&out.most_caught_up, NO_REPLICA if best == NULL else best.id)

    cdef bint is_ahead(self, const RemoteReplica* one, const RemoteReplica* other) noexcept:
        """Whether it is more caught up: by log end, then by the time when it had everything, then by id, as in Kafka."""
        if one.end.offset != other.end.offset:
            return one.end.offset > other.end.offset
        if one.caught_up_ms != other.caught_up_ms and one.end.offset < self.leader_end:
            return one.caught_up_ms > other.caught_up_ms
        return one.id > other.id

    cdef void note_leader_end(self, int64_t end) noexcept:
        """The leader's log end has advanced: replicas that had caught up have not any more."""
        cdef RemoteReplica* replica
        cdef int32_t i
        for i in range(self.count):
            replica = &self.replicas[i]
            if replica.end.offset >= self.leader_end and replica.session_cell != NO_SESSION and self.times is not None:
                replica.caught_up_ms = max(replica.caught_up_ms, self.times.last_request_ms(replica.session_cell))
        self.leader_end = end

    cdef bint may_join(self, const RemoteReplica* replica, int64_t high_watermark, int64_t now_ms) noexcept:
        return (
            not replica.is_maximal
            and replica.is_assigned
            and replica.end.offset >= high_watermark
            and replica.end.offset >= self.epoch_start
            and now_ms >= replica.retry_ms
        )

    def joining(self, int64_t high_watermark, int64_t now_ms) -> list:
        """The replicas that are not in sync, and may be: they have all that is committed, and have followed this leader.

        Some may be on brokers that do not live any more.
        """
        cdef int32_t i
        return [
            self.replicas[i].id for i in range(self.count) if self.may_join(&self.replicas[i], high_watermark, now_ms)
        ]

    def lagging(self, int64_t now_ms) -> dict:
        """In-sync replicas that have been behind for longer than replica.lag.time.max.ms, with the time in ms."""
        cdef RemoteReplica* replica
        cdef int32_t i
        cdef dict found = {}
        for i in range(self.count):
            replica = &self.replicas[i]
            if replica.is_in_sync and replica.end.offset != self.leader_end:
                if now_ms - replica.caught_up_ms > self.lag_ms:
                    found[replica.id] = now_ms - replica.caught_up_ms
        return found

    def low_watermark(self, int64_t log_start, live) -> int:
        """The lowest log start offset of the leader, which is ``log_start``, and of the assigned replicas on the brokers in
        ``live``: every record below it is deleted on all of them. -1 if that of one of them is unknown.
        """
        cdef RemoteReplica* replica
        cdef int64_t offset = log_start
        cdef int32_t i
        for i in range(self.count):
            replica = &self.replicas[i]
            if replica.is_assigned and replica.log_start < offset and replica.id in live:
                offset = replica.log_start
        return offset

    def short(self, int64_t high_watermark) -> list:
        """In-sync replicas that lack committed records: they have lost them."""
        cdef int32_t i
        return [
            self.replicas[i].id
            for i in range(self.count)
            if self.replicas[i].is_in_sync and UNKNOWN_END < self.replicas[i].end.offset < high_watermark
        ]

    # ---- the array -----------------------------------------------------------------------------------------------------

    cdef RemoteReplica* find(self, int32_t replica_id) noexcept:
        cdef int32_t i
        for i in range(self.count):
            if self.replicas[i].id == replica_id:
                return &self.replicas[i]
        return NULL

    cdef RemoteReplica* add(self, int32_t replica_id) except NULL:
        """Make room for a replica that is not assigned; if there are too many, the one that fetched first is
        dropped.
        """
        cdef RemoteReplica* oldest = NULL
        cdef RemoteReplica* added
        cdef int32_t i, unassigned = 0
        for i in range(self.count):
            if not self.replicas[i].is_assigned:
                unassigned += 1
                if oldest == NULL or self.replicas[i].asked_ms < oldest.asked_ms:
                    oldest = &self.replicas[i]
        if unassigned >= UNASSIGNED_MAX:
            added = oldest
        else:
            self.capacity = <int32_t>grow(&self.replicas, self.capacity, self.count + 1, sizeof(RemoteReplica), 2)
            added = &self.replicas[self.count]
            self.count += 1
        memset(added, 0, sizeof(RemoteReplica))
        added.id = replica_id
        added.session_cell = NO_SESSION
        forget_progress(added)
        return added

    # ---- Python faces --------------------------------------------------------------------------------------------------

    def note_entry(self, const unsigned char[::1] entry not None, int network, int64_t high_watermark, int64_t now_ms):
        """Python face of note: (whether the high watermark may rise, whether the ISR is to be checked)."""
        cdef int news
        assert entry.shape[0] == sizeof(FollowerProgress), entry.shape[0]
        news = self.note(<const FollowerProgress*>&entry[0], network, high_watermark, now_ms)
        return bool(news & END_MOVED), bool(news & ISR_TO_CHECK)

    def end_sessions(self, int network, int64_t now_ms) -> None:
        """Python face of forget_sessions."""
        self.forget_sessions(network, now_ms)

    def high_watermark(self, int64_t log_end, int64_t present, int64_t now_ms) -> int:
        """Python face of find_high_watermark: the high watermark now."""
        cdef LogEnd end, found
        memset(&end, 0, sizeof(end))
        end.offset = log_end
        if self.find_high_watermark(&end, present, 0, now_ms, &found) == STAYS:
            return present
        return found.offset

    def describe(self, int32_t replica_id) -> dict:
        """The known state of a replica, for logs and tests; None if there is none."""
        cdef RemoteReplica* replica = self.find(replica_id)
        if replica == NULL:
            return None
        return {
            "end": replica.end.offset,
            "log_start": replica.log_start,
            "caught_up_ms": replica.caught_up_ms,
            "asked_ms": replica.asked_ms,
            "session": replica.session_cell,
            "assigned": bool(replica.is_assigned),
            "in_sync": bool(replica.is_in_sync),
            "maximal": bool(replica.is_maximal),
        }


cdef void forget_progress(RemoteReplica* replica) noexcept:
    """Its position is unknown, and the time when it was caught up."""
    replica.end.offset = UNKNOWN_END
    replica.end.segment_base_offset = replica.end.position = -1
    replica.log_start = replica.seen_end = -1
    replica.caught_up_ms = replica.asked_ms = LONG_AGO
    replica.retry_ms = 0
