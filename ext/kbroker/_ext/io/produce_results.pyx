"""The messages of an io worker to network processes at the end of a turn: results with their error texts, and wake-ups.

``produce_intake`` adds the results, ``io_loop`` sends them. Per result in the steady state: no allocation.
"""
import struct

from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from kbroker._ext.base.error_codes cimport NOT_ENOUGH_REPLICAS_AFTER_APPEND
from kbroker._ext.base.growing cimport grow
from kbroker._ext.log.committed_queue cimport CommittedQueue, Waiter
from kbroker._ext.shared.descriptors cimport MSG_PRODUCE_RESULT, MSG_WAKE, RESULT_APPENDED
from kbroker._ext.shared.lane cimport LANE_ITEMS_MAX, LANE_TEXTS_MAX

cdef enum:
    NO_SLOT = -1                 # for a result that is committed: a failed sync no longer changes it
    ERROR_TEXT_MAX = 1000
    WAKES_MAX = 8192             # BOUND: slots per message


cdef class TurnResults:
    """The results, wake-ups and touched logs of a turn. lanes: to the network processes, by index."""

    def __cinit__(self, list lanes not None):
        cdef int network_count = <int>len(lanes)
        self.lanes = lanes
        self.network_count = network_count
        self.touched = []
        self.bundles = <ResultBundle*>calloc(max(1, network_count), sizeof(ResultBundle))
        self.wakes = <WakeBundle*>calloc(max(1, network_count), sizeof(WakeBundle))
        if self.bundles == NULL or self.wakes == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int i
        if self.bundles != NULL:
            for i in range(self.network_count):
                free(self.bundles[i].items)
                free(self.bundles[i].slots)
                free(self.bundles[i].texts)
        if self.wakes != NULL:
            for i in range(self.network_count):
                free(self.wakes[i].slots)
        free(self.wakes)
        free(self.bundles)

    cdef ProduceResult* add(self, int network_index, int32_t slot) except NULL:
        return new_result(&self.bundles[network_index], slot)

    cdef ProduceResult* add_waiting(self, int network_index, LogTail log, int64_t end) except NULL:
        cdef WaitingResult* waiting = <WaitingResult*>log.committed.add(end, self, 0, sizeof(WaitingResult))
        waiting.network = network_index
        waiting.peer = (<Lane>self.lanes[network_index]).peer_incarnation
        return &waiting.result

    cdef int settle(
        self, CommittedQueue queue, const Waiter* waiter, const uint8_t* payload, object error, list ready
    ) except -1:
        cdef WaitingResult waiting
        cdef ProduceResult* out
        memcpy(&waiting, payload, sizeof(WaitingResult))
        if (<Lane>self.lanes[waiting.network]).peer_incarnation != waiting.peer:
            return 0  # the network process that sent it has died
        out = new_result(&self.bundles[waiting.network], NO_SLOT)
        out[0] = waiting.result
        if error is not None:
            out.error_code = <int16_t>int(error.code)
            out.base_offset = -1
        elif queue.is_maximal_under_min_isr:
            out.error_code = NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return 0

    cdef int note_wait(self, const uint8_t* payload) except -1:
        """Tell the network process that the bytes of the batch are not needed any more."""
        cdef WaitingResult waiting
        cdef ProduceResult* out
        memcpy(&waiting, payload, sizeof(WaitingResult))
        if (<Lane>self.lanes[waiting.network]).peer_incarnation == waiting.peer:
            out = new_result(&self.bundles[waiting.network], NO_SLOT)
            out[0] = waiting.result
            out.error_code = RESULT_APPENDED
        return 0

    cdef int wake(self, int32_t slot, uint64_t mask) except -1:
        cdef int i = 0
        while mask:
            if mask & 1 and i < self.network_count:
                add_wake(&self.wakes[i], slot)
            mask >>= 1
            i += 1
        return 0

    cdef bint send(self, Lane lane) except -1:
        return self.send_results(lane) and self.send_wakes(lane)

    cdef bint send_results(self, Lane lane) except -1:
        cdef:
            ResultBundle* bundle = &self.bundles[lane.peer_index]
            uint32_t done = 0, texts_done = 0, part, texts
        while done < bundle.count:
            part = 0
            texts = 0
            while done + part < bundle.count and part < LANE_ITEMS_MAX and texts < LANE_TEXTS_MAX:
                texts += bundle.items[done + part].error_text_size
                texts += <uint32_t>sizeof(int32_t) * bundle.items[done + part].more_bad_records
                part += 1
            if not lane.send(
                MSG_PRODUCE_RESULT, part, bundle.items + done, part * sizeof(ProduceResult),
                bundle.texts + texts_done, texts,
            ):
                break
            done += part
            texts_done += texts
        bundle.count -= done
        bundle.texts_size -= texts_done
        if done and bundle.count:
            memmove(bundle.items, bundle.items + done, bundle.count * sizeof(ProduceResult))
            memmove(bundle.slots, bundle.slots + done, bundle.count * sizeof(int32_t))
            memmove(bundle.texts, bundle.texts + texts_done, bundle.texts_size)
        return bundle.count == 0

    cdef bint send_wakes(self, Lane lane) except -1:
        cdef WakeBundle* wakes = &self.wakes[lane.peer_index]
        cdef uint32_t part
        while wakes.count:
            part = min(wakes.count, <uint32_t>WAKES_MAX)
            if not lane.send(MSG_WAKE, part, wakes.slots + wakes.count - part, part * sizeof(int32_t), NULL, 0):
                return False
            wakes.count -= part
        return True

    cdef void forget(self, int network_index) noexcept:
        self.bundles[network_index].count = 0
        self.bundles[network_index].texts_size = 0

    cdef void fail(self, int32_t slot, int16_t error_code) noexcept:
        cdef int i
        cdef uint32_t j
        cdef ResultBundle* bundle
        for i in range(self.network_count):
            bundle = &self.bundles[i]
            for j in range(bundle.count):
                if bundle.slots[j] == slot and bundle.items[j].error_code == 0:
                    bundle.items[j].error_code = error_code
                    bundle.items[j].base_offset = -1

    cdef bint is_empty(self) noexcept:
        cdef int i
        for i in range(self.network_count):
            if self.bundles[i].count or self.wakes[i].count:
                return False
        return True


