"""Verification of transactions: batches that wait until a transaction coordinator confirms them (KIP-890).

The first batch of a transaction in a log is held until the transaction coordinator has confirmed that the partition
belongs to the transaction; later batches of the same producer wait behind it. The bytes stay in the arena: the network
process keeps them until there is a result. Runs in an io worker; ``produce_intake`` appends the released batches. If
the transaction is already open in the log, a batch costs one lookup of its producer and no request.
"""
import logging

from kbroker._ext.base.error_codes cimport (
    CLUSTER_AUTHORIZATION_FAILED,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NETWORK_EXCEPTION,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    REQUEST_TIMED_OUT,
    TRANSACTION_ABORTABLE,
)
from kbroker._ext.base.wire cimport load_i16, load_i32, load_i64
from kbroker._ext.log.held_batches cimport HeldBatch, held_batch, monotonic_ms
from kbroker._ext.log.log_transactions cimport NO_QUESTION, NOT_ASKED
from kbroker._ext.record.record_batch cimport (
    BATCH_BASE_SEQUENCE_AT,
    BATCH_PRODUCER_EPOCH_AT,
    BATCH_PRODUCER_ID_AT,
)

logger = logging.getLogger(__name__)

cdef enum:
    # BOUND: batches that wait for a transaction coordinator; further ones get a retriable error.
    HELD_MAX = 10000
    # How long requests to an unreachable coordinator are retried, and the time between attempts.
    PATIENCE_MS = 10000
    ASK_AGAIN_MS = 20
    FIRST_ABORTABLE = 11     # Produce versions whose clients know TRANSACTION_ABORTABLE,
    FIRST_ADDING = 12        # and those that add the partition to the transaction (KIP-890, part 2)


