"""Producers and transactions of one log: which batches may follow, and what is open (see log_transactions.pxd).

Runs in the io worker that owns the log. A batch without a producer id never gets here; one with it costs a few dict
lookups, and an object if its producer is new. ``log_append`` writes the batch between the check and the note.
"""
from kbroker._ext.base.error_codes cimport (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    TRANSACTION_COORDINATOR_FENCED,
)
from kbroker._ext.log.producer_state cimport (
    SEQUENCE_DUPLICATE,
    SEQUENCE_OK,
    SEQUENCE_OLD_EPOCH,
    SEQUENCE_OUT_OF_ORDER,
)
from kbroker._ext.record.record_batch cimport ATTRIBUTE_TRANSACTIONAL


cdef class LogTransactions:
    """Created by the log's ``LogTail`` and updated by each append."""

    def __cinit__(self, ProducerState producers not None):
        self.producers = producers
        self.verifications = {}
        self.unreplicated = []

    # ---- checks before an append -------------------------------------------------------------------------------

    cdef int check_batch(self, const BatchInfo* info, int64_t verification, ProducerBatch* found) except -1:
        cdef ProducerEntry entry
        cdef Verification asked
        cdef int code
        cdef int outcome = self.producers.check(
            info.producer_id, info.producer_epoch, info.base_sequence, info.last_offset_delta, found)
        if outcome == SEQUENCE_DUPLICATE:
            return DUPLICATE_SEQUENCE_NUMBER
        if outcome == SEQUENCE_OLD_EPOCH:
            return self.reject_epoch(info)
        entry = self.producers.entries.get(info.producer_id)
        code = self.check_open(info, entry, verification)
        if code != 0:
            return code
        if self.verifications:
            asked = self.verifications.get(info.producer_id)
            if asked is not None and (
                (asked.starts_at_zero and info.base_sequence != 0 and (entry is None or entry.batch_count == 0))
                or info.base_sequence > asked.lowest_sequence
            ):
                # An earlier batch of the transaction was rejected and will be retried: it must come first.
                outcome = SEQUENCE_OUT_OF_ORDER
        if outcome == SEQUENCE_OK:
            return 0
        self.error_text = f"sequence {info.base_sequence} of producer {info.producer_id} does not follow its last batch"
        return OUT_OF_ORDER_SEQUENCE_NUMBER

    cdef int check_coordinated(self, const BatchInfo* info) except -1:
        cdef ProducerEntry entry = self.producers.entries.get(info.producer_id)
        if entry is not None and info.producer_epoch < entry.producer_epoch:
            return self.reject_epoch(info)
        return self.check_open(info, entry, NO_QUESTION)

    cdef int check_open(self, const BatchInfo* info, ProducerEntry entry, int64_t verification) except -1:
        """Check that the batch matches the producer's open transaction, or that it has none."""
        cdef bint is_open = entry is not None and entry.current_txn_first_offset >= 0
        cdef Verification asked
        if not info.attributes & ATTRIBUTE_TRANSACTIONAL:
            if not is_open:
                return 0
            self.error_text = f"producer {info.producer_id} has an open transaction, but the batch is not transactional"
            return INVALID_TXN_STATE
        if verification == NO_QUESTION or (is_open and entry.producer_epoch == info.producer_epoch):
            return 0
        asked = self.verifications.get(info.producer_id)
        if verification > 0 and asked is not None and asked.number == verification:
            return 0
        self.error_text = f"the batch is not part of an ongoing transaction of producer {info.producer_id}"
        return INVALID_TXN_STATE

    cdef int check_marker(
        self, ProducerEntry entry, int16_t producer_epoch, int32_t coordinator_epoch, int transaction_version
    ) except -1:
        if entry is None:
            return 0
        if producer_epoch < entry.producer_epoch or (
            transaction_version >= 2
            and producer_epoch == entry.producer_epoch
            and entry.current_txn_first_offset >= 0
        ):
            self.error_text = (
                f"producer {entry.producer_id} has epoch {entry.producer_epoch}, but the marker has {producer_epoch}")
            return INVALID_PRODUCER_EPOCH
        if coordinator_epoch < entry.coordinator_epoch:
            self.error_text = f"a coordinator with the newer epoch {entry.coordinator_epoch} has written markers here"
            return TRANSACTION_COORDINATOR_FENCED
        return 0

    cdef int reject_epoch(self, const BatchInfo* info) except -1:
        self.error_text = f"producer {info.producer_id} has a newer epoch than {info.producer_epoch}"
        return INVALID_PRODUCER_EPOCH

    # ---- verification ------------------------------------------------------------------------------------------

    cdef int64_t begin_verification(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, bint starts_at_zero, int64_t now_ms
    ) except? -2:
        cdef ProducerEntry entry = self.producers.entries.get(producer_id)
        cdef Verification asked
        if entry is not None and (
            epoch < entry.producer_epoch or (epoch == entry.producer_epoch and entry.current_txn_first_offset >= 0)
        ):
            return NO_QUESTION
        asked = self.verifications.get(producer_id)
        if asked is None:
            asked = Verification.__new__(Verification)
            self.last_verification += 1
            asked.number = self.last_verification
            asked.started_ms = now_ms
            asked.producer_epoch = epoch
            asked.lowest_sequence = base_sequence
            self.verifications[producer_id] = asked
        elif epoch > asked.producer_epoch:
            asked.producer_epoch = epoch
            asked.lowest_sequence = base_sequence
        elif epoch == asked.producer_epoch and base_sequence < asked.lowest_sequence:
            asked.lowest_sequence = base_sequence
        asked.starts_at_zero = starts_at_zero
        return asked.number

    cdef int64_t expire(self, int64_t now_ms, int64_t expiration_ms) except -1:
        cdef Verification asked
        for producer_id, asked in list(self.verifications.items()):
            if now_ms - asked.started_ms >= expiration_ms:
                del self.verifications[producer_id]
        return self.producers.expire(now_ms, expiration_ms)

    # ---- notes after an append ---------------------------------------------------------------------------------

    cdef int note_batch(
        self, const BatchInfo* info, int64_t last_offset, int64_t timestamp, const LogEnd* place
    ) except -1:
        self.producers.update(
            info.producer_id, info.producer_epoch, info.base_sequence, info.last_offset_delta, last_offset,
            timestamp, info.attributes & ATTRIBUTE_TRANSACTIONAL != 0, place)
        if self.verifications and info.attributes & ATTRIBUTE_TRANSACTIONAL:
            self.verifications.pop(info.producer_id, None)  # not needed: the transaction is open in this log now
        return 0

    cdef int note_marker(
        self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp, int64_t offset,
        bint aborted, bint replicated
    ) except -1:
        cdef ProducerEntry entry = self.producers.entries.get(producer_id)
        if entry is not None and entry.current_txn_first_offset >= 0 and not replicated:
            self.unreplicated.append((
                (
                    entry.transaction_place.offset, entry.transaction_place.segment_base_offset,
                    entry.transaction_place.position,
                ),
                offset,
            ))
        self.producers.end_transaction(producer_id, producer_epoch, coordinator_epoch, timestamp)
        self.verifications.pop(producer_id, None)
        if aborted:
            self.aborted_version += 1
        return 0

    cdef int last_stable(
        self, const LogEnd* high_watermark, bint replicated, int64_t log_start_offset, object log, LogEnd* out
    ) except -1:
        """Find the last stable offset: the first record whose outcome is unknown to readers.

        That is the first record (a) of an open transaction, or (b) of one whose marker is not below the high watermark.
        """
        cdef ProducerEntry entry
        cdef int64_t watermark = high_watermark.offset
        out[0] = high_watermark[0]
        if self.producers.open_transactions:
            entry = self.producers.oldest_open()
            if entry.transaction_place.segment_base_offset < 0 or entry.transaction_place.offset < log_start_offset:
                # It was read from a snapshot, or its first records have been deleted.
                place = log.place_of(max(entry.current_txn_first_offset, log_start_offset))
                self.producers.place_transaction(entry.producer_id, *place)
            if entry.transaction_place.offset < out.offset:
                out[0] = entry.transaction_place
        if self.unreplicated:
            if replicated:
                self.unreplicated.clear()
                return 0
            self.unreplicated = [ended for ended in self.unreplicated if ended[1] >= watermark]
            for place, _ in self.unreplicated:
                if place[0] < log_start_offset:
                    place = log.place_of(log_start_offset)
                if place[0] < out.offset:
                    out.offset, out.segment_base_offset, out.position = place
        return 0
