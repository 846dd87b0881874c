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
from kbroker._ext.sockets.verdicts cimport MAY_READ_TOPIC, Verdicts

cdef enum:
    NO_ENTRY = -1
    FIRST_CAPACITY = 8
    KEEP_CAPACITY = 4096         # a session larger than this gives its memory back when it is emptied
    IDLE_EVICTION_MS = 120000    # a session used within this time is not evicted for a new one
    NETWORK_INDEX_BITS = 6       # of a session id, so that no other process of the broker knows it
    EPOCH_MAX = 0x7FFFFFFF


cdef class FetchSession:
    """The partitions of a fetch, in order of service. Owns a reference to the topic of each used entry."""

    def __cinit__(self):
        self.first = NO_ENTRY
        self.last = NO_ENTRY
        self.free_head = NO_ENTRY

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
                    self.forget(entry)
        return 0

    cdef int resolve(self, TopicRegistry registry) except -1:
        """Look up slots again if topics, or what its client may read, have changed since the last time."""
        cdef int32_t entry = self.first
        if self.registry_version == registry.version and self.access_version == self.access.version:
            return 0
        self.registry_version = registry.version
        self.access_version = self.access.version
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
        if not self.access.everything and topic.name is not None and not self.access.may(MAY_READ_TOPIC, topic.name):
            entry.error = TOPIC_AUTHORIZATION_FAILED
        elif not topic.alive:
            if self.by_id:
                entry.error = INCONSISTENT_TOPIC_ID if topic.name in registry.by_name else UNKNOWN_TOPIC_ID
        elif 0 <= entry.index < topic.partition_count:
            entry.slot = topic.slots[entry.index]
            entry.slot_incarnation = topic.incarnations[entry.index]
            if entry.slot < 0:
                entry.error = NOT_LEADER_OR_FOLLOWER
        return 0

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
        set_wanted(entry, wanted)
        entry.next = NO_ENTRY
        entry.previous = self.last
        if self.last == NO_ENTRY:
            self.first = number
        else:
            self.partitions[self.last].next = number
        self.last = number
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
        entry.next = NO_ENTRY
        entry.previous = self.last
        if self.last == NO_ENTRY:
            self.first = number
        else:
            self.partitions[self.last].next = number
        self.last = number

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
        """Have ``lookup`` find it."""
        reserve_row(&self.index)
        put_row(&self.index, hash_of(self.partitions[entry].topic, self.partitions[entry].index), <uint32_t>entry + 1)
        return 0

    cdef void forget(self, int32_t entry) noexcept:
        """Remove an entry that ``lookup`` finds."""
        drop_row(&self.index, hash_of(self.partitions[entry].topic, self.partitions[entry].index), <uint32_t>entry + 1)
        self.remove(entry)


cdef inline void set_wanted(FetchPartition* entry, const RequestPartition* wanted) noexcept:
    entry.current_leader_epoch = wanted.current_leader_epoch
    entry.last_fetched_epoch = wanted.last_fetched_epoch
    entry.bytes_max = max(wanted.bytes_max, 0)
    entry.fetch_offset = wanted.fetch_offset
    entry.segment_base_offset = -1


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
    """The incremental sessions of one network process: at most ``capacity``, replaceable after two idle minutes."""

    def __cinit__(self, int32_t capacity, int network_index):
        self.capacity = capacity
        self.network_index = network_index & ((1 << NETWORK_INDEX_BITS) - 1)
        self.sessions = {}

    def __len__(self):
        return len(self.sessions)

    cdef FetchSession find(self, int32_t session_id):
        return self.sessions.get(session_id)

    cdef int touch(self, FetchSession session, int64_t now_ms) except -1:
        """Called for each request of the session: advance the epoch and make it the most recently used."""
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used_ms = now_ms
        del self.sessions[session.session_id]
        self.sessions[session.session_id] = session
        return 0

    cdef int remove(self, int32_t session_id) except -1:
        self.sessions.pop(session_id, None)
        return 0

    cdef bint admit(self, FetchSession session, int64_t now_ms) except *:
        """Give the session an id and its first epoch, if there is room or the oldest one has been idle."""
        cdef FetchSession oldest
        cdef int32_t session_id = 0
        if self.capacity <= 0:
            return False
        if len(self.sessions) >= self.capacity:
            oldest = next(iter(self.sessions.values()))
            if now_ms - oldest.last_used_ms <= IDLE_EVICTION_MS:
                return False
            del self.sessions[oldest.session_id]
            self.evictions += 1
        while session_id == 0 or session_id in self.sessions:
            session_id = int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF
            session_id = (session_id >> NETWORK_INDEX_BITS << NETWORK_INDEX_BITS) | self.network_index
        session.index_all()
        session.session_id = session_id
        session.epoch = 1
        session.last_used_ms = now_ms
        self.sessions[session_id] = session
        return True