cdef class TxnVerification:
    """The verifications of one io worker. Created by its ``ProduceIntake``."""

    def __cinit__(self):
        self._on_verify = None
        self._questions = {}
        self._waiting = {}
        self._asked_again = []
        self.patience_ms = PATIENCE_MS

    def set_verifier(self, on_verify, bint verify_all=True):
        """Set the function that asks a transaction coordinator; None: nothing is verified.

        on_verify(slot, producer_id, producer_epoch, transactional_id, api_version, token): verifies that the partition
        belongs to the producer's transaction; from Produce version 12 on it also adds it. It always responds, at once
        or later, with ``IoLoop.verified(token, error_code)``.
        verify_all: verify for every Produce version (``transaction.partition.verification.enable``).
        """
        self._on_verify = on_verify
        self._verify_all = verify_all

    @property
    def next_ask_ms(self) -> int | None:
        """When ``IoLoop.ask_again`` is due next, on the monotonic clock."""
        return self._asked_again[0][0] if self._asked_again else None

    cdef int64_t hold(
        self, LogAppender appender, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms,
        int16_t* error
    ) except? -2:
        cdef:
            int64_t producer_id = load_i64(batch + BATCH_PRODUCER_ID_AT)
            int16_t epoch = load_i16(batch + BATCH_PRODUCER_EPOCH_AT)
            int64_t verification
            Question question
            HeldBatch held
        if self._on_verify is None or producer_id < 0 or (not self._verify_all and d.api_version < FIRST_ADDING):
            return NOT_HELD
        verification = appender.transactions.begin_verification(
            producer_id, epoch, load_i32(batch + BATCH_BASE_SEQUENCE_AT), d.api_version >= FIRST_ADDING, now_ms)
        key = (d.slot, producer_id)
        question = self._waiting.get(key)
        if verification == NO_QUESTION and question is None:
            return NOT_HELD
        if self.held_count >= HELD_MAX:
            error[0] = NOT_ENOUGH_REPLICAS
            return NOT_HELD
        held = held_batch(network_index, d, batch)
        held.producer_epoch = epoch
        # If it needs no verification itself, its transaction must still be open when it is appended.
        held.verification = NOT_ASKED if verification == NO_QUESTION else verification
        if question is not None:
            question.batches.append(held)
            self.held_count += 1
            return HELD_BEHIND
        try:
            transactional_id = (<const char*>batch - d.transactional_id_back)[:d.transactional_id_size].decode()
        except UnicodeDecodeError:
            error[0] = INVALID_REQUEST
            return NOT_HELD
        question = Question.__new__(Question)
        question.key = key
        question.producer_epoch = epoch
        question.transactional_id = transactional_id
        question.api_version = d.api_version
        question.give_up_ms = min(monotonic_ms() + self.patience_ms, held.deadline_ms)
        question.batches = [held]
        self._waiting[key] = question
        self._last_token += 1
        self._questions[self._last_token] = question
        self.held_count += 1
        self.asked_total += 1
        return self._last_token

    def ask(self, int64_t token) -> bool:
        """Ask the coordinator; False if that is not possible: the caller must ``settle`` it with an error."""
        cdef Question question = self._questions[token]
        slot, producer_id = question.key
        try:
            self._on_verify(
                slot, producer_id, question.producer_epoch, question.transactional_id, question.api_version, token)
        except Exception:
            logger.exception("cannot request the verification of a transaction of producer %d", producer_id)
            return False
        return True

    cdef list due(self, int64_t now):
        cdef Question question
        cdef list found = []
        for at, token in self._asked_again:
            if at <= now:
                question = self._questions[token]
                found.append((token, len(question.batches) > 0))
        self._asked_again = [entry for entry in self._asked_again if entry[0] > now]
        return found

    cdef Question settle(self, int64_t token, int error_code):
        cdef Question question = self._questions.get(token)
        if question is None:
            return None
        if question.batches and is_unreachable(error_code) and monotonic_ms() < question.give_up_ms:
            # The coordinator is restarting or loading its log. With an error, the producer would have to send
            # everything again.
            self._asked_again.append((monotonic_ms() + ASK_AGAIN_MS, token))
            return None
        del self._questions[token]
        del self._waiting[question.key]
        if error_code:
            self.failed_total += 1
        self.held_count -= len(question.batches)
        return question

    cdef list expired(self, int64_t now):
        cdef Question question
        cdef HeldBatch held
        cdef list found = [], left
        for question in self._questions.values():
            left = []
            for held in question.batches:
                (found if held.deadline_ms <= now else left).append(held)
            self.held_count -= len(question.batches) - len(left)
            question.batches = left
        return found

    cdef int drop(self, int network_index) except -1:
        cdef Question question
        cdef HeldBatch held
        cdef list left
        for question in self._questions.values():
            left = []
            for held in question.batches:
                if held.network_index != network_index:
                    left.append(held)
            self.held_count -= len(question.batches) - len(left)
            question.batches = left
        return 0


cdef bint is_unreachable(int error_code) noexcept nogil:
    """Whether the error means that the coordinator cannot be reached, or is not ready yet."""
    return (
        error_code == NETWORK_EXCEPTION
        or error_code == REQUEST_TIMED_OUT
        or error_code == COORDINATOR_LOAD_IN_PROGRESS
        or error_code == COORDINATOR_NOT_AVAILABLE
        or error_code == NOT_COORDINATOR
    )


cdef int16_t produce_error(int error_code, int16_t version) noexcept nogil:
    """COMPAT: as Kafka 4 maps it."""
    if error_code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH
    if error_code == CLUSTER_AUTHORIZATION_FAILED or (
        error_code == TRANSACTION_ABORTABLE and version < FIRST_ABORTABLE
    ):
        return INVALID_TXN_STATE
    if is_unreachable(error_code) or (error_code == CONCURRENT_TRANSACTIONS and version < FIRST_ADDING):
        # Retriable, and does not make older clients look up the partition's leader again.
        return NOT_ENOUGH_REPLICAS
    return <int16_t>error_code
