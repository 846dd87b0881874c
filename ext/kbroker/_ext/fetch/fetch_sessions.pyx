"""The partitions of a fetch, and incremental fetch sessions (KIP-227) of one network process.

A FetchSession is the list of partitions a fetch is about. A full or sessionless request fills one for itself; one that
is admitted to the SessionCache lives on, and the requests that follow name only what changed. Entries are C structs in
order of service: those whose records have been returned move to the end, so that none starves.
"""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free

from kbroker._ext.fetch.fetch_decode import FetchDecodeError

from kbroker._ext.base.error_codes cimport (
    INCONSISTENT_TOPIC_ID,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.index_table cimport IndexTable, drop_row, next_row, put_row, reserve_row
from kbroker._ext.fetch.fetch_decode cimport FETCH_PARTITIONS_MAX
from kbroker._ext.fetch.topic_registry cimport Topic, TopicRegistry
from kbroker._ext.shared.descriptors cimport (
    FOLLOWER_ATTACHED,
    FOLLOWER_LEFT,
    FOLLOWER_PROGRESS,
    FollowerProgress,
)
from kbroker._ext.shared.partition_table cimport ROLE_LEADER, SLOT_ONLINE
from kbroker._ext.sockets.verdicts cimport MAY_ACT_ON_CLUSTER, Verdicts

cdef enum:
    NO_ENTRY = -1
    FIRST_CAPACITY = 8
    KEEP_CAPACITY = 4096         # a session larger than this gives its memory back when it is emptied
    IDLE_EVICTION_MS = 120000    # a session used within this time is not evicted for a new one
    NETWORK_INDEX_BITS = 6       # of a session id, so that no other process of the broker knows it
    EPOCH_MAX = 0x7FFFFFFF

cdef bytes CLUSTER = b"kafka-cluster"


cdef class FetchSession:
    """The partitions of a fetch, in order of service. Owns a reference to the topic of each used entry."""

    def __cinit__(self):
        self.first = NO_ENTRY
        self.last = NO_ENTRY
        self.free_head = NO_ENTRY
        self.replica_id = -1
        self.cell = -1

    def __dealloc__(self):
        self.clear()
        free(self.partitions)

    cdef int fill(self, FetchRequest request, TopicRegistry registry, Verdicts access) except -1:
        """Take the partitions of a full request into this empty session."""
        cdef:
            int32_t position, number
            RequestTopic* wanted
            Topic topic
        self.by_id = request.version >= 13
        self.replica_id = request.replica_id
        self.registry_version = registry.version
        self.access = access
        self.access_version = access.version
        for position in range(request.topic_count):
            wanted = &request.topics[position]
            topic = self.topic_for(wanted, registry)
            for number in range(wanted.first, wanted.first + wanted.count):
                self.resolve_entry(&self.partitions[self.add(topic, &request.partitions[number])], registry)
        return 0

    cdef int update(self, FetchRequest request, TopicRegistry registry, Verdicts access) except -1:
        """Apply an incremental request: changed and added partitions, then forgotten ones."""
        cdef:
            int32_t position, number, entry
            RequestTopic* wanted
            Topic topic
        if self.access is not access:  # the session is continued by another principal
            self.access = access
            self.access_version = 0
        self.resolve(registry)
        for position in range(request.topic_count):
            wanted = &request.topics[position]
            topic = self.topic_for(wanted, registry)
            for number in range(wanted.first, wanted.first + wanted.count):
                entry = self.lookup(<PyObject*>topic, request.partitions[number].index)
                if entry != NO_ENTRY:
                    self.activate(entry)
                    set_wanted(&self.partitions[entry], &request.partitions[number])
                    continue
                entry = self.add(topic, &request.partitions[number])
                self.resolve_entry(&self.partitions[entry], registry)
                self.enter(entry)
        for position in range(request.forgotten_count):
            wanted = &request.forgotten[position]
            topic = self.topic_for(wanted, registry)
            for number in range(wanted.first, wanted.first + wanted.count):
                entry = self.lookup(<PyObject*>topic, request.forgotten_partitions[number])
                if entry != NO_ENTRY:
                    self.activate(entry)
                    self.report_left(&self.partitions[entry])
                    self.forget(entry)
        return 0

    cdef int resolve(self, TopicRegistry registry) except -1:
        """Look up slots again if topics, or what its client may read, have changed since the last time."""
        cdef int32_t entry
        if self.registry_version == registry.version and self.access_version == self.access.version:
            return 0
        self.registry_version = registry.version
        self.access_version = self.access.version
        self.activate_all()
        entry = self.first
        while entry != NO_ENTRY:
            self.resolve_entry(&self.partitions[entry], registry)
            entry = self.partitions[entry].next
        if self.index.slots != NULL:
            self.index_all()  # a topic that was deleted and created again is another object
        return 0

    cdef int resolve_entry(self, FetchPartition* entry, TopicRegistry registry) except -1:
        cdef Topic topic = <Topic>entry.topic
        cdef Topic fresh
        cdef bytes key
        cdef int32_t slot = entry.slot
        cdef int64_t slot_incarnation = entry.slot_incarnation
        if not topic.alive:
            key = topic.topic_id if self.by_id else topic.name
            fresh = (registry.by_id if self.by_id else registry.by_name).get(key)
            if fresh is None:
                # topic_for() must find the same object for this key as long as the topic is unknown.
                if self.placeholders is None:
                    self.placeholders = {}
                fresh = self.placeholders.setdefault(key, topic)
            if fresh is not topic:
                Py_INCREF(fresh)
                entry.topic = <PyObject*>fresh
                Py_DECREF(topic)
                topic = fresh
                entry.told_high_watermark = -1
                entry.told_log_start_offset = -1
                entry.segment_base_offset = -1
        entry.slot = -1
        entry.error = UNKNOWN_TOPIC_OR_PARTITION
        if not self.may_read(topic):
            entry.error = TOPIC_AUTHORIZATION_FAILED
        elif not topic.alive:
            if self.by_id and topic.name is None:
                entry.error = UNKNOWN_TOPIC_ID
            elif self.by_id and topic.name in registry.by_name:
                entry.error = INCONSISTENT_TOPIC_ID
        elif 0 <= entry.index < topic.partition_count:
            entry.slot = topic.slots[entry.index]
            entry.slot_incarnation = topic.incarnations[entry.index]
            if entry.slot < 0:
                entry.error = NOT_LEADER_OR_FOLLOWER
        if entry.reported_epoch >= 0 and (entry.slot != slot or entry.slot_incarnation != slot_incarnation):
            self.leave_slot(entry, slot)
        return 0

    cdef bint may_read(self, Topic topic) except -1:
        if self.access.everything:
            return True
        if self.replica_id >= 0:  # COMPAT: a broker needs no right for topics, and none for topics is enough
            return self.access.may(MAY_ACT_ON_CLUSTER, CLUSTER)
        return topic.name is None or self.access.may_read_topic(topic.name)

    cdef Topic topic_for(self, const RequestTopic* wanted, TopicRegistry registry):
        """The topic a request names; an unknown one gets one object in this session."""
        cdef Topic topic = registry.find(wanted.key, wanted.key_size, self.by_id)
        cdef bytes key
        if topic is not None:
            return topic
        key = PyBytes_FromStringAndSize(<const char*>wanted.key, wanted.key_size)
        if self.placeholders is None:
            self.placeholders = {}
        topic = self.placeholders.get(key)
        if topic is None:
            topic = Topic(None if self.by_id else key, key if self.by_id else None, None, None)
            self.placeholders[key] = topic
        return topic

    cdef int32_t add(self, Topic topic, const RequestPartition* wanted) except -1:
        """Append an entry, which must be new (if a full request names a partition twice, it gets two entries)."""
        cdef int32_t number = self.free_head
        cdef FetchPartition* entry
        if number != NO_ENTRY:
            self.free_head = self.partitions[number].next
        else:
            if self.used_end == self.capacity:
                if self.capacity >= FETCH_PARTITIONS_MAX:
                    raise FetchDecodeError(f"more than {FETCH_PARTITIONS_MAX} partitions in a fetch session")
                self.capacity = grow(
                    &self.partitions, self.capacity, self.capacity + 1, sizeof(FetchPartition), FIRST_CAPACITY)
            number = self.used_end
            self.used_end += 1
        entry = &self.partitions[number]
        Py_INCREF(topic)
        entry.topic = <PyObject*>topic
        entry.index = wanted.index
        entry.used = True
        entry.told_high_watermark = -1
        entry.told_log_start_offset = -1
        entry.fetch_offset = -1
        entry.slot = -1
        entry.slot_incarnation = -1
        entry.reported_epoch = -1
        entry.standing = -1
        set_wanted(entry, wanted)
        link_last(self, number)
        self.count += 1
        return number

    cdef void remove(self, int32_t number) noexcept:
        cdef FetchPartition* entry = &self.partitions[number]
        unlink(self, entry)
        entry.used = False
        entry.next = self.free_head
        self.free_head = number
        self.count -= 1
        Py_DECREF(<object>entry.topic)

    cdef void move_to_end(self, int32_t number) noexcept:
        cdef FetchPartition* entry = &self.partitions[number]
        if self.last == number:
            return
        unlink(self, entry)
        link_last(self, number)

    cdef int stand(self, int32_t number) except -1:
        cdef FetchPartition* entry = &self.partitions[number]
        entry.standing = self.standing.add(<void*>self, number, entry.slot)
        unlink(self, entry)
        return 0

    cdef void activate(self, int32_t number) noexcept:
        cdef FetchPartition* entry = &self.partitions[number]
        if entry.standing >= 0:
            self.standing.remove(entry.standing)
            entry.standing = -1
            link_last(self, number)

    cdef void activate_all(self) noexcept:
        cdef int32_t number
        if self.standing is not None:
            for number in range(self.used_end):
                if self.partitions[number].used:
                    self.activate(number)

    cdef void clear(self) noexcept:
        """Empty it for reuse by another request."""
        cdef int32_t number
        for number in range(self.used_end):
            if self.partitions[number].used:
                self.partitions[number].used = False
                Py_DECREF(<object>self.partitions[number].topic)
        if self.capacity > KEEP_CAPACITY:
            free(self.partitions)
            self.partitions = NULL
            self.capacity = 0
        self.drop_index()
        self.placeholders = None
        self.access = None
        self.count = 0
        self.used_end = 0
        self.session_id = 0
        self.epoch = 0
        self.replica_id = -1
        self.cell = -1
        self.reports = None
        self.first = NO_ENTRY
        self.last = NO_ENTRY
        self.free_head = NO_ENTRY

    cdef int index_all(self) except -1:
        """Build the index of (topic, partition)."""
        cdef int32_t entry = self.first
        cdef int32_t following, twin
        self.drop_index()
        reserve_row(&self.index)
        while entry != NO_ENTRY:
            following = self.partitions[entry].next
            twin = self.lookup(self.partitions[entry].topic, self.partitions[entry].index)
            if twin != NO_ENTRY:  # named twice in the full request: the later one counts
                self.forget(twin)
            self.enter(entry)
            entry = following
        return 0

    cdef void drop_index(self) noexcept:
        free(self.index.slots)
        self.index = IndexTable(NULL, 0, 0)

    cdef int32_t lookup(self, PyObject* topic, int32_t index) noexcept:
        cdef uint32_t wanted = hash_of(topic, index)
        cdef uint32_t at = wanted
        cdef int32_t entry
        while True:
            entry = <int32_t>next_row(&self.index, wanted, &at) - 1
            if entry == NO_ENTRY:
                return NO_ENTRY
            if self.partitions[entry].topic == topic and self.partitions[entry].index == index:
                return entry

    cdef int enter(self, int32_t entry) except -1:
        """Let ``lookup`` find it."""
        reserve_row(&self.index)
        put_row(&self.index, hash_of(self.partitions[entry].topic, self.partitions[entry].index), <uint32_t>entry + 1)
        return 0

    cdef void forget(self, int32_t entry) noexcept:
        """Remove an entry that ``lookup`` finds."""
        drop_row(&self.index, hash_of(self.partitions[entry].topic, self.partitions[entry].index), <uint32_t>entry + 1)
        self.remove(entry)

    # ---- followers: what the owners of the slots are told ----

    cdef int report(self, FetchPartition* entry, const SlotData* slot) except -1:
        cdef int32_t flags = FOLLOWER_PROGRESS
        if self.reports is None:
            return 0
        if entry.reported_epoch == slot.leader_epoch:
            if entry.reported_offset == entry.fetch_offset and entry.reported_log_start == entry.log_start_offset:
                return 0
        elif self.cell >= 0:
            flags |= FOLLOWER_ATTACHED
        entry.reported_epoch = slot.leader_epoch
        entry.reported_incarnation = slot.slot_incarnation
        entry.reported_offset = entry.fetch_offset
        entry.reported_log_start = entry.log_start_offset
        return self.send_report(entry, slot, flags, True)

    cdef int report_again(self, PartitionTable table, int worker, int worker_count) except -1:
        cdef int32_t number
        cdef FetchPartition* entry
        cdef SlotData slot
        for number in range(self.used_end):
            entry = &self.partitions[number]
            if not entry.used or entry.reported_epoch < 0 or entry.slot < 0 or entry.slot % worker_count != worker:
                continue
            if (
                table.read_slot(entry.slot, &slot)
                and slot.state == SLOT_ONLINE
                and slot.role == ROLE_LEADER
                and slot.leader_epoch == entry.reported_epoch
                and slot.slot_incarnation == entry.reported_incarnation
            ):
                # Data that was valid in this epoch still is: the follower has it.
                self.send_report(entry, &slot, FOLLOWER_ATTACHED | FOLLOWER_PROGRESS, False)
            else:
                entry.reported_epoch = -1  # the next fetch that is read reports it
                self.activate(number)
        return 0

    cdef int send_report(self, FetchPartition* entry, const SlotData* slot, int32_t flags, bint has_place) except -1:
        """has_place: the entry's is of this very reading of the slot."""
        cdef FollowerProgress progress
        progress.slot = entry.slot
        progress.slot_incarnation = slot.slot_incarnation
        progress.replica_id = self.replica_id
        progress.leader_epoch = slot.leader_epoch
        progress.fetch_offset = entry.reported_offset
        progress.log_start_offset = entry.reported_log_start
        progress.log_end_seen = slot.log_end.offset
        progress.segment_base_offset = progress.segment_position = -1
        if has_place and entry.segment_base_offset >= 0:
            progress.segment_base_offset = entry.segment_base_offset
            progress.segment_position = entry.position
        progress.request_ms = self.last_used_ms
        progress.segment_version = slot.segment_version
        progress.session_cell = self.cell
        progress.flags = flags
        progress.unused = 0
        return self.reports.add(&progress)

    cdef int report_left(self, FetchPartition* entry) except -1:
        if entry.reported_epoch >= 0:
            self.leave_slot(entry, entry.slot)
        return 0

    cdef int leave_slot(self, FetchPartition* entry, int32_t slot) except -1:
        """The owner of this slot knows that the session has the partition; it has it no more."""
        cdef FollowerProgress progress
        entry.reported_epoch = -1
        if self.reports is None or self.cell < 0 or slot < 0:
            return 0
        progress.slot = slot
        progress.slot_incarnation = entry.reported_incarnation
        progress.replica_id = self.replica_id
        progress.leader_epoch = -1
        progress.fetch_offset = progress.log_start_offset = progress.log_end_seen = -1
        progress.segment_base_offset = progress.segment_position = -1
        progress.request_ms = self.last_used_ms
        progress.segment_version = 0
        progress.session_cell = self.cell
        progress.flags = FOLLOWER_LEFT
        progress.unused = 0
        return self.reports.add(&progress)


cdef inline void set_wanted(FetchPartition* entry, const RequestPartition* wanted) noexcept:
    entry.current_leader_epoch = wanted.current_leader_epoch
    entry.last_fetched_epoch = wanted.last_fetched_epoch
    entry.bytes_max = max(wanted.bytes_max, 0)
    entry.fetch_offset = wanted.fetch_offset
    entry.log_start_offset = wanted.log_start_offset
    entry.segment_base_offset = -1


cdef inline void link_last(FetchSession session, int32_t number) noexcept:
    cdef FetchPartition* entry = &session.partitions[number]
    entry.next = NO_ENTRY
    entry.previous = session.last
    if session.last == NO_ENTRY:
        session.first = number
    else:
        session.partitions[session.last].next = number
    session.last = number


cdef inline void unlink(FetchSession session, FetchPartition* entry) noexcept:
    if entry.previous == NO_ENTRY:
        session.first = entry.next
    else:
        session.partitions[entry.previous].next = entry.next
    if entry.next == NO_ENTRY:
        session.last = entry.previous
    else:
        session.partitions[entry.next].previous = entry.previous


cdef inline uint32_t hash_of(PyObject* topic, int32_t index) noexcept:
    cdef uint64_t mixed = (<uint64_t>topic >> 4) * <uint64_t>0x9E3779B97F4A7C15
    mixed ^= <uint64_t>(<uint32_t>index) * <uint64_t>0xC2B2AE3D27D4EB4F
    return <uint32_t>(mixed >> 32) ^ <uint32_t>mixed


cdef class SessionCache:
    """The incremental sessions of one network process.

    Those of consumers: at most ``capacity``, replaceable after two idle minutes. Those of followers, which lead a life of
    their own: each has a cell of ``times``, and lasts as long as its connection.
    """

    def __cinit__(
        self, int32_t capacity, int network_index, SessionTimes times not None, FollowerReports reports not None,
        StandingWaits standing not None,
    ):
        self.capacity = capacity
        self.network_index = network_index & ((1 << NETWORK_INDEX_BITS) - 1)
        self.sessions = {}
        self.followers = {}
        self.times = times
        self.reports = reports
        self.standing = standing

    def __len__(self):
        return len(self.sessions)

    cdef FetchSession find(self, int32_t session_id, int32_t replica_id):
        cdef FetchSession session = (self.followers if replica_id >= 0 else self.sessions).get(session_id)
        return session if session is not None and session.replica_id == replica_id else None

    cdef int touch(self, FetchSession session, int64_t now_ms) except -1:
        """Called for each request of the session: advance the epoch and make it the most recently used."""
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used_ms = now_ms
        if session.cell >= 0:
            self.times.note(session.cell, now_ms)
        else:
            del self.sessions[session.session_id]
            self.sessions[session.session_id] = session
        return 0

    cdef int remove(self, FetchSession session) except -1:
        """End a session."""
        cdef int32_t entry
        if session.cell < 0:
            self.sessions.pop(session.session_id, None)
            return 0
        if session.reports is None:
            return 0  # it has ended
        session.activate_all()
        session.standing = None
        entry = session.first
        while entry != NO_ENTRY:
            session.report_left(&session.partitions[entry])
            entry = session.partitions[entry].next
        session.reports = None
        del self.followers[session.session_id]
        self.times.give_back(session.cell)
        return 0

    cdef bint admit(self, FetchSession session, int64_t now_ms) except *:
        """Give a consumer's session an id and its first epoch, if there is room or the oldest one has been idle."""
        cdef FetchSession oldest
        if self.capacity <= 0:
            return False
        if len(self.sessions) >= self.capacity:
            oldest = next(iter(self.sessions.values()))
            if now_ms - oldest.last_used_ms <= IDLE_EVICTION_MS:
                return False
            del self.sessions[oldest.session_id]
            self.evictions += 1
        self.begin(session, now_ms)
        self.sessions[session.session_id] = session
        return True

    cdef bint admit_follower(self, FetchSession session, int64_t now_ms) except *:
        """The same for a follower, whenever there is a cell."""
        cdef int32_t cell = self.times.take(now_ms)
        if cell < 0:
            return False
        self.begin(session, now_ms)
        session.cell = cell
        session.standing = self.standing
        self.followers[session.session_id] = session
        return True

    cdef int begin(self, FetchSession session, int64_t now_ms) except -1:
        cdef int32_t session_id = 0
        while session_id == 0 or session_id in self.sessions or session_id in self.followers:
            session_id = int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF
            session_id = (session_id >> NETWORK_INDEX_BITS << NETWORK_INDEX_BITS) | self.network_index
        session.index_all()
        session.session_id = session_id
        session.epoch = 1
        session.last_used_ms = now_ms
        return 0
