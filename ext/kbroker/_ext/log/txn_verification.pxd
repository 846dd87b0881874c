# Transactional batches that wait for the word of a transaction coordinator (KIP-890). See txn_verification.pyx.
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._ext.log.held_batches cimport Question
from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.shared.descriptors cimport ProduceDescriptor


cdef enum:
    NOT_HELD = -1
    HELD_BEHIND = 0              # another question of its producer; a token above it is of a new one


cdef class TxnVerification:
    cdef object _on_verify
    cdef bint _verify_all
    cdef dict _questions         # token -> Question
    cdef dict _waiting           # (slot, producer id) -> Question
    cdef int64_t _last_token
    cdef list _asked_again       # (monotonic ms, token): questions to a coordinator that could not be reached
    cdef public int64_t patience_ms
    cdef readonly int held_count # batches that wait
    cdef readonly int64_t asked_total
    cdef readonly int64_t failed_total
    # Whether a transactional batch has to wait: NOT_HELD (then it is to be appended, or *error says why not), HELD_BEHIND,
    # or the token of a question that the caller has to `ask`.
    cdef int64_t hold(
        self, LogAppender appender, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms,
        int16_t* error
    ) except? -2
    # Ask the coordinator; False when that is not possible, and the caller has to `settle` it with an error.
    cdef bint ask(self, int64_t token) except *
    # The questions that are to be asked again now, each with whether anybody still waits for it.
    cdef list due(self, int64_t now)
    # Take the answer to a question: the question with its batches, which wait no longer. None: there is no such question,
    # or it is asked again later.
    cdef Question settle(self, int64_t token, int error_code)
    # Batches that have waited too long; they wait no longer.
    cdef list expired(self, int64_t now)
    # Forget the batches of a network process that is gone.
    cdef int drop(self, int network_index) except -1


# What a producer of this Produce version is told when a coordinator answered with an error.
cdef int16_t produce_error(int error_code, int16_t version) noexcept nogil
