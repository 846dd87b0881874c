"""Batches that an io worker cannot append yet: their bytes stay in the arena and their order is kept.

``txn_verification`` holds those of a transaction that has to be verified. ``EarlyBatches`` are for logs that a process
has not opened yet after its start. Without them a producer would get an error because of the restart, and its later
batches might be appended before the retry.
"""
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kbroker._ext.base.wire cimport load_i64
from kbroker._ext.record.record_batch cimport (
    BATCH_HEADER_BYTES,
    BATCH_MAGIC_AT,
    BATCH_PRODUCER_ID_AT,
)

cdef enum:
    # The minimum and maximum wait of a batch, whatever the timeout of its request.
    HELD_MIN_MS = 1000
    HELD_MAX_MS = 60000
    # BOUND: the fraction of an arena (one over this) that may wait for logs to be opened; further batches are rejected.
    # Each batch counts as at least a page.
    EARLY_SHARE = 4
    PAGE_BYTES = 4096


cdef HeldBatch held_batch(int network_index, const ProduceDescriptor* d, const uint8_t* batch):
    cdef HeldBatch held = HeldBatch.__new__(HeldBatch)
    held.descriptor = d[0]
    held.network_index = network_index
    held.producer_id = -1
    if d.size >= BATCH_HEADER_BYTES and batch[BATCH_MAGIC_AT] >= 2:
        held.producer_id = load_i64(batch + BATCH_PRODUCER_ID_AT)
    held.deadline_ms = monotonic_ms() + min(max(d.timeout_ms, <int32_t>HELD_MIN_MS), <int32_t>HELD_MAX_MS)
    return held


cdef inline int64_t arena_bytes(const ProduceDescriptor* d) noexcept nogil:
    return max(<int64_t>d.size, <int64_t>PAGE_BYTES)


cdef int64_t monotonic_ms() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef class EarlyBatches:
    """Batches of one io worker that wait for their logs. arenas: of the network processes, by index."""

    def __cinit__(self, list arenas):
        self.by_slot = {}
        self._left = [len(arena) // EARLY_SHARE for arena in arenas]

    cdef bint keep(self, int network_index, const ProduceDescriptor* d, const uint8_t* batch) except *:
        """Queue a batch after the others of its slot; False if there are too many."""
        if self._left[network_index] < arena_bytes(d):
            return False
        self._left[network_index] -= arena_bytes(d)
        self.count += 1
        self.by_slot.setdefault(d.slot, []).append(held_batch(network_index, d, batch))
        return True

    cdef list take(self, int32_t slot):
        """Take all batches of a slot out of the queue."""
        cdef list found = self.by_slot.pop(slot, [])
        for held in found:
            self.forget(<HeldBatch>held)
        return found

    cdef list expired(self, int64_t now):
        """Take out the batches that have waited too long, and later ones of their producers."""
        cdef HeldBatch held
        cdef list found = [], left
        cdef set late
        for slot, batches in list(self.by_slot.items()):
            late = set()
            left = []
            for held in batches:
                if held.deadline_ms > now and held.producer_id not in late:
                    left.append(held)
                    continue
                if held.producer_id >= 0:
                    late.add(held.producer_id)
                self.forget(held)
                found.append(held)
            self.put_back(slot, left)
        return found

    cdef int drop(self, int network_index) except -1:
        """Forget the batches of a network process that has died."""
        cdef HeldBatch held
        cdef list left
        for slot, batches in list(self.by_slot.items()):
            left = []
            for held in batches:
                if held.network_index == network_index:
                    self.forget(held)
                else:
                    left.append(held)
            self.put_back(slot, left)
        return 0

    cdef int forget(self, HeldBatch held) except -1:
        self.count -= 1
        self._left[held.network_index] += arena_bytes(&held.descriptor)
        return 0

    cdef int put_back(self, int32_t slot, list left) except -1:
        if left:
            self.by_slot[slot] = left
        else:
            del self.by_slot[slot]
        return 0
