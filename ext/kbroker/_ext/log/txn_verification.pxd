# Transactional batches that wait for the response of a transaction coordinator (KIP-890). See txn_verification.pyx.
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker._ext.log.held_batches cimport Question
from kbroker._ext.log.log_append cimport LogAppender
from kbroker._ext.shared.descriptors cimport ProduceDescriptor


cdef enum:
    NOT_HELD = -1
    HELD_BEHIND = 0              # waits for a verification already requested for its producer; > 0: token of a new one


cdef class TxnVerification:
    cdef object _on_verify
    cdef bint _verify_all
    cdef dict _questions         # token -> Question
    cdef dict _waiting           # (slot, producer id) -> Question
    cdef int64_t _last_token
    cdef list _asked_again       # (monotonic ms, token): to be retried, as the coordinator could not be reached
    cdef public int64_t patience_ms
    cdef readonly int held_count # waiting batches
    cdef readonly int64_t asked_total
    cdef readonly int64_t failed_total
    # Whether a transactional batch has to wait: NOT_HELD (append it, or reject it if *error is set), HELD_BEHIND, or the
    # token of a verification that the caller must request with `ask`, which calls Python code.
    cdef int64_t hold(
        self, LogAppender appender, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms,
        int16_t* error
    ) except? -2
    # The verifications to request again now: (token, whether batches still wait for it).
    cdef list due(self, int64_t now)
    # Take the coordinator's response; returns the verification with its batches, which no longer wait. None if the token
    # is unknown, or if it will be requested again.
    cdef Question settle(self, int64_t token, int error_code)
    # Take out the batches that have waited too long.
    cdef list expired(self, int64_t now)
    # Forget the batches of a network process that has died.
    cdef int drop(self, int network_index) except -1


# The error code that a producer with this Produce version gets for a coordinator's error.
cdef int16_t produce_error(int error_code, int16_t version) noexcept nogil
