"""Reports positions of followers to the owners of the slots: one message per io worker and turn.

Positions are of no use once there is a newer one. So when a lane is full, what could not be sent is merged by partition
and session: nothing is dropped, and what waits does not grow beyond that.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kbroker._ext.base.growing cimport grow
from kbroker._ext.base.index_table cimport IndexTable, next_row, put_row, reserve_row
from kbroker._ext.shared.descriptors cimport (
    FOLLOWER_ATTACHED,
    FOLLOWER_LEFT,
    FOLLOWER_PROGRESS,
    MSG_FOLLOWER,
)
from kbroker._ext.shared.lane cimport LANE_ITEMS_MAX

cdef enum:
    FIRST_CAPACITY = 64


cdef inline uint32_t hash_of(const FollowerProgress* progress) noexcept:
    cdef uint64_t mixed = <uint64_t><uint32_t>progress.slot * <uint64_t>0x9E3779B97F4A7C15
    mixed ^= <uint64_t><uint32_t>progress.session_cell * <uint64_t>0xC2B2AE3D27D4EB4F
    return <uint32_t>(mixed >> 32) ^ <uint32_t>mixed


cdef inline bint is_of_same(const FollowerProgress* a, const FollowerProgress* b) noexcept:
    return (
        a.slot == b.slot
        and a.session_cell == b.session_cell
        and a.replica_id == b.replica_id
        and a.slot_incarnation == b.slot_incarnation
    )


cdef inline void merge(FollowerProgress* old, const FollowerProgress* new) noexcept:
    cdef int32_t flags = old.flags
    if new.flags & FOLLOWER_PROGRESS:
        old[0] = new[0]
        old.flags |= flags & FOLLOWER_ATTACHED
    else:
        # The last position counts, although the session has the partition no more.
        old.flags |= FOLLOWER_LEFT
        old.request_ms = new.request_ms


cdef bint merged(ReportBundle* bundle, const FollowerProgress* progress) noexcept:
    """Whether there is an entry of the same partition and session that is not sent: then both are one now."""
    cdef uint32_t hash = hash_of(progress)
    cdef uint32_t at = hash
    cdef uint32_t row
    while True:
        row = next_row(&bundle.index, hash, &at)
        if row == 0:
            return False
        if row > bundle.first and is_of_same(&bundle.items[row - 1], progress):
            merge(&bundle.items[row - 1], progress)
            return True


cdef class FollowerReports:
    """Created by FetchEngine. The owner of a slot is io worker ``slot % worker_count``."""

    def __cinit__(self, int worker_count):
        self.worker_count = worker_count
        self.is_sent = True
        self.bundles = <ReportBundle*>calloc(<size_t>worker_count, sizeof(ReportBundle))
        if self.bundles == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        if self.bundles != NULL:
            for i in range(self.worker_count):
                free(self.bundles[i].items)
                free(self.bundles[i].index.slots)
        free(self.bundles)

    cdef int add(self, const FollowerProgress* progress) except -1:
        cdef ReportBundle* bundle = &self.bundles[progress.slot % self.worker_count]
        self.is_sent = False
        if bundle.index.slots != NULL:
            if merged(bundle, progress):
                return 0
            reserve_row(&bundle.index)
            put_row(&bundle.index, hash_of(progress), bundle.count + 1)
        bundle.capacity = <uint32_t>grow(
            &bundle.items, bundle.capacity, <int64_t>bundle.count + 1, sizeof(FollowerProgress), FIRST_CAPACITY)
        bundle.items[bundle.count] = progress[0]
        bundle.count += 1
        return 0

    cdef bint send(self, list lanes) except -1:
        cdef int i
        cdef int count = min(self.worker_count, <int>len(lanes))
        cdef bint complete = True
        if self.is_sent:
            return True
        for i in range(count):
            if self.bundles[i].count and not self.send_bundle(&self.bundles[i], <Lane>lanes[i]):
                complete = False
        self.is_sent = complete and count == self.worker_count
        return complete

    cdef bint send_bundle(self, ReportBundle* bundle, Lane lane) except -1:
        cdef uint32_t part
        while bundle.first < bundle.count:
            part = min(bundle.count - bundle.first, <uint32_t>LANE_ITEMS_MAX)
            if not lane.send(
                MSG_FOLLOWER, part, bundle.items + bundle.first, part * sizeof(FollowerProgress), NULL, 0
            ):
                self.hold(bundle)
                return False
            bundle.first += part
        bundle.first = bundle.count = 0
        if bundle.index.slots != NULL:
            free(bundle.index.slots)
            bundle.index = IndexTable(NULL, 0, 0)
        return True

    cdef int hold(self, ReportBundle* bundle) except -1:
        """Keep entries that did not fit in the lane: let ``add`` find them, and close the gap before them once it is
        half of all.
        """
        cdef uint32_t place = bundle.first
        cdef uint32_t end = bundle.count
        cdef uint32_t kept = 0
        if bundle.index.slots != NULL and 2 * bundle.first < bundle.count:
            return 0
        free(bundle.index.slots)
        bundle.index = IndexTable(NULL, 0, 0)
        bundle.first = bundle.count = 0
        while place < end:
            if not merged(bundle, &bundle.items[place]):
                reserve_row(&bundle.index)
                put_row(&bundle.index, hash_of(&bundle.items[place]), kept + 1)
                bundle.items[kept] = bundle.items[place]
                kept += 1
                bundle.count = kept
            place += 1
        return 0

    cdef void drop_bundle(self, int worker) noexcept:
        cdef ReportBundle* bundle = &self.bundles[worker]
        bundle.first = bundle.count = 0
        free(bundle.index.slots)
        bundle.index = IndexTable(NULL, 0, 0)

    def waiting(self, int worker) -> bytes:
        """The structs that are not sent yet, for tests."""
        cdef ReportBundle* bundle = &self.bundles[worker]
        return (<const char*>bundle.items)[
            bundle.first * sizeof(FollowerProgress) : bundle.count * sizeof(FollowerProgress)
        ] if bundle.count else b""
