"""Refused batches of idempotent producers, whose later batches must not overtake them.

A producer has several requests under way. If the first one is refused for a reason that passes (this broker does not
lead yet, too few replicas are in sync, the disk is full), the next one may arrive when the reason is gone. By its
sequence number it does not follow then: the producer would get OUT_OF_ORDER_SEQUENCE_NUMBER, upon which librdkafka begins
a new epoch and repeats batches that may be in the log; and a log that does not know the producer would even append it,
before the one that is missing. So the later batches get the same error, until the refused batch or an earlier one of its
producer comes again, or a while has passed: what was under way with it has arrived by then.

Runs in io workers, where the log has the last word (``produce_intake``), and in network processes, for partitions that
no io worker has (``produce_path``). Costs nothing while nothing was refused.
"""
from libc.stdint cimport int32_t

from kbroker._ext.base.wire cimport load_i16, load_i32, load_i64
from kbroker._ext.log.held_batches cimport monotonic_ms
from kbroker._ext.record.record_batch cimport (
    BATCH_BASE_SEQUENCE_AT,
    BATCH_HEADER_BYTES,
    BATCH_MAGIC_AT,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
)

cdef enum:
    # BOUND: producers and partitions; the oldest ones are forgotten first.
    REFUSED_MAX = 10000
    SEQUENCE_MASK = 0x7FFFFFFF   # of the difference of two sequence numbers, which wrap
    SEQUENCE_HALF = 0x40000000


cdef bint has_sequence(const uint8_t* batch, Py_ssize_t size) noexcept nogil:
    return (
        size >= BATCH_HEADER_BYTES
        and batch[BATCH_MAGIC_AT] == 2
        and load_i64(batch + BATCH_PRODUCER_ID_AT) >= 0
        and load_i32(batch + BATCH_BASE_SEQUENCE_AT) >= 0
    )


cdef inline bint is_later(int32_t sequence, int32_t than) noexcept nogil:
    cdef int64_t ahead = (<int64_t>sequence - than) & SEQUENCE_MASK
    return 0 < ahead < SEQUENCE_HALF


cdef class RefusedBatches:
    """keep_ms: how long later batches are refused, too."""

    def __cinit__(self, int64_t keep_ms):
        self._producers = {}
        self._keep_ms = keep_ms

    cdef int note(self, object place, const uint8_t* batch, Py_ssize_t size, int16_t error_code) except -1:
        cdef int16_t epoch
        cdef int32_t sequence
        if not has_sequence(batch, size):
            return 0
        key = (place, load_i64(batch + BATCH_PRODUCER_ID_AT))
        epoch = load_i16(batch + BATCH_PRODUCER_EPOCH_AT)
        sequence = load_i32(batch + BATCH_BASE_SEQUENCE_AT)
        known = self._producers.get(key)
        if known is not None and known[0] == epoch and is_later(sequence, known[1]) and known[3] > monotonic_ms():
            return 0  # it is one of those that were sent behind
        self._producers.pop(key, None)
        if len(self._producers) >= REFUSED_MAX:
            del self._producers[next(iter(self._producers))]
        self._producers[key] = (epoch, sequence, error_code, monotonic_ms() + self._keep_ms)
        self.count = <int>len(self._producers)
        return 0

    cdef int16_t error_of(self, object place, const uint8_t* batch, Py_ssize_t size) except -1:
        if self.count == 0 or not has_sequence(batch, size):
            return 0
        known = self._producers.get((place, load_i64(batch + BATCH_PRODUCER_ID_AT)))
        if known is None:
            return 0
        epoch, sequence, error_code, until_ms = known
        if until_ms <= monotonic_ms():
            self.forget(place, batch, size)
            return 0
        if load_i16(batch + BATCH_PRODUCER_EPOCH_AT) != epoch or not is_later(
            load_i32(batch + BATCH_BASE_SEQUENCE_AT), sequence
        ):
            return 0
        return error_code

    cdef int forget(self, object place, const uint8_t* batch, Py_ssize_t size) except -1:
        if self.count == 0 or not has_sequence(batch, size):
            return 0
        self._producers.pop((place, load_i64(batch + BATCH_PRODUCER_ID_AT)), None)
        self.count = <int>len(self._producers)
        return 0

    # ---- called from Python, by tests only -----------------------------------------------------------------------

    def refused(self, place, bytes batch not None, int error_code) -> None:
        """``note`` of a batch."""
        self.note(place, <const uint8_t*><const char*>batch, len(batch), <int16_t>error_code)

    def error_for(self, place, bytes batch not None) -> int:
        """``error_of`` a batch."""
        return self.error_of(place, <const uint8_t*><const char*>batch, len(batch))