cdef ProduceResult* new_result(ResultBundle* bundle, int32_t slot) except NULL:
    if bundle.count == bundle.capacity:
        grow(&bundle.items, bundle.capacity, bundle.count + 1, sizeof(ProduceResult), 64)
        bundle.capacity = grow(&bundle.slots, bundle.capacity, bundle.count + 1, sizeof(int32_t), 64)
    bundle.slots[bundle.count] = slot
    bundle.count += 1
    return &bundle.items[bundle.count - 1]


cdef int add_text(ResultBundle* bundle, ProduceResult* result, object text) except -1:
    """Add the error text of a result, as UTF-8; texts follow the structs."""
    cdef bytes data = text.encode()[:ERROR_TEXT_MAX].decode("utf-8", "ignore").encode()
    result.error_text_size = <uint16_t>len(data)
    return add_bytes(bundle, data)


cdef int add_indexes(ResultBundle* bundle, ProduceResult* result, list indexes) except -1:
    """Add the indexes of more bad records, after the result's text."""
    result.more_bad_records = <uint32_t>len(indexes)
    return add_bytes(bundle, struct.pack(f"={len(indexes)}i", *indexes))


cdef int add_bytes(ResultBundle* bundle, bytes data) except -1:
    cdef uint32_t size = <uint32_t>len(data)
    bundle.texts_capacity = grow(&bundle.texts, bundle.texts_capacity, bundle.texts_size + size, 1, 2 * ERROR_TEXT_MAX)
    memcpy(bundle.texts + bundle.texts_size, <const char*>data, size)
    bundle.texts_size += size
    return 0


cdef int add_wake(WakeBundle* wakes, int32_t slot) except -1:
    wakes.capacity = grow(&wakes.slots, wakes.capacity, wakes.count + 1, sizeof(int32_t), 16)
    wakes.slots[wakes.count] = slot
    wakes.count += 1
    return 0
