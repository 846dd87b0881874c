# The produce of an io worker: descriptors in, appends and results out. See produce_intake.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._ext.io.produce_results cimport TurnResults
from kbroker._ext.log.held_batches cimport EarlyBatches, HeldBatch
from kbroker._ext.log.log_append cimport AppendResult, LogAppender
from kbroker._ext.log.refused_batches cimport RefusedBatches
from kbroker._ext.log.txn_verification cimport TxnVerification
from kbroker._ext.shared.descriptors cimport ProduceDescriptor
from kbroker._ext.shared.log_figures cimport LogFigures
from kbroker._ext.shared.partition_table cimport PartitionTable


cdef class ProduceIntake:
    cdef PartitionTable table
    cdef TurnResults results
    cdef TxnVerification verification
    cdef list arenas                 # keeps the regions mapped
    cdef uint8_t** bases             # of the arenas, by index of the network process
    cdef int64_t* sizes
    cdef dict appenders              # slot -> LogAppender
    cdef EarlyBatches early
    cdef RefusedBatches refused      # by slot
    cdef bint opening                # logs are being opened: batches for those that are not open yet wait
    cdef object on_failure
    cdef int64_t batches_total
    cdef int64_t bytes_total
    cdef int64_t messages_total
    cdef LogFigures figures          # by slot; None: nobody wants to know
    cdef int64_t failed_total
    # Append the first batches with one write if they are for one log and need no special treatment, or else only the
    # first one; returns how many were taken.
    cdef uint32_t take_run(
        self, int network_index, const ProduceDescriptor* d, uint32_t count, int64_t now_ms
    ) except 0
    cdef int take_one(self, int network_index, const ProduceDescriptor* d, int64_t now_ms) except -1
    # Append a batch, or only add the error as its result. text: of the error, or None.
    cdef int append_one(
        self, int network_index, const ProduceDescriptor* d, int64_t now_ms, int64_t verification, int16_t error,
        object text
    ) except -1
    cdef int add_result(
        self, int network_index, const ProduceDescriptor* d, const AppendResult* result, LogAppender appender,
        object text
    ) except -1
    cdef void count(self, const ProduceDescriptor* d, const AppendResult* result, bint is_here) noexcept
    # The error code of a descriptor that cannot be appended at all; 0 if it may be.
    cdef int16_t descriptor_error(self, int network_index, const ProduceDescriptor* d) except -1
    # The error of an earlier batch of its producer that was refused and is still missing in the log; 0: there is none.
    cdef int16_t missing_error(self, const ProduceDescriptor* d, const uint8_t* batch) except -1
    cdef bint is_intact(self, const ProduceDescriptor* d, const uint8_t* batch) except *
    cdef bint hold(
        self, int network_index, const ProduceDescriptor* d, const uint8_t* batch, int64_t now_ms, int16_t* error
    ) except *
    cdef int ask(self, int64_t token) except -1
    cdef bint is_void(self, HeldBatch held) except *
    # A coordinator has responded: append the batches that wait for it, or reject them with the error (0: none).
    cdef int verified(self, int64_t token, int error_code) except -1
    # Retry requests to coordinators that could not be reached. now: monotonic ms.
    cdef int ask_again(self, int64_t now) except -1
    # Reject the batches that have waited too long.
    cdef int expire(self, int64_t now) except -1
    # Append the batches that waited for a log to be opened, or reject them if there is no log.
    cdef int admit(self, int32_t slot) except -1
    # Forget the waiting batches of a network process that has died.
    cdef int drop(self, int network_index) except -1
