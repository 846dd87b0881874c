"""Committed offsets in memory; see the .pxd for the layout.

Runs in io workers, one store for each partition of ``__consumer_offsets`` that is led there. ``perf``
has bytes and time per offset (1,000,000 offsets of 10,000 groups).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kbroker._ext.base.buffers cimport region_bytes
from kbroker._ext.base.index_table cimport drop_row, next_row, put_row, reserve_row, widen
from kbroker._ext.base.name_table cimport (
    Name,
    find_name,
    free_names,
    hash_seed,
    intern_name,
    release_name,
)
from kbroker._ext.shared.group_offsets cimport GroupOffset

cdef extern from "keyed_hash.h" nogil:
    uint64_t keyed_mix(uint64_t a, uint64_t b) noexcept

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef uint64_t SEED = hash_seed()
cdef bytes NO_ID = bytes(16)


cdef Text text_of(str value) except *:
    cdef Text text
    cdef Py_ssize_t size = 0
    text.data = <const uint8_t*>PyUnicode_AsUTF8AndSize(value, &size)
    if size > INT32_MAX:
        raise OverflowError(f"a name of {size} bytes is too long")
    text.size = <int32_t>size
    return text


cdef inline object str_of(const uint8_t* data, int32_t size):
    return PyUnicode_DecodeUTF8(<const char*>data, size, NULL)


cdef list names_of(const Names* names):
    cdef uint32_t index
    return [
        str_of(names.rows[index].text, names.rows[index].size)
        if index and names.rows[index].text != NULL else ""
        for index in range(names.end)
    ]


# ---- the store -----------------------------------------------------------------------------------

cdef Extra* make_extra(const Commit* commit) except? NULL:
    # NULL (without an exception) if all fields have their defaults.
    cdef Extra* extra
    if commit.metadata.size == 0 and commit.expire_timestamp == -1 and commit.topic_id == NULL:
        return NULL
    extra = <Extra*>malloc(sizeof(Extra) + <size_t>commit.metadata.size)
    if extra == NULL:
        raise MemoryError
    extra.expire_timestamp = commit.expire_timestamp
    if commit.topic_id == NULL:
        memset(extra.topic_id, 0, 16)
    else:
        memcpy(extra.topic_id, commit.topic_id, 16)
    extra.metadata_size = commit.metadata.size
    memcpy(extra.metadata, commit.metadata.data, <size_t>commit.metadata.size)
    return extra


cdef inline uint32_t entry_hash(
    uint32_t group, uint32_t topic, int32_t partition, uint32_t transaction
) noexcept:
    cdef uint64_t names = <uint64_t>group << 32 | topic
    cdef uint64_t rest = <uint64_t>transaction << 32 | <uint32_t>partition
    return <uint32_t>keyed_mix(names ^ SEED, keyed_mix(rest ^ 0x9E3779B97F4A7C15u, SEED | 1) | 1)


cdef inline uint32_t hash_of(const Entry* entry) noexcept:
    return entry_hash(entry.group, entry.topic, entry.partition, entry.transaction)


cdef class OffsetStore:
    """All offsets of one partition of ``__consumer_offsets``."""

    def __cinit__(self):
        self.transaction_of = {}

    def __dealloc__(self):
        cdef uint32_t index
        for index in range(1, self.end):
            free(self.entries[index].extra)  # NULL in free entries
        free(self.entries)
        free(self.index.slots)
        free(self.transactions)
        free_names(&self.groups)
        free_names(&self.topics)

    # -- entries ---------------------------------------------------------------------------------

    cdef uint32_t find_entry(
        self, uint32_t group, uint32_t topic, int32_t partition, uint32_t transaction
    ) noexcept:
        cdef uint32_t wanted = entry_hash(group, topic, partition, transaction)
        cdef uint32_t at = wanted
        cdef uint32_t index
        cdef Entry* entry
        while True:
            index = next_row(&self.index, wanted, &at)
            if index == 0:
                return 0
            entry = &self.entries[index]
            if (
                entry.partition == partition
                and entry.group == group
                and entry.topic == topic
                and entry.transaction == transaction
            ):
                return index

    cdef uint32_t find(self, Text group, Text topic, int32_t partition) noexcept:
        cdef uint32_t group_row = find_name(&self.groups, group)
        cdef uint32_t topic_row
        if group_row == 0:
            return 0
        topic_row = find_name(&self.topics, topic)
        if topic_row == 0:
            return 0
        return self.find_entry(group_row, topic_row, partition, 0)

    cdef void place(self, uint32_t index) noexcept:
        put_row(&self.index, hash_of(&self.entries[index]), index)

    cdef void displace(self, uint32_t index) noexcept:
        drop_row(&self.index, hash_of(&self.entries[index]), index)

    cdef int reserve(self) except -1:
        # Make room for one more entry.
        reserve_row(&self.index)
        if self.free_entry == 0 and self.end >= self.capacity:
            widen(&self.entries, &self.capacity, sizeof(Entry))
            if self.end == 0:
                memset(self.entries, 0, sizeof(Entry))
                self.end = 1
        return 0

    cdef void link(self, uint32_t index) noexcept:
        # Add it to the lists of its group and its transaction.
        cdef Entry* entry = &self.entries[index]
        cdef Name* group = &self.groups.rows[entry.group]
        cdef Transaction* transaction
        cdef uint32_t* first = &group.first_pending if entry.transaction else &group.first
        entry.previous = 0
        entry.next = first[0]
        if entry.next:
            self.entries[entry.next].previous = index
        first[0] = index
        if entry.transaction == 0:
            self.committed_count += 1
            return
        self.pending_count += 1
        transaction = &self.transactions[entry.transaction]
        entry.transaction_previous = 0
        entry.transaction_next = transaction.first
        if transaction.first:
            self.entries[transaction.first].transaction_previous = index
        transaction.first = index
        transaction.count += 1

    cdef void unlink(self, uint32_t index) noexcept:
        cdef Entry* entry = &self.entries[index]
        cdef Name* group = &self.groups.rows[entry.group]
        cdef Transaction* transaction
        if entry.next:
            self.entries[entry.next].previous = entry.previous
        if entry.previous:
            self.entries[entry.previous].next = entry.next
        elif entry.transaction:
            group.first_pending = entry.next
        else:
            group.first = entry.next
        if entry.transaction == 0:
            self.committed_count -= 1
            return
        self.pending_count -= 1
        transaction = &self.transactions[entry.transaction]
        if entry.transaction_next:
            self.entries[entry.transaction_next].transaction_previous = entry.transaction_previous
        if entry.transaction_previous:
            self.entries[entry.transaction_previous].transaction_next = entry.transaction_next
        else:
            transaction.first = entry.transaction_next
        transaction.count -= 1

    cdef uint32_t add(
        self, const Commit* commit, uint32_t group, uint32_t topic, uint32_t transaction
    ) except 0:
        # Add an entry; group and topic are 0 if they are new.
        cdef uint32_t index
        cdef Entry* entry
        self.reserve()
        if group == 0:
            group = intern_name(&self.groups, commit.group)
        self.groups.rows[group].uses += 1
        if topic == 0:
            try:
                topic = intern_name(&self.topics, commit.topic)
            except MemoryError:
                release_name(&self.groups, group)
                raise
        self.topics.rows[topic].uses += 1
        index = self.free_entry
        if index:
            self.free_entry = self.entries[index].next
        else:
            index = self.end
            self.end += 1
        entry = &self.entries[index]
        memset(entry, 0, sizeof(Entry))
        entry.group = group
        entry.topic = topic
        entry.partition = commit.partition
        entry.transaction = transaction
        self.place(index)
        self.link(index)
        return index

    cdef void remove(self, uint32_t index) noexcept:
        # The caller releases the transaction if this was its last entry.
        cdef Entry* entry = &self.entries[index]
        cdef uint32_t group = entry.group
        cdef uint32_t topic = entry.topic
        self.unlink(index)
        self.displace(index)
        free(entry.extra)
        memset(entry, 0, sizeof(Entry))
        entry.next = self.free_entry
        self.free_entry = index
        release_name(&self.groups, group)
        release_name(&self.topics, topic)

    cdef uint32_t transaction_row(self, int64_t producer_id) except 0:
        cdef uint32_t row
        known = self.transaction_of.get(producer_id)
        if known is not None:
            return known
        row = self.free_transaction
        if row:
            self.free_transaction = self.transactions[row].first
        else:
            if self.transaction_end >= self.transaction_capacity:
                widen(&self.transactions, &self.transaction_capacity, sizeof(Transaction))
                if self.transaction_end == 0:
                    self.transaction_end = 1
            row = self.transaction_end
            self.transaction_end += 1
        memset(&self.transactions[row], 0, sizeof(Transaction))
        self.transactions[row].producer_id = producer_id
        self.transaction_of[producer_id] = row
        return row

    cdef int release_transaction(self, uint32_t row) except -1:
        if self.transactions[row].count == 0:
            del self.transaction_of[self.transactions[row].producer_id]
            self.transactions[row].first = self.free_transaction
            self.free_transaction = row
        return 0

    # -- records ---------------------------------------------------------------------------------

    cdef int put(self, const Commit* commit, int64_t log_offset, int64_t producer_id) except -1:
        cdef uint32_t transaction = 0
        cdef uint32_t group = find_name(&self.groups, commit.group)
        cdef uint32_t topic = find_name(&self.topics, commit.topic)
        cdef uint32_t index = 0
        cdef Entry* entry
        cdef Extra* extra = make_extra(commit)
        try:
            if producer_id >= 0:
                transaction = self.transaction_row(producer_id)
            if group and topic:
                index = self.find_entry(group, topic, commit.partition, transaction)
            if index == 0:
                index = self.add(commit, group, topic, transaction)
        except MemoryError:
            free(extra)
            raise
        entry = &self.entries[index]
        free(entry.extra)
        entry.extra = extra
        entry.offset = commit.offset
        entry.leader_epoch = commit.leader_epoch
        entry.commit_timestamp = commit.commit_timestamp
        entry.log_offset = log_offset
        return 0

    cdef int drop(self, Text group, Text topic, int32_t partition) except -1:
        cdef uint32_t group_row = find_name(&self.groups, group)
        cdef uint32_t topic_row = find_name(&self.topics, topic)
        cdef uint32_t index, following, row
        cdef Entry* entry
        if group_row == 0 or topic_row == 0:
            return 0
        # The last removal frees the group's row, so read from it before.
        following = self.groups.rows[group_row].first_pending
        index = self.find_entry(group_row, topic_row, partition, 0)
        if index:
            self.remove(index)
        while following:
            index = following
            entry = &self.entries[index]
            following = entry.next
            if entry.topic == topic_row and entry.partition == partition:
                row = entry.transaction
                self.remove(index)
                self.release_transaction(row)
        return 0

    def end_transaction(self, int64_t producer_id, bint commit) -> int:
        """Apply a marker: the producer's pending offsets become committed or are dropped. Returns their number.

        COMPAT: a pending offset does not replace one that was committed later.
        """
        cdef uint32_t row, index, present
        cdef Entry* entry
        cdef Entry* known
        cdef Extra* extra
        cdef int found = 0
        held = self.transaction_of.get(producer_id)
        if held is None:
            return 0
        row = held
        while self.transactions[row].first:
            index = self.transactions[row].first
            entry = &self.entries[index]
            found += 1
            if commit:
                present = self.find_entry(entry.group, entry.topic, entry.partition, 0)
                if present == 0:
                    self.unlink(index)
                    self.displace(index)
                    entry.transaction = 0
                    entry.transaction_next = entry.transaction_previous = 0
                    self.place(index)
                    self.link(index)
                    continue
                known = &self.entries[present]
                if known.log_offset < entry.log_offset:
                    extra = known.extra
                    known.extra = entry.extra
                    entry.extra = extra
                    known.offset = entry.offset
                    known.leader_epoch = entry.leader_epoch
                    known.commit_timestamp = entry.commit_timestamp
                    known.log_offset = entry.log_offset
            self.remove(index)
        self.release_transaction(row)
        return found

    def put_commit(
        self,
        str group not None,
        str topic not None,
        int32_t partition,
        int64_t offset,
        int32_t leader_epoch,
        str metadata not None,
        int64_t commit_timestamp,
        int64_t expire_timestamp,
        bytes topic_id not None,
        int64_t log_offset,
        int64_t producer_id,
    ) -> None:
        """Apply a commit record. topic_id: 16 bytes, zeros if unknown."""
        cdef Commit commit
        if PyBytes_GET_SIZE(topic_id) != 16:
            raise ValueError(f"{topic_id!r} is not a topic id")
        commit.group = text_of(group)
        commit.topic = text_of(topic)
        commit.metadata = text_of(metadata)
        commit.partition = partition
        commit.offset = offset
        commit.leader_epoch = leader_epoch
        commit.commit_timestamp = commit_timestamp
        commit.expire_timestamp = expire_timestamp
        commit.topic_id = <const uint8_t*>PyBytes_AS_STRING(topic_id)
        if topic_id == NO_ID:
            commit.topic_id = NULL
        self.put(&commit, log_offset, producer_id)

    def delete(self, str group not None, str topic not None, int32_t partition) -> None:
        """Apply a tombstone; it removes the pending offsets of the partition as well."""
        self.drop(text_of(group), text_of(topic), partition)

    # -- queries ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.committed_count

    cdef object committed(self, const Entry* entry):
        if entry.extra == NULL:
            return entry.offset, entry.leader_epoch, "", None
        topic_id = PyBytes_FromStringAndSize(<const char*>entry.extra.topic_id, 16)
        return (
            entry.offset,
            entry.leader_epoch,
            str_of(entry.extra.metadata, entry.extra.metadata_size),
            None if topic_id == NO_ID else topic_id,
        )

    def names(self) -> tuple:
        """Return (groups, topics): the names by number, "" where a number has none."""
        return names_of(&self.groups), names_of(&self.topics)

    def write_down(self, region, Py_ssize_t start) -> int:
        """Write all committed offsets as entries of ``shared.group_offsets``, from ``start`` on; returns how many fit."""
        cdef Py_ssize_t size = 0, capacity
        cdef GroupOffset* out = <GroupOffset*>region_bytes(region, &size)
        cdef Py_ssize_t at = start
        cdef uint32_t index
        cdef const Entry* entry
        capacity = size // <Py_ssize_t>sizeof(GroupOffset)
        for index in range(1, self.end):
            entry = &self.entries[index]
            if entry.group == 0 or entry.transaction != 0:
                continue
            if at >= capacity:
                break
            out[at].group = entry.group
            out[at].topic = entry.topic
            out[at].partition = entry.partition
            out[at].unused = 0
            out[at].offset = entry.offset
            out[at].commit_ms = entry.commit_timestamp
            at += 1
        return at - start

    def get(self, str group not None, str topic not None, int32_t partition):
        """Return (offset, leader epoch, metadata, topic id or None) of the committed offset, or None."""
        cdef uint32_t index = self.find(text_of(group), text_of(topic), partition)
        return self.committed(&self.entries[index]) if index else None

    def timestamps(self, str group not None, str topic not None, int32_t partition):
        """Return (commit timestamp, expire timestamp or -1) of the committed offset, or None."""
        cdef uint32_t index = self.find(text_of(group), text_of(topic), partition)
        cdef Entry* entry
        if index == 0:
            return None
        entry = &self.entries[index]
        return entry.commit_timestamp, -1 if entry.extra == NULL else entry.extra.expire_timestamp

    def has_group(self, str group not None) -> bool:
        """Whether the group has a committed or pending offset."""
        return find_name(&self.groups, text_of(group)) != 0

    def group_ids(self) -> list:
        """Return every group with a committed or pending offset."""
        cdef uint32_t index
        return [
            str_of(self.groups.rows[index].text, self.groups.rows[index].size)
            for index in range(1, self.groups.end)
            if self.groups.rows[index].text != NULL
        ]

    def of_group(self, str group not None) -> list:
        """Return [(topic, partition, as from ``get``)...] of a group, in no particular order."""
        cdef uint32_t index = find_name(&self.groups, text_of(group))
        cdef Entry* entry
        cdef Name* topic
        cdef list found = []
        index = self.groups.rows[index].first if index else 0
        while index:
            entry = &self.entries[index]
            topic = &self.topics.rows[entry.topic]
            found.append((str_of(topic.text, topic.size), entry.partition, self.committed(entry)))
            index = entry.next
        return found

    def pending_of(self, str group not None) -> set:
        """Return {(topic, partition)...} with pending offsets in open transactions."""
        cdef uint32_t index = find_name(&self.groups, text_of(group))
        cdef Entry* entry
        cdef Name* topic
        cdef set found = set()
        index = self.groups.rows[index].first_pending if index else 0
        while index:
            entry = &self.entries[index]
            topic = &self.topics.rows[entry.topic]
            found.add((str_of(topic.text, topic.size), entry.partition))
            index = entry.next
        return found

    def has_pending(self, str group not None) -> bool:
        """Whether an open transaction has pending offsets of the group."""
        cdef uint32_t index = find_name(&self.groups, text_of(group))
        return index != 0 and self.groups.rows[index].first_pending != 0

    def keys_of(self, str group not None, int64_t log_end, int limit) -> list:
        """Return [(topic, partition)...] of a group's committed and pending offsets, at most ``limit``.

        log_end: only of records below this offset. A partition may occur twice.
        """
        cdef uint32_t row = find_name(&self.groups, text_of(group))
        cdef uint32_t index
        cdef Entry* entry
        cdef Name* topic
        cdef list found = []
        if row == 0:
            return found
        for index in (self.groups.rows[row].first, self.groups.rows[row].first_pending):
            while index and len(found) < limit:
                entry = &self.entries[index]
                if entry.log_offset < log_end:
                    topic = &self.topics.rows[entry.topic]
                    found.append((str_of(topic.text, topic.size), entry.partition))
                index = entry.next
        return found

    def committed_of(self, str group not None) -> int:
        """Return the number of committed offsets of a group."""
        cdef uint32_t index = find_name(&self.groups, text_of(group))
        cdef Py_ssize_t found = 0
        index = self.groups.rows[index].first if index else 0
        while index:
            found += 1
            index = self.entries[index].next
        return found

    def expired(
        self, str group not None, int64_t now_ms, int64_t retention_ms, int64_t idle_since_ms
    ) -> list:
        """Return [(topic, partition)...] of a group's expired offsets.

        idle_since_ms: when the retention time began; -1: at the commit. An expire timestamp takes
        precedence.
        """
        cdef uint32_t index = find_name(&self.groups, text_of(group))
        cdef int64_t since, latest = now_ms - retention_ms
        cdef Entry* entry
        cdef Name* topic
        cdef bint is_over
        cdef list found = []
        index = self.groups.rows[index].first if index else 0
        while index:
            entry = &self.entries[index]
            if entry.extra != NULL and entry.extra.expire_timestamp != -1:
                is_over = now_ms >= entry.extra.expire_timestamp
            else:
                since = entry.commit_timestamp if idle_since_ms == -1 else idle_since_ms
                is_over = since <= latest
            if is_over:
                topic = &self.topics.rows[entry.topic]
                found.append((str_of(topic.text, topic.size), entry.partition))
            index = entry.next
        return found

    def of_topic(
        self, str topic not None, int64_t log_end, uint32_t start, int limit
    ) -> tuple:
        """Returns ([(group, partition)...], where to continue or 0) of a topic's committed and pending offsets.

        log_end: only of records below this offset. start: 0, then the value from the last call;
        offsets may change between calls. A partition may occur twice.
        """
        cdef uint32_t row = find_name(&self.topics, text_of(topic))
        cdef uint32_t index
        cdef Entry* entry
        cdef Name* group
        cdef list found = []
        if row == 0:
            return found, 0
        for index in range(start if start else 1, self.end):
            entry = &self.entries[index]
            if entry.topic == row and entry.log_offset < log_end:
                if len(found) >= limit:
                    return found, index
                group = &self.groups.rows[entry.group]
                found.append((str_of(group.text, group.size), entry.partition))
        return found, 0
