# The messages of an io worker to network processes at the end of a turn. See produce_results.pyx.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._ext.log.committed_queue cimport Sink
from kbroker._ext.log.log_tail cimport LogTail
from kbroker._ext.shared.descriptors cimport ProduceResult
from kbroker._ext.shared.lane cimport Lane


cdef struct ResultBundle:
    ProduceResult* items
    int32_t* slots           # of each result, for a sync that fails after the append
    uint32_t count
    uint32_t capacity
    uint8_t* texts
    uint32_t texts_size
    uint32_t texts_capacity


cdef struct WakeBundle:
    int32_t* slots
    uint32_t count
    uint32_t capacity


# A result that waits until its batch is committed.
cdef struct WaitingResult:
    ProduceResult result
    int32_t network
    uint32_t peer            # incarnation of that network process


cdef class TurnResults(Sink):
    cdef list lanes               # by index of the network process
    cdef int network_count
    cdef ResultBundle* bundles    # by index of the network process
    cdef WakeBundle* wakes
    cdef list touched             # appenders with something to publish, or to sync
    cdef bint called_out          # Python code of the process has run since `IoLoop.turns` began
    cdef int64_t taken_ns         # when the present batch of messages was read

    # The only way to call Python code of the process during a turn. What it schedules (a call, a deadline) must be looked
    # at before the loop waits again, so `IoLoop.turns` returns.
    cdef inline object call_out(self, object function, tuple args):
        self.called_out = True
        return function(*args)

    # Add a result to this turn, or to the log's queue of those that wait until `end` is committed.
    cdef ProduceResult* add(self, int network_index, int32_t slot) except NULL
    cdef ProduceResult* add_waiting(self, int network_index, LogTail log, int64_t end) except NULL
    # Let the end of the turn sync and publish the log.
    cdef inline int touch(self, LogTail log) except -1:
        if not log.touched:
            log.touched = True
            self.touched.append(log)
        return 0

    # Wake the network processes of a mask because of a slot.
    cdef int wake(self, int32_t slot, uint64_t mask) except -1
    # Send a network process its results and wake-ups; False if its lane is full.
    cdef bint send(self, Lane lane) except -1
    cdef bint send_results(self, Lane lane) except -1
    cdef bint send_wakes(self, Lane lane) except -1
    # Drop the results for a network process that has died.
    cdef void forget(self, int network_index) noexcept
    # The log cannot be synced: give the batches appended to this slot in this turn an error.
    cdef void fail(self, int32_t slot, int16_t error_code) noexcept
    cdef bint is_empty(self) noexcept


cdef ProduceResult* new_result(ResultBundle* bundle, int32_t slot) except NULL
# Add the error text of a result, as UTF-8; texts follow the structs.
cdef int add_text(ResultBundle* bundle, ProduceResult* result, object text) except -1
# Add the indexes of more bad records, after the result's text.
cdef int add_indexes(ResultBundle* bundle, ProduceResult* result, list indexes) except -1
